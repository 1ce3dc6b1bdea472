"""The check that a URI may be imported: it must lie below a root that the operator allows."""

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

# No characters that a driver might expand, decode or chain: globs, escapes, queries, credentials, `a::b`.
_PLAIN = re.compile(r"[a-z0-9]{2,16}://[A-Za-z0-9._/=+ ~-]{0,200}(?:/[A-Za-z0-9._=+ ~-]{1,200})+")


class ImportRefused(Exception):
    """Raised when a URI may not be imported. The message gives the reason without repeating the URI."""


def check(uri: str, roots: str) -> str:
    """Return the URI if it may be imported, else raise `ImportRefused`.

    `roots` are the allowed prefixes, separated by white space.
    """
    allowed = roots.split()
    if not allowed:
        raise ImportRefused("imports are off: the operator has not set LETHE_IMPORT_ROOTS")
    if not _PLAIN.fullmatch(uri):
        raise ImportRefused(
            "a URI must have the form scheme://place/path, without escapes, patterns or credentials"
        )
    segments = urlsplit(uri).path.split("/")[1:]
    if any(segment in ("", ".", "..") for segment in segments) or ".." in urlsplit(uri).netloc:
        raise ImportRefused("the path of a URI must not have an empty, `.` or `..` segment")
    if not any(_below(uri, root) for root in allowed):
        raise ImportRefused("the operator does not allow imports from this location")
    return uri


def _below(uri: str, root: str) -> bool:
    if not uri.startswith(root.rstrip("/") + "/"):
        return False
    if not uri.startswith("file://"):
        return True
    # A symbolic link inside the root may lead out of it.
    real = Path(os.path.realpath(urlsplit(uri).path))
    return real.is_relative_to(os.path.realpath(urlsplit(root).path))
