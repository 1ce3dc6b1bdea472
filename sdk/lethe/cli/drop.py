"""The steps of `lethe erasure import-drop`: request the erasure of matching people, and say what was done."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lethe.cli.context import CommandContext
from lethe.cli.tables import count

if TYPE_CHECKING:
    from lethe.client.drop import Match
    from lethe.client.responses import Erasure


def request_erasure(
    context: CommandContext, subjects: Sequence[str], models: list[str] | None
) -> "Erasure | None":
    """Request the erasure of the people who matched, or return None if nobody did."""
    from lethe.client.erasures import MOST_SUBJECTS, as_ndjson

    if not subjects:
        return None
    details: dict[str, Any] = {
        "models": models,
        "reason": "DROP",
        "jurisdiction": "California Delete Act",
    }
    api = context.api.erasures
    if len(subjects) > MOST_SUBJECTS:
        return api.bulk(as_ndjson(subjects), **details)
    return api.create(subjects, **details)


def show_matches(
    context: CommandContext,
    matches: "Sequence[Match]",
    chosen: "Sequence[Match]",
    subjects: Sequence[str],
    created: "Erasure | None",
) -> None:
    """Show how many work items matched, what was requested, and how many were skipped."""
    matched = sum(bool(match.subjects) for match in matches)
    skipped = matched - len(chosen)
    result = {
        "items": len(matches),
        "matched": matched,
        "shared_and_skipped": skipped,
        "subjects": len(subjects),
        "erasure_id": created.id if created else None,
    }
    requested = (
        f"Erasure {created.id} was requested for {count(len(subjects), 'person', 'people')}."
        if created
        else "Nothing was requested."
    )
    context.show(
        result, f"{count(matched, 'work item', 'work items')} of {len(matches)} matched. {requested}"
    )
    if skipped:
        context.note(
            f"Skipped {count(skipped, 'identifier', 'identifiers')} that several of your people share. "
            "DROP asks you to opt these people out. To erase them, pass --shared."
        )
