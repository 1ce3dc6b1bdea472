"""What SQL remembers of the batches: who ran when, and that each ran alone on its model."""

from datetime import datetime
from itertools import groupby, pairwise
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import select

from app.bootstrap import Services
from app.db.states import BatchState
from app.db.tables import Batch, BatchEvent

ENDS = ("completed", "failed", "held")


class Run(NamedTuple):
    """One attempt at one batch, from its claim until it ended or was given up."""

    batch: UUID
    attempt: int
    begun: datetime
    ended: datetime

    def overlaps(self, other: "Run") -> bool:
        return self.begun < other.ended and other.begun < self.ended


def runs(services: Services) -> list[Run]:
    found = []
    for batch, events in _by_batch(services).items():
        running: BatchEvent | None = None
        for event in events:
            state = event.data.get("state") if event.kind == "state" else None
            if running is not None and (state is not None or event.kind in ENDS):
                found.append(Run(batch, running.data["attempt"], running.at, event.at))
                running = None
            if state == BatchState.RUNNING:
                running = event
    return found


def _by_batch(services: Services) -> dict[UUID, list[BatchEvent]]:
    found: dict[UUID, list[BatchEvent]] = {}
    with services.database.reading() as session:
        for event in session.scalars(select(BatchEvent).order_by(BatchEvent.id)):
            found.setdefault(event.batch_id, []).append(event)
    return found


def most_at_once(found: list[Run]) -> int:
    """Of how many batches attempts ran beside each other."""
    return max(
        (len({other.batch for other in found if other.begun <= run.begun < other.ended}) for run in found),
        default=0,
    )


def check_one_batch_at_a_time(services: Services) -> None:
    """In the order in which things happened to a model, its batches come one after the other, whole."""
    with services.database.reading() as session:
        happened = session.execute(
            select(Batch.model_id, BatchEvent.batch_id)
            .join(BatchEvent, BatchEvent.batch_id == Batch.id)
            .order_by(Batch.model_id, BatchEvent.id)
        ).all()
        batches = session.scalars(select(Batch).order_by(Batch.model_id, Batch.sealed_at)).all()
    stretches = [batch for (_, batch), _ in groupby(happened, key=tuple)]
    assert len(stretches) == len(set(stretches)) == len(batches)
    for earlier, later in pairwise(batches):
        if earlier.model_id == later.model_id:
            assert earlier.completed_at is not None
            assert earlier.completed_at <= later.sealed_at


def check_attempts_follow_each_other(services: Services) -> None:
    for batch, events in _by_batch(services).items():
        claimed = [e.data["attempt"] for e in events if e.data.get("state") == BatchState.RUNNING]
        assert claimed == sorted(set(claimed)), f"{batch}: {claimed}"
        published = [event for event in events if event.kind == "published"]
        assert len(published) == 1, f"{batch}: published {len(published)} times"
