"""Figures looked up when someone asks: every gateway gives the same, and no restart loses them.

Nothing here is about a person, and nothing is an exact function of the training data: what was measured on
it, Δ foremost, stays in the evidence. That Δ ≤ Δ* held is what a release by unlearning means; one that had to
retrain instead shows in `lethe_releases_total`, one that could do neither in `lethe_batches_held`.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from redis.exceptions import RedisError
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app import logs
from app.bootstrap import Services
from app.clock import now
from app.db.states import BatchState, HeldReason
from app.db.tables import Batch, Certificate
from app.db.webhooks import DeliveryState, WebhookDelivery
from app.metrics import durations, jobs, merkle_log, models
from app.metrics.families import age, by_label, gauge

log = logs.get("metrics")


class Figures(Collector):
    def __init__(self, services: Services, clock: Callable[[], datetime] = now) -> None:
        self._services, self._now = services, clock

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("lethe_part_up", "Whether a part answers: 1 or 0.", labels=["part"])
        for part, look in (("database", self._from_sql), ("redis", self._from_redis)):
            try:
                found = list(look())
            except (SQLAlchemyError, RedisError) as problem:
                log.warning("no figures", part=part, problem=type(problem).__name__)
                up.add_metric([part], 0)
            else:
                up.add_metric([part], 1)
                yield from found
        yield up

    def _from_redis(self) -> Iterator[Metric]:
        waiting = self._services.queue.count
        yield gauge("lethe_queue_messages", "Messages in the queue, not yet taken.", waiting)

    def _from_sql(self) -> Iterator[Metric]:
        moment, settings = self._now(), self._services.settings
        with self._services.database.reading() as session:
            yield from requests(session, moment)
            yield from batches(session)
            yield from webhooks(session, moment)
            yield from durations.stages(session, moment)
            yield from jobs.figures(session, moment, alive=timedelta(seconds=settings.dead_after))
            yield from models.figures(session, moment)
            yield from merkle_log.figures(session)


def requests(session: Session, moment: datetime) -> Iterator[Metric]:
    """Counted once for each model that they ask to forget someone; a failed one is still open."""
    total, failed = dict.fromkeys(models.DUE, 0), 0
    for found in models.open_requests(session, moment):
        total[found.due] += found.count
        failed += found.count if found.failed else 0
    yield by_label("lethe_requests_open", "Requests not fulfilled, by time to the deadline.", "due", total)
    yield gauge("lethe_requests_failed", "Requests whose batch failed; nobody tries them again.", failed)


def batches(session: Session) -> Iterator[Metric]:
    rows = session.execute(select(Batch.state, func.count()).group_by(Batch.state)).all()
    states = dict.fromkeys(map(str, BatchState), 0) | {str(state): count for state, count in rows}
    yield by_label("lethe_batches", "Batches by state.", "state", states)
    held = session.execute(
        select(Batch.held_reason, func.count())
        .where(Batch.state == BatchState.HELD)
        .group_by(Batch.held_reason)
    ).all()
    reasons = dict.fromkeys(map(str, HeldReason), 0) | {str(reason): count for reason, count in held}
    yield by_label("lethe_batches_held", "Batches that await a decision, by reason.", "reason", reasons)
    made = session.execute(select(Certificate.mechanism, func.count()).group_by(Certificate.mechanism)).all()
    releases = CounterMetricFamily("lethe_releases", "Certified releases.", labels=["mechanism"])
    known = dict.fromkeys(("tr", "retrain", "discarded"), 0) | {str(name): count for name, count in made}
    for mechanism, count in known.items():
        releases.add_metric([mechanism], count)
    yield releases


def webhooks(session: Session, moment: datetime) -> Iterator[Metric]:
    open_states = (DeliveryState.PENDING, DeliveryState.DEAD)
    rows = session.execute(
        select(WebhookDelivery.state, func.count())
        .where(WebhookDelivery.state.in_(open_states))
        .group_by(WebhookDelivery.state)
    ).all()
    counts = dict.fromkeys(map(str, open_states), 0) | {str(state): count for state, count in rows}
    yield by_label("lethe_webhook_deliveries", "Deliveries not made: pending or given up.", "state", counts)
    oldest = session.scalar(
        select(func.min(WebhookDelivery.created_at)).where(WebhookDelivery.state == DeliveryState.PENDING)
    )
    yield gauge(
        "lethe_webhook_oldest_pending_seconds", "Age of the oldest pending delivery.", age(oldest, moment)
    )
