"""`lethe batch …`: look at one, decide about one."""

from typing import TYPE_CHECKING, Annotated

import typer

from client.commands import tables
from client.commands.session import Session, verb
from client.commands.watching import batch_shown

if TYPE_CHECKING:
    from client.answers import Batch

batch = typer.Typer(help="Batches: list, show, retry, approve, discard, cancel.", no_args_is_help=True)
BatchId = Annotated[str, typer.Argument(metavar="ID", help="Id of the batch.")]


@batch.command("list")
@verb
def list_batches(
    session: Session, most: Annotated[int, typer.Option("--most", min=1, help="Newest first.")] = 20
) -> None:
    """List the batches."""
    found = list(session.api.batches.list(most=most))
    entries = [(b.id, b.model, b.state, b.step, b.subjects, b.held_reason or b.error or "") for b in found]
    columns = ("batch", "model", "state", "step", "subjects", "because")
    session.show(found, tables.rows(columns, entries) if found else "No batches.")


@batch.command("show")
@verb
def show(session: Session, batch_id: BatchId) -> None:
    """Show a batch."""
    _tell(session, session.api.batches.get(batch_id))


@batch.command("retry")
@verb
def retry(session: Session, batch_id: BatchId) -> None:
    """Try a held or failed batch again, under the model's present policy."""
    _tell(session, session.api.batches.retry(batch_id))


@batch.command("approve")
@verb
def approve(session: Session, batch_id: BatchId) -> None:
    """Publish exactly the draw that the quality gate held."""
    _tell(session, session.api.batches.approve(batch_id))


@batch.command("discard")
@verb
def discard(session: Session, batch_id: BatchId) -> None:
    """Destroy the draw that is held; it counts as a release. Then retry."""
    _tell(session, session.api.batches.discard(batch_id))


@batch.command("cancel")
@verb
def cancel(session: Session, batch_id: BatchId) -> None:
    """Stop a batch whose noise is not drawn yet; it is held until it is retried."""
    _tell(session, session.api.batches.cancel(batch_id))


def _tell(session: Session, found: "Batch") -> None:
    session.show(found, batch_shown(found))
