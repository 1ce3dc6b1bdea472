"""`lethe batch`: list and inspect batches, and decide about those that are held."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lethe.cli.context import CommandContext, command
from lethe.cli.ids import find_batch
from lethe.cli.tables import details, table

if TYPE_CHECKING:
    from lethe.client.responses import Batch

batch = typer.Typer(help="List batches, inspect them and decide about those on hold.", no_args_is_help=True)
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
    rows = [(b.id, b.model, b.state, b.step, b.subjects, b.held_reason or b.error or "") for b in batches]
    columns = ("Batch", "Model", "State", "Step", "People", "Held or failed because")
    context.show(batches, table(columns, rows) if batches else "There are no batches.")


@batch.command("show")
@command
def show(context: CommandContext, batch_id: BatchId) -> None:
    """Show a batch."""
    _show(context, context.api.batches.get(find_batch(context, batch_id)))


@batch.command("retry")
@command
def retry(context: CommandContext, batch_id: BatchId) -> None:
    """Retry a batch that is on hold or failed, under the model's current policy."""
    _show(context, context.api.batches.retry(find_batch(context, batch_id)))


@batch.command("approve")
@command
def approve(context: CommandContext, batch_id: BatchId) -> None:
    """Publish the draw of a batch that is on hold, exactly as it is."""
    _show(context, context.api.batches.approve(find_batch(context, batch_id)))


@batch.command("discard")
@command
def discard(context: CommandContext, batch_id: BatchId) -> None:
    """Destroy the draw of a batch that is on hold.

    The draw still counts as a release. Run `lethe batch retry` afterwards to erase the people.
    """
    _show(context, context.api.batches.discard(find_batch(context, batch_id)))


@batch.command("cancel")
@command
def cancel(context: CommandContext, batch_id: BatchId) -> None:
    """Stop a batch before its noise is drawn.

    The batch is on hold until you run `lethe batch retry`.
    """
    _show(context, context.api.batches.cancel(find_batch(context, batch_id)))


def _show(context: CommandContext, batch: "Batch") -> None:
    context.show(batch, batch_details(batch))


def batch_details(batch: "Batch") -> Any:
    """Return a table that describes a batch."""
    return details(
        {
            "Batch": batch.id,
            "Model": batch.model,
            "State": batch.state,
            "Step": batch.step,
            "People": batch.subjects,
            "Rows": batch.records,
            "Attempt": batch.attempt,
            "Waiting for": batch.waiting_for,
            "Held because": batch.held_reason,
            "Error": batch.error,
            "Warnings": batch.warnings,
            "Version": batch.version,
            "Certificate": batch.certificate_id,
        }
    )
