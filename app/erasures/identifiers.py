"""Identifiers that were probably mistyped: they are taken as they are, and the sender is told."""

import unicodedata
from collections.abc import Callable, Iterable

_INVISIBLE = frozenset({"Cc", "Cf"})  # control and format characters: zero-width ones are among the latter


def warnings(subjects: Iterable[str]) -> list[str]:
    """Return a sentence for each kind of likely mistake, with a count and the first place, and no identifier.

    >>> warnings(["ada", "bob "])[0]
    '1 identifier begins or ends with white space (number 2 of the request). It is compared as sent.'
    """
    places: list[list[int]] = [[] for _ in _FAULTS]
    for number, subject in enumerate(subjects, 1):
        for (_, _, suspicious), found in zip(_FAULTS, places, strict=True):
            if suspicious(subject):
                found.append(number)
    return [
        f"1 identifier {one} (number {found[0]} of the request). It is compared as sent."
        if len(found) == 1
        else f"{len(found)} identifiers {many} (the first is number {found[0]} of the request). "
        "They are compared as sent."
        for (one, many, _), found in zip(_FAULTS, places, strict=True)
        if found
    ]


def near_match_notice(people: int) -> str | None:
    """Return what the tenant should do about near matches; None when there are none."""
    if not people:
        return None
    who, whoever = ("1 person", "that person") if people == 1 else (f"{people} people", "one of them")
    return (
        f"{who} in this model's data {'has' if people == 1 else 'have'} an identifier that differs only in "
        f"case, spacing or Unicode form. Check the spelling and send a new request if {whoever} is meant."
    )


def _is_padded(subject: str) -> bool:
    return subject != subject.strip()


def _has_invisible(subject: str) -> bool:
    return not subject.isprintable() and any(unicodedata.category(c) in _INVISIBLE for c in subject)


_FAULTS: tuple[tuple[str, str, Callable[[str], bool]], ...] = (
    ("begins or ends with white space", "begin or end with white space", _is_padded),
    ("holds control or zero-width characters", "hold control or zero-width characters", _has_invisible),
)
