"""How rows are matched to people: exactly, after Unicode normalisation; and what nearly matches."""

import unicodedata
from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc


def normalised(column: pa.Array) -> pa.Array:
    """Return identifiers in Unicode normal form C, in which they are compared.

    Columns of ASCII, the common case, are in that form already.
    """
    column = column.cast(pa.string())
    if pc.all(pc.string_is_ascii(column), min_count=0).as_py():
        return column
    return pc.utf8_normalize(column, form="NFC")


def wanted(subjects: Collection[str]) -> pa.Array:
    """Return identifiers as `belonging` wants them."""
    return normalised(pa.array(sorted(subjects), pa.string()))


def belonging(column: pa.Array, subjects: pa.Array) -> pa.Array:
    """Tell for every row whether it is of one of these subjects. Both sides are normalised by Arrow."""
    return pc.is_in(normalised(column), value_set=subjects)


def folded(identifier: str) -> str:
    """Return what identifiers have in common that a person would take for the same.

    Letter case, compatibility forms, white space and invisible characters do not count. No row is ever
    erased because of this: it only tells the owner of the data that a request may be mistyped.

    >>> folded(" Alice\u200b  SMITH ") == folded("alice smith")
    True
    >>> folded("alice") == folded("alicia")
    False
    """
    if not identifier.isascii():
        identifier = unicodedata.normalize("NFKC", identifier)
        if not identifier.isprintable():  # no format character is
            identifier = "".join(c for c in identifier if unicodedata.category(c) != "Cf")
        identifier = unicodedata.normalize("NFKC", identifier.casefold())
    return " ".join(identifier.casefold().split())
