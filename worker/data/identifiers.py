"""Matching rows to people: exactly, after Unicode normalisation, and near matches that hint at typos."""

import unicodedata
from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from lethe.identifiers import PATTERN


def normalised(column: pa.Array) -> pa.Array:
    """Return identifiers in Unicode normal form C, the form in which they are compared.

    ASCII columns, the common case, are already in that form.
    """
    column = column.cast(pa.string())
    if pc.all(pc.string_is_ascii(column), min_count=0).as_py():
        return column
    return pc.utf8_normalize(column, form="NFC")


def unusable(column: pa.Array) -> pa.Array:
    """Return for every identifier whether no erasure request could name it. A missing one gives null."""
    return pc.invert(pc.match_substring_regex(column, PATTERN))


def lookup_set(subjects: Collection[str]) -> pa.Array:
    """Return identifiers in the form that `belongs_to` looks up."""
    return normalised(pa.array(sorted(subjects), pa.string()))


def belongs_to(column: pa.Array, subjects: pa.Array) -> pa.Array:
    """Return for every row whether it belongs to one of these people. Arrow normalises both sides."""
    return pc.is_in(normalised(column), value_set=subjects)


def folded(identifier: str) -> str:
    """Return a form in which identifiers that a person would confuse are equal.

    It ignores letter case, compatibility forms, white space and invisible characters. No row is ever erased
    because of a match in this form. It only warns the owner of the data that a request may be mistyped.

    >>> folded(" Alice\u200b  SMITH ") == folded("alice smith")
    True
    >>> folded("alice") == folded("alicia")
    False
    """
    if not identifier.isascii():
        identifier = unicodedata.normalize("NFKC", identifier)
        if not identifier.isprintable():  # format characters are not printable
            identifier = "".join(c for c in identifier if unicodedata.category(c) != "Cf")
        identifier = unicodedata.normalize("NFKC", identifier.casefold())
    return " ".join(identifier.casefold().split())
