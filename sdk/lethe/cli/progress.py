"""Progress on standard error: bars on a terminal, plain lines for batches elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from lethe.cli.batches import state_in_words
from lethe.cli.context import CommandContext

if TYPE_CHECKING:
    from lethe.client.responses import Batch, ErasureProgress, Event, Model

NewTransferBar = Callable[[str], Callable[[int, int], object]]


@contextmanager
def transfer_bars(context: CommandContext) -> Iterator[NewTransferBar]:
    """Provide a function that adds a bar for a file. Without a terminal, no bars are drawn."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=context.notes, disable=not context.interactive) as progress:

        def add_bar(name: str) -> Callable[[int, int], object]:
            task = progress.add_task(name, total=None)
            return lambda done, total: progress.update(task, completed=done, total=total)

        yield add_bar


@contextmanager
def registration_progress(context: CommandContext) -> Iterator[Callable[["Model"], None]]:
    """Provide a function that shows how far a registration is: a bar on a terminal, lines elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=context.notes, disable=not context.interactive) as progress:
        task = progress.add_task("registration", total=100)
        previous = ""

        def show(model: "Model") -> None:
            nonlocal previous
            line = f"{model.name}: {describe_registration(model.progress or {}) or model.state}"
            progress.update(task, completed=(model.progress or {}).get("percent"), description=line)
            if progress.disable and model.progress and line != previous:
                previous = line
                context.note(line)

        yield show


@contextmanager
def batch_progress(context: CommandContext) -> Iterator["BatchProgress"]:
    """Provide a display for the progress of batches."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=context.notes, disable=not context.interactive) as progress:
        yield BatchProgress(context, progress)


class BatchProgress:
    """Shows one line per batch: a bar on a terminal, and a new line for every change elsewhere."""

    def __init__(self, context: CommandContext, progress: Progress) -> None:
        self._context, self._progress = context, progress
        self._tasks: dict[str, TaskID] = {}
        self._lines: dict[str, str] = {}

    def show_erasure(self, current: "ErasureProgress") -> None:
        """Show each batch of an erasure, or the state of the erasure while it has no batch."""
        if not current.batches and not current.erasure.ended:
            self._show("", f"erasure: {current.erasure.state}", {})
        elif (waiting := self._tasks.pop("", None)) is not None:
            self._progress.remove_task(waiting)
        for batch in current.batches:
            self.show_batch(batch)

    def show_batch(self, batch: "Batch") -> None:
        """Show the current step of a batch."""
        figures = batch.progress or {}
        is_solving = batch.step == "solve"
        if _is_represented(figures):
            if not is_solving:
                self._show_features(batch, figures)
                return
            figures = {}  # the solver has not reported yet
        text = f"{batch.model}: {batch.step or state_in_words(batch.state)}"
        self._show(str(batch.id), text, figures if is_solving else {})

    def show_event(self, batch: "Batch", event: "Event") -> None:
        """Show an event of a batch."""
        data = event.data
        if event.kind == "progress" and _is_represented(data):
            self._show_features(batch, data)
            return
        if event.kind == "progress":
            self._show(str(batch.id), f"{batch.model}: solve", data)
            return
        if event.kind == "held":
            why = str(data.get("reason", "")).replace("_", " ")
            self._show(str(batch.id), f"{batch.model}: {state_in_words('held')} ({why})", {})
            return
        detail = data.get("step") or data.get("state") or data.get("reason") or ""
        figures = {"percent": 100} if event.kind == "completed" else {}
        self._show(str(batch.id), f"{batch.model}: {event.kind} {detail}".rstrip(), figures)

    def _show_features(self, batch: "Batch", figures: dict[str, Any]) -> None:
        self._show(str(batch.id), f"{batch.model}: features {figures['part']}", figures)

    def _show(self, batch: str, text: str, figures: dict[str, Any]) -> None:
        line = f"{text}  {describe_solve(figures)}".rstrip()
        if batch not in self._tasks:
            self._tasks[batch] = self._progress.add_task(line, total=100)
        self._progress.update(self._tasks[batch], completed=figures.get("percent"), description=line)
        if self._progress.disable and self._lines.get(batch) != line:
            self._lines[batch] = line
            self._context.note(line)


def _is_represented(figures: dict[str, Any]) -> bool:
    """Return whether these figures are about the features of appended rows, not about the solver."""
    return figures.get("step") == "features"


def describe_registration(figures: dict[str, Any]) -> str:
    """Describe how far a registration is in one line. Without figures, return an empty string.

    >>> describe_registration({"step": "features", "part": "part0", "percent": 42.0, "eta_seconds": 31})
    'features part0  42 %  about 31 s left'
    """
    step = " ".join(str(figures[name]) for name in ("step", "part") if figures.get(name))
    return f"{step}  {describe_solve(figures)}".strip()


def describe_solve(figures: dict[str, Any]) -> str:
    """Describe the solver's progress in one line: gradient norm ‖g‖, distance Δ and its target Δ*.

    >>> describe_solve({"gradient_norm": 1e-3, "distance": 2e-2, "target": 1e-4, "eta_seconds": 3})
    '‖g‖ 1.0e-03  Δ 2.0e-02  → Δ* 1.0e-04  about 3 s left'
    """
    parts = []
    if (gradient := figures.get("gradient_norm")) is not None:
        parts.append(f"‖g‖ {gradient:.1e}")
    if (distance := figures.get("distance")) is not None:
        parts.append(f"Δ {distance:.1e}")
    if (target := figures.get("target")) is not None:
        parts.append(f"→ Δ* {target:.1e}")
    if (percent := figures.get("percent")) is not None:
        parts.append(f"{percent:.0f} %")
    if (left := figures.get("eta_seconds")) is not None:
        parts.append(f"about {left:.0f} s left")
    return "  ".join(parts)
