"""Ids on the command line, in full or abbreviated.

An abbreviation is the beginning of an id, or its end after "…", as the dashboard shows it.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from lethe.cli.context import CommandContext, UsageError
from lethe.client.errors import NotFound

if TYPE_CHECKING:
    from lethe.client.responses import Batch, Erasure

SHORTEST_PREFIX = 4
_SHOWN_MATCHES = 10
_DIGITS = 32  # hexadecimal digits of an id
_ELLIPSES = ("…", "...")


class HasId(Protocol):
    """Anything with an id."""

    @property
    def id(self) -> UUID:
        """The id."""


def find_erasure(context: CommandContext, text: str) -> UUID:
    """Return the id of the only erasure whose id starts with `text`."""
    return find_id(text, "erasure", context.api.erasures.list, "lethe erasure list")


def find_batch(context: CommandContext, text: str) -> UUID:
    """Return the id of the only batch whose id starts with `text`."""
    return find_id(text, "batch", context.api.batches.list, "lethe batch list")


def find_erasure_or_batch(context: CommandContext, text: str) -> "Erasure | Batch":
    """Return the erasure or the batch whose id starts with `text`."""
    from lethe.client.errors import Forbidden

    check_id(text, "erasure or a batch", "lethe erasure list")
    try:
        return context.api.erasures.get(find_erasure(context, text))
    except (NotFound, Forbidden):
        return context.api.batches.get(find_batch(context, text))


def find_webhook(context: CommandContext, text: str) -> UUID:
    """Return the id of the only webhook whose id starts with `text`."""
    return find_id(text, "webhook", context.api.webhooks.list, "lethe webhook list")


def find_certificate(context: CommandContext, text: str) -> UUID:
    """Return the id of the only certificate whose id starts with `text`."""
    return find_id(text, "certificate", context.api.certificates.list, "lethe ledger MODEL")


def find_id(text: str, kind: str, fetch: Callable[[], Iterable[HasId]], listing: str) -> UUID:
    """Return a full id as it is, and look up an abbreviated one in the list that `fetch` returns.

    An abbreviation that starts with "…" is the end of an id.

    The list must be sorted from the newest id to the oldest, as all lists of the service are, so that it is
    read only as far as necessary. `listing` is the command that shows the ids.
    """
    digits = check_id(text, kind, listing)
    if len(digits) == _DIGITS:
        return UUID(digits)
    by_end = text.startswith(_ELLIPSES)
    matches = _matches_by_end(digits, fetch()) if by_end else _matches(digits, fetch())
    if not matches:
        where = "ends" if by_end else "starts"
        raise NotFound(404, {"title": f"there is no {kind} whose ID {where} with {text}"})
    if len(matches) > 1:
        shown = ", ".join(str(match) for match in matches[:_SHOWN_MATCHES])
        more = ", …" if len(matches) > _SHOWN_MATCHES else ""
        place = "end" if by_end else "start"
        raise UsageError(f"{text} is the {place} of several IDs: {shown}{more}; write more characters")
    return matches[0]


def check_id(text: str, kind: str, listing: str) -> str:
    """Return the hexadecimal digits of an id or of its beginning. Raises `UsageError` for any other text."""
    digits = text.lstrip("….").replace("-", "").lower()
    if not digits or len(digits) > _DIGITS or not set(digits) <= set("0123456789abcdef"):
        named = text or "an empty text"
        raise UsageError(f"{named} is not the ID of {_with_article(kind)}; to see the IDs, run `{listing}`")
    if len(digits) < SHORTEST_PREFIX:
        raise UsageError(f"{text} is too short for an ID; write at least {SHORTEST_PREFIX} characters of it")
    return digits


def _matches(digits: str, items: Iterable[HasId]) -> list[UUID]:
    matches = []
    for item in items:
        beginning = item.id.hex[: len(digits)]
        if beginning == digits:
            matches.append(item.id)
        elif beginning < digits or len(matches) > _SHOWN_MATCHES:
            break  # older ids are smaller
    return matches


def _matches_by_end(digits: str, items: Iterable[HasId]) -> list[UUID]:
    ends = (item.id for item in items if item.id.hex.endswith(digits))
    return list(islice(ends, _SHOWN_MATCHES + 1))


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
