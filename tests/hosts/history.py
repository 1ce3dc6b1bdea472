"""The history of batches in SQL: which attempts ran when, and whether two overlapped."""

from datetime import datetime
from itertools import groupby, pairwise
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import select

from app.db.states import BatchState
from app.db.tables import Batch, BatchEvent
from app.services import Services

ENDS = ("completed", "failed", "held")


class Run(NamedTuple):
    """One attempt at one batch, from its claim until it ended or was given up."""

    batch: UUID
    attempt: int
    begun: datetime
    ended: datetime

    def overlaps(self, other: "Run") -> bool:
        """Say whether two runs were under way at the same time."""
        return self.begun < other.ended and other.begun < self.ended


def runs(services: Services) -> list[Run]:
    """Return every run of every batch, from the recorded events."""
    ended = []
    for batch, events in _by_batch(services).items():
        running: BatchEvent | None = None
        for event in events:
            state = event.data.get("state") if event.kind == "state" else None
            if running is not None and (state is not None or event.kind in ENDS):
                ended.append(Run(batch, running.data["attempt"], running.at, event.at))
                running = None
            if state == BatchState.RUNNING:
                running = event
    return ended


def _by_batch(services: Services) -> dict[UUID, list[BatchEvent]]:
    events: dict[UUID, list[BatchEvent]] = {}
    with services.database.reading() as session:
        for event in session.scalars(select(BatchEvent).order_by(BatchEvent.id)):
            events.setdefault(event.batch_id, []).append(event)
    return events


def most_at_once(runs: list[Run]) -> int:
    """Return the largest number of batches that ran at the same time."""
    return max(
        (len({other.batch for other in runs if other.begun <= run.begun < other.ended}) for run in runs),
        default=0,
    )


def check_one_batch_at_a_time(services: Services) -> None:
    """Check that the events of a model's batches do not interleave."""
    with services.database.reading() as session:
        events = session.execute(
            select(Batch.model_id, BatchEvent.batch_id)
            .join(BatchEvent, BatchEvent.batch_id == Batch.id)
            .order_by(Batch.model_id, BatchEvent.id)
        ).all()
        batches = session.scalars(select(Batch).order_by(Batch.model_id, Batch.sealed_at)).all()
    sequence = [batch for (_, batch), _ in groupby(events, key=tuple)]
    assert len(sequence) == len(set(sequence)) == len(batches)
    for earlier, later in pairwise(batches):
        if earlier.model_id == later.model_id:
            assert earlier.completed_at is not None
            assert earlier.completed_at <= later.sealed_at


def check_attempts_follow_each_other(services: Services) -> None:
    """Check that attempts have increasing numbers and that each batch was published once."""
    for batch, events in _by_batch(services).items():
        claimed = [e.data["attempt"] for e in events if e.data.get("state") == BatchState.RUNNING]
        assert claimed == sorted(set(claimed)), f"{batch}: {claimed}"
        published = [event for event in events if event.kind == "published"]
        assert len(published) == 1, f"{batch}: published {len(published)} times"
