"""The collector behind `/metrics`. It reads SQL and Redis at each scrape.

Every gateway reports the same values, and a restart loses none.

No metric is about a single person, and none is an exact function of the training data: measurements such as Δ
stay in the evidence. A release by unlearning implies Δ ≤ Δ*. A release that had to retrain instead shows in
`lethe_releases_total`, and a batch that could do neither in `lethe_batches_held`.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial

from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector
from redis.exceptions import RedisError
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.core import logging
from app.core.clock import now
from app.db import log_store
from app.db.states import BatchState, HeldReason
from app.db.tables import Batch, Certificate, LogHead
from app.db.webhooks import DeliveryState, WebhookDelivery
from app.gateway.metrics import durations, jobs, models
from app.gateway.metrics.catalogue import Metric, counter_by, gauge, gauge_by, seconds_since
from app.services import Services
from lethe.certificate import merkle
from lethe.certificate.errors import LogProofInvalid
from lethe.certificate.tree_head import parse_tree_head

log = logging.get_logger("metrics")
MECHANISMS = ("tr", "retrain", "discarded")


class ServiceCollector(Collector):
    """Collects the metrics of the whole deployment, all tenants included."""

    def __init__(self, services: Services, clock: Callable[[], datetime] = now) -> None:
        self._services, self._now = services, clock

    def collect(self) -> Iterator[MetricFamily]:
        """Yield every metric that can be read now. A part that does not answer is reported as down."""
        up = {}
        for part, read in (("database", self._read_sql), ("redis", self._read_redis)):
            try:
                families = list(read())
            except (SQLAlchemyError, RedisError) as problem:
                log.warning("metrics unavailable", part=part, problem=type(problem).__name__)
                up[part] = 0.0
            else:
                up[part] = 1.0
                yield from families
        yield gauge_by(Metric.PART_UP, up)

    def _read_redis(self) -> Iterator[MetricFamily]:
        yield gauge(Metric.QUEUE_MESSAGES, self._services.queue.count)

    def _read_sql(self) -> Iterator[MetricFamily]:
        moment, settings = self._now(), self._services.settings
        with self._services.database.reading() as session:
            open_requests = models.open_requests(session, moment)
            yield from collect_requests(open_requests)
            yield from collect_batches(session)
            yield from collect_webhooks(session, moment)
            yield from collect_log(session)
            yield from durations.collect_durations(session, moment)
            yield from jobs.collect_jobs(session, moment, dead_after=timedelta(seconds=settings.dead_after))
            yield from models.collect_models(session, open_requests)


def collect_requests(groups: Sequence[models.OpenRequests]) -> Iterator[MetricFamily]:
    """Count open requests, once for each model they concern. A failed one is still open."""
    counts, failed = dict.fromkeys(models.DUE, 0.0), 0
    for group in groups:
        counts[group.due] += group.count
        failed += group.count if group.failed else 0
    yield gauge_by(Metric.REQUESTS_OPEN, counts)
    yield gauge(Metric.REQUESTS_FAILED, failed)


def collect_batches(session: Session) -> Iterator[MetricFamily]:
    """Count batches by state, batches on hold by reason, and releases by mechanism."""
    rows = session.execute(select(Batch.state, func.count()).group_by(Batch.state)).all()
    states = dict.fromkeys(map(str, BatchState), 0) | {str(state): count for state, count in rows}
    yield gauge_by(Metric.BATCHES, states)
    held = session.execute(
        select(Batch.held_reason, func.count())
        .where(Batch.state == BatchState.HELD)
        .group_by(Batch.held_reason)
    ).all()
    reasons = dict.fromkeys(map(str, HeldReason), 0) | {str(reason): count for reason, count in held}
    yield gauge_by(Metric.BATCHES_HELD, reasons)
    issued = session.execute(
        select(Certificate.mechanism, func.count()).group_by(Certificate.mechanism)
    ).all()
    releases = dict.fromkeys(MECHANISMS, 0) | {str(name): count for name, count in issued}
    yield counter_by(Metric.RELEASES, releases)


def collect_webhooks(session: Session, moment: datetime) -> Iterator[MetricFamily]:
    """Count webhook deliveries that have not succeeded, and report the age of the oldest."""
    open_states = (DeliveryState.PENDING, DeliveryState.DEAD)
    rows = session.execute(
        select(WebhookDelivery.state, func.count())
        .where(WebhookDelivery.state.in_(open_states))
        .group_by(WebhookDelivery.state)
    ).all()
    counts = dict.fromkeys(map(str, open_states), 0) | {str(state): count for state, count in rows}
    yield gauge_by(Metric.WEBHOOK_DELIVERIES, counts)
    oldest = session.scalar(
        select(func.min(WebhookDelivery.created_at)).where(WebhookDelivery.state == DeliveryState.PENDING)
    )
    yield gauge(Metric.WEBHOOK_OLDEST_PENDING_SECONDS, seconds_since(oldest, moment))


def collect_log(session: Session) -> Iterator[MetricFamily]:
    """Report the size of the certificate log and whether it agrees with its signed tree head.

    This is a quick check. An auditor proves consistency with `lethe verify --since`.
    """
    head = log_store.log_head(session)
    certificates = session.scalar(select(func.count()).select_from(Certificate)) or 0
    size = head.size if head is not None else 0
    statements = (head.statements or 0) if head is not None else 0
    complete = size == certificates + statements
    consistent = complete and (head is None or size == 0 or _matches_stored_tree(session, head))
    yield gauge(Metric.LOG_SIZE, size)
    yield gauge(Metric.LOG_CONSISTENT, int(consistent))


def _matches_stored_tree(session: Session, head: LogHead) -> bool:
    try:
        signed = parse_tree_head(head.tree_head)
        root = log_store.over_log(session, partial(merkle.root, head.size))
    except (LogProofInvalid, KeyError):
        return False
    return (signed.size, signed.root) == (head.size, root)
