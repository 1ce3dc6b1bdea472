"""How long recent batches spent in each stage, computed from their events in SQL.

The duration of a solve depends on the data. The values are therefore taken over up to a hundred batches
together, and rounded up to 1, 2 or 5 times a power of ten.
"""

import math
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from prometheus_client.metrics_core import Metric as MetricFamily
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.states import BatchState, EventKind
from app.db.tables import Batch, BatchEvent
from app.gateway.metrics.catalogue import Metric, gauge, labelled_gauge

MAX_BATCHES = 100
RECENT = timedelta(days=7)
QUANTILES = (0.5, 0.95)
KINDS = (EventKind.SEALED, EventKind.STATE, EventKind.STEP, EventKind.PUBLISHED, EventKind.COMPLETED)


class Event(NamedTuple):
    """An event of a batch, as far as durations need it."""

    batch_id: UUID
    at: datetime
    kind: str
    data: dict[str, str]


def collect_durations(session: Session, moment: datetime) -> Iterator[MetricFamily]:
    """Report quantiles of the time in each stage, over the batches completed in the past week."""
    recent = (
        select(Batch.id)
        .where(Batch.state == BatchState.COMPLETED, Batch.completed_at > moment - RECENT)
        .order_by(Batch.completed_at.desc())
        .limit(MAX_BATCHES)
    )
    rows = session.execute(
        select(BatchEvent.batch_id, BatchEvent.at, BatchEvent.kind, BatchEvent.data)
        .where(BatchEvent.batch_id.in_(recent), BatchEvent.kind.in_(KINDS))
        .order_by(BatchEvent.batch_id, BatchEvent.id)
    ).all()
    durations: dict[str, list[float]] = {}
    batches = 0
    for _, events in groupby((Event(*row) for row in rows), key=lambda event: event.batch_id):
        batches += 1
        for stage, seconds in stage_durations(events):
            durations.setdefault(stage, []).append(seconds)
    yield gauge(Metric.RECENT_BATCHES, batches)
    yield labelled_gauge(
        Metric.STAGE_SECONDS,
        {
            (stage, str(share)): round_up(quantile(seconds, share))
            for stage, seconds in sorted(durations.items())
            for share in QUANTILES
        },
    )


def stage_durations(events: Iterable[Event]) -> Iterator[tuple[str, float]]:
    """Yield each stage of one batch with its seconds. Stages cut off by a failed attempt are left out."""
    sealed_at: datetime | None = None
    started_at: datetime | None = None
    stage = ""
    for event in events:
        if event.kind == EventKind.SEALED:
            sealed_at, stage, started_at = event.at, "wait", event.at
            continue
        stopped = event.kind == EventKind.STATE and event.data.get("state") != BatchState.RUNNING
        if stopped and stage == "wait":  # queued, and still waiting for a worker
            continue
        if stage and started_at and not stopped:
            yield stage, (event.at - started_at).total_seconds()
        stage = event.data["step"] if event.kind == EventKind.STEP else ""
        started_at = event.at
        if event.kind == EventKind.COMPLETED and sealed_at is not None:
            yield "total", (event.at - sealed_at).total_seconds()


def quantile(values: list[float], share: float) -> float:
    """Return the smallest value that is at least as large as this share of the values.

    >>> quantile([3.0, 1.0, 2.0], 0.5), quantile([3.0, 1.0, 2.0], 0.95)
    (2.0, 3.0)
    """
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def round_up(seconds: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten, at least 0.1.

    >>> [round_up(x) for x in (0.0, 0.3, 1.0, 1.1, 4.0, 600.0)]
    [0.1, 0.5, 1.0, 2.0, 5.0, 1000.0]
    """
    if seconds <= 0.1:
        return 0.1
    power = 10.0 ** math.floor(math.log10(seconds))
    return next(round(step * power, 3) for step in (1, 2, 5, 10) if seconds <= step * power * (1 + 1e-9))
