"""Which storage URIs may be imported: only what lies below a root that the operator allowed."""

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

# Nothing that some driver might expand, decode or chain: globs, escapes, queries, credentials, `a::b`.
_PLAIN = re.compile(r"[a-z0-9]{2,16}://[A-Za-z0-9._/=+ ~-]{0,200}(?:/[A-Za-z0-9._=+ ~-]{1,200})+")


class ImportRefused(Exception):
    """The message says why and does not repeat the URI."""


def check(uri: str, roots: str) -> str:
    """The URI itself when it may be read; `roots` are allowed prefixes, separated by white space."""
    allowed = roots.split()
    if not allowed:
        raise ImportRefused("imports are off: the operator has allowed no place to import from")
    if not _PLAIN.fullmatch(uri):
        raise ImportRefused("a URI must be scheme://place/path, without escapes, patterns or credentials")
    segments = urlsplit(uri).path.split("/")[1:]
    if any(segment in ("", ".", "..") for segment in segments) or ".." in urlsplit(uri).netloc:
        raise ImportRefused("a URI's path must have no empty, `.` or `..` segment")
    if not any(_below(uri, root) for root in allowed):
        raise ImportRefused("the operator does not allow imports from there")
    return uri


def _below(uri: str, root: str) -> bool:
    if not uri.startswith(root.rstrip("/") + "/"):
        return False
    if not uri.startswith("file://"):
        return True
    # A link inside the root may lead out of it.
    real = Path(os.path.realpath(urlsplit(uri).path))
    return real.is_relative_to(os.path.realpath(urlsplit(root).path))
