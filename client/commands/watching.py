"""`lethe watch`: ‖g‖ and Δ falling towards Δ*, live."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from client.commands import tables
from client.commands.session import NO, Session, Timeout, verb

if TYPE_CHECKING:
    from client.answers import Batch, Event
    from client.answers import Progress as Standing


@verb
def watch(
    session: Session,
    watched: Annotated[str, typer.Argument(metavar="ID", help="Id of an erasure or of a batch.")],
    timeout: Timeout = None,
) -> int | None:
    """Follow an erasure or a batch to its end. Exit status 1 when it fails or is held."""
    from client.errors import Forbidden, NotFound

    try:
        session.api.erasures.get(watched)
    except (NotFound, Forbidden):
        return _watch_batch(session, session.api.batches.get(watched), timeout)
    return watch_erasure(session, watched, timeout)


def watch_erasure(session: Session, erasure_id: UUID | str, timeout: float | None) -> int | None:
    from client.commands.erasure import shown

    with _dial(session) as dial:
        last = None
        for last in session.api.erasures.follow(erasure_id, timeout=timeout):
            dial.standing(last)
            if len(last.batches) == 1 and timeout is None:  # its events tell more, and sooner
                _follow(session, dial, last.batches[0])
    assert last is not None
    session.show(last.erasure, *shown(last.erasure))
    return None if last.erasure.state == "completed" else NO


def _watch_batch(session: Session, batch: "Batch", timeout: float | None) -> int | None:
    with _dial(session) as dial:
        if timeout is not None:  # a stream has no such limit; afterwards its events are there at once
            session.api.batches.wait(batch.id, timeout=timeout, tell=dial.batch)
        events = _follow(session, dial, batch)
    batch = session.api.batches.get(batch.id)
    session.show({"batch": batch, "events": events}, batch_shown(batch))
    return None if batch.state == "completed" else NO


def _follow(session: Session, dial: "Dial", batch: "Batch") -> "list[Event]":
    events = []
    for event in session.api.batches.events(batch.id):
        events.append(event)
        dial.event(batch, event)
        # It may have been held before and decided on since.
        if event.kind == "held" and session.api.batches.get(batch.id).state == "held":
            break
    return events


def batch_shown(batch: "Batch") -> Any:
    return tables.facts(
        {
            "batch": batch.id,
            "model": batch.model,
            "state": batch.state,
            "step": batch.step,
            "subjects": batch.subjects,
            "records": batch.records,
            "attempt": batch.attempt,
            "waits for": batch.waiting_for,
            "held": batch.held_reason,
            "error": batch.error,
            "warnings": batch.warnings,
            "version": batch.version,
            "certificate": batch.certificate_id,
        }
    )


def described(data: dict[str, Any]) -> str:
    """One line of what the solver reports; only of what is there."""
    parts = []
    if (gradient := data.get("gradient_norm")) is not None:
        parts.append(f"‖g‖ {gradient:.1e}")
    if (distance := data.get("distance")) is not None:
        parts.append(f"Δ {distance:.1e}")
    if (target := data.get("target")) is not None:
        parts.append(f"→ Δ* {target:.1e}")
    if (percent := data.get("percent")) is not None:
        parts.append(f"{percent:.0f} %")
    if (left := data.get("eta_seconds")) is not None:
        parts.append(f"about {left:.0f} s left")
    return "  ".join(parts)


class Dial:
    """A line per batch: bars on a terminal, plain lines elsewhere."""

    def __init__(self, session: Session, progress: Progress) -> None:
        self._session, self._progress = session, progress
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, str] = {}

    def standing(self, found: "Standing") -> None:
        """Where each batch of an erasure is; before there is one, where the erasure is."""
        if not found.batches and not found.erasure.ended:
            self._tell("", f"erasure: {found.erasure.state}", {})
        elif (waiting := self._tasks.pop("", None)) is not None:
            self._progress.remove_task(waiting)
        for batch in found.batches:
            self.batch(batch)

    def batch(self, batch: "Batch") -> None:
        solving = batch.progress if batch.step == "solve" else None
        self._tell(str(batch.id), f"{batch.model}: {batch.step or batch.state}", solving or {})

    def event(self, batch: "Batch", event: "Event") -> None:
        data = event.data
        if event.kind == "progress":
            self._tell(str(batch.id), f"{batch.model}: solve", data)
            return
        word = data.get("step") or data.get("state") or data.get("reason") or ""
        done = {"percent": 100} if event.kind == "completed" else {}
        self._tell(str(batch.id), f"{batch.model}: {event.kind} {word}".rstrip(), done)

    def _tell(self, batch: str, text: str, progress: dict[str, Any]) -> None:
        line = f"{text}  {described(progress)}".rstrip()
        if batch not in self._tasks:
            self._tasks[batch] = self._progress.add_task(line, total=100)
        self._progress.update(self._tasks[batch], completed=progress.get("percent"), description=line)
        if self._progress.disable and self._said.get(batch) != line:
            self._said[batch] = line
            self._session.note(line)


@contextmanager
def _dial(session: Session) -> Iterator[Dial]:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    visible = session.notes.is_terminal and not session.as_json
    with Progress(*columns, console=session.notes, disable=not visible) as progress:
        yield Dial(session, progress)
