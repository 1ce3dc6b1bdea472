"""How long batches took in each stage, from the events they left in SQL: the processes are gone.

How long a solve takes depends on the data it is given; the figures are of the last hundred batches together,
and rounded up to 1, 2 or 5 times a power of ten.
"""

import math
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.states import BatchState
from app.db.tables import Batch, BatchEvent
from app.metrics.families import gauge

MOST_BATCHES = 100
RECENT = timedelta(days=7)
QUANTILES = (0.5, 0.95)
KINDS = ("sealed", "state", "step", "published", "completed")


class Event(NamedTuple):
    batch_id: UUID
    at: datetime
    kind: str
    data: dict[str, str]


def stages(session: Session, moment: datetime) -> Iterator[Metric]:
    recent = (
        select(Batch.id)
        .where(Batch.state == BatchState.COMPLETED, Batch.completed_at > moment - RECENT)
        .order_by(Batch.completed_at.desc())
        .limit(MOST_BATCHES)
    )
    rows = session.execute(
        select(BatchEvent.batch_id, BatchEvent.at, BatchEvent.kind, BatchEvent.data)
        .where(BatchEvent.batch_id.in_(recent), BatchEvent.kind.in_(KINDS))
        .order_by(BatchEvent.batch_id, BatchEvent.id)
    ).all()
    took: dict[str, list[float]] = {}
    batches = 0
    for _, events in groupby((Event(*row) for row in rows), key=lambda event: event.batch_id):
        batches += 1
        for stage, seconds in lengths(events):
            took.setdefault(stage, []).append(seconds)
    yield gauge("lethe_recent_batches", "Batches that the stage times are of.", batches)
    family = GaugeMetricFamily(
        "lethe_recent_batch_stage_seconds",
        "Time in each stage, roughly, over the recent batches.",
        labels=["stage", "quantile"],
    )
    for stage, found in sorted(took.items()):
        for share in QUANTILES:
            family.add_metric([stage, str(share)], rough(quantile(found, share)))
    yield family


def lengths(events: Iterable[Event]) -> Iterator[tuple[str, float]]:
    """The stages of one batch; one that an attempt did not live to end is not counted."""
    sealed: datetime | None = None
    since: datetime | None = None
    stage = ""
    for event in events:
        at = event.at
        if event.kind == "sealed":
            sealed, stage, since = at, "wait", at
            continue
        retried = event.kind == "state" and event.data.get("state") != BatchState.RUNNING
        if retried and stage == "wait":  # queued: it still waits
            continue
        if stage and since and not retried:
            yield stage, (at - since).total_seconds()
        stage, since = ("" if event.kind in ("state", "published", "completed") else event.data["step"]), at
        if event.kind == "completed" and sealed is not None:
            yield "total", (at - sealed).total_seconds()


def quantile(values: list[float], share: float) -> float:
    """The smallest value that so many are no larger than.

    >>> quantile([3.0, 1.0, 2.0], 0.5), quantile([3.0, 1.0, 2.0], 0.95)
    (2.0, 3.0)
    """
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def rough(seconds: float) -> float:
    """
    >>> [rough(x) for x in (0.0, 0.3, 1.0, 1.1, 4.0, 600.0)]
    [0.1, 0.5, 1.0, 2.0, 5.0, 1000.0]
    """
    if seconds <= 0.1:
        return 0.1
    power = 10.0 ** math.floor(math.log10(seconds))
    return next(round(step * power, 3) for step in (1, 2, 5, 10) if seconds <= step * power * (1 + 1e-9))
