"""The check that a URI may be imported: it must lie below a root that the operator allows to the tenant.

A root is one of:

    file:///srv/imports            every tenant has a folder of its own below it, with the tenant's name
    acme=s3://acme-exports/rows    this root belongs to the tenant acme
    *=s3://public-datasets         every tenant may import everything below it
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

# No characters that a driver might expand, decode or chain: globs, escapes, queries, credentials, `a::b`.
_PLAIN = re.compile(r"[a-z0-9]{2,16}://[A-Za-z0-9._/=+ ~-]{0,200}(?:/[A-Za-z0-9._=+ ~-]{1,200})+")


_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
EVERYONE = "*"


class ImportRefused(Exception):
    """Raised when a URI may not be imported. The message gives the reason without repeating the URI."""


def check(uri: str, roots: str, tenant: str) -> str:
    """Return the URI if the tenant with this name may import it, else raise `ImportRefused`.

    `roots` are the roots of all tenants, separated by white space.
    """
    if not roots.split():
        raise ImportRefused("imports are off: the operator has not set LETHE_IMPORT_ROOTS")
    if not _PLAIN.fullmatch(uri):
        raise ImportRefused(
            "a URI must have the form scheme://place/path, without escapes, patterns or credentials"
        )
    segments = urlsplit(uri).path.split("/")[1:]
    if any(segment in ("", ".", "..") for segment in segments) or ".." in urlsplit(uri).netloc:
        raise ImportRefused("the path of a URI must not have an empty, `.` or `..` segment")
    if not any(_below(uri, root) for root in _roots_of(tenant, roots)):
        raise ImportRefused("the operator does not allow you to import from this location")
    return uri


def _roots_of(tenant: str, roots: str) -> Iterator[str]:
    """Yield the roots that a tenant may import from.

    A tenant whose name cannot be the name of a folder has no folder below a shared root.
    """
    for root in roots.split():
        owner, sign, own = root.partition("=")
        if sign and "://" not in owner:
            if owner in (tenant, EVERYONE):
                yield own
        elif _FOLDER.fullmatch(tenant):
            yield f"{root.rstrip('/')}/{tenant}"


def _below(uri: str, root: str) -> bool:
    if not uri.startswith(root.rstrip("/") + "/"):
        return False
    if not uri.startswith("file://"):
        return True
    # A symbolic link inside the root may lead out of it.
    real = Path(os.path.realpath(urlsplit(uri).path))
    return real.is_relative_to(os.path.realpath(urlsplit(root).path))
