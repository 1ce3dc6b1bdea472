"""`lethe batch`: list and inspect batches, and decide about those that are held."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from lethe.cli.context import CommandContext, command
from lethe.cli.ids import find_batch
from lethe.cli.tables import details, format_value, in_words, table

if TYPE_CHECKING:
    from lethe.client.responses import Batch

batch = typer.Typer(help="List batches, inspect them and decide about those on hold.", no_args_is_help=True)
ON_HOLD = "on hold, needs a decision"
DecisionReason = Annotated[
    str | None,
    typer.Option(
        "--reason", metavar="REASON", help="Why. It becomes part of the batch's history, with your name."
    ),
]
BatchId = Annotated[str, typer.Argument(metavar="ID", help="ID of the batch, or its first characters.")]


@batch.command("list")
@command
def list_batches(
    context: CommandContext,
    most: Annotated[
        int, typer.Option("--most", metavar="NUMBER", min=1, help="List at most this many batches.")
    ] = 20,
) -> None:
    """List batches, newest first."""
    batches = list(context.api.batches.list(limit=most))
    rows = [
        (
            b.id,
            b.model,
            state_in_words(b.state),
            b.step,
            b.subjects,
            in_words(b.held_reason or "") or b.error or "",
        )
        for b in batches
    ]
    columns = ("Batch", "Model", "State", "Step", "People", "On hold or failed because")
    context.show(batches, table(columns, rows) if batches else "There are no batches.")


@batch.command("show")
@command
def show(context: CommandContext, batch_id: BatchId) -> None:
    """Show a batch."""
    _show(context, context.api.batches.get(find_batch(context, batch_id)))


@batch.command("retry")
@command
def retry(context: CommandContext, batch_id: BatchId, reason: DecisionReason = None) -> None:
    """Retry a batch that is on hold or failed, under the model's current policy."""
    _show(context, context.api.batches.retry(find_batch(context, batch_id), reason=reason))


@batch.command("approve")
@command
def approve(context: CommandContext, batch_id: BatchId, reason: DecisionReason = None) -> None:
    """Publish the draw of a batch that is on hold, exactly as it is."""
    _show(context, context.api.batches.approve(find_batch(context, batch_id), reason=reason))


@batch.command("discard")
@command
def discard(context: CommandContext, batch_id: BatchId, reason: DecisionReason = None) -> None:
    """Destroy the draw of a batch that is on hold.

    The draw still counts as a release. Run `lethe batch retry` afterwards to erase the people.
    """
    _show(context, context.api.batches.discard(find_batch(context, batch_id), reason=reason))


@batch.command("cancel")
@command
def cancel(context: CommandContext, batch_id: BatchId, reason: DecisionReason = None) -> None:
    """Stop a batch before its noise is drawn.

    The batch is on hold until you run `lethe batch retry`.
    """
    _show(context, context.api.batches.cancel(find_batch(context, batch_id), reason=reason))


def _show(context: CommandContext, batch: "Batch") -> None:
    context.show(batch, batch_details(batch))
    if batch.state in ("held", "failed") and (hint := decision_hint(batch.id, batch.decisions)):
        context.note(hint)


def state_in_words(state: str) -> str:
    """Return the state of a batch as people read it: one on hold says that it needs a decision."""
    return ON_HOLD if state == "held" else state


def decision_hint(batch_id: UUID | None, decisions: Sequence[str]) -> str:
    """Return the commands that decide about a batch, or nothing if there is nothing to decide.

    >>> decision_hint(UUID(int=7), ["approve", "discard"]).partition(" or ")[2]
    'lethe batch discard 00000000-0000-0000-0000-000000000007'
    """
    commands = [f"lethe batch {decision} {batch_id}" for decision in decisions]
    return f"To decide, run: {' or '.join(commands)}" if commands else ""


def batch_details(batch: "Batch") -> Any:
    """Return a table that describes a batch."""
    return details(
        {
            "Batch": batch.id,
            "Model": batch.model,
            "State": state_in_words(batch.state),
            "Summary": batch.summary,
            "Step": batch.step,
            "People": batch.subjects,
            "Rows": batch.records,
            "Attempt": batch.attempt,
            "Waiting for": batch.waiting_for,
            "On hold because": batch.held_reason and in_words(batch.held_reason),
            "Latest decision": _describe_decision(batch),
            "Error": batch.error,
            "Warnings": batch.warnings,
            "Version": batch.version,
            "Certificate": batch.certificate_id,
        }
    )


def _describe_decision(batch: "Batch") -> str | None:
    decided = batch.decided
    if decided is None:
        return None
    why = f": {decided.reason}" if decided.reason else ""
    return f"{decided.decision} by {decided.by or 'someone'}, {format_value(decided.at)}{why}"
