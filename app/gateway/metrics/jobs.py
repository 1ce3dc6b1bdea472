"""Metrics of jobs, workers and the dispatcher."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

from prometheus_client.metrics_core import Metric as MetricFamily
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.states import FailureCause, JobKind, JobState
from app.db.tables import Job, Lease, OutboxMessage, WorkerSeen
from app.gateway.metrics.catalogue import Metric, gauge, labelled_gauge, seconds_since

UNFINISHED = (JobState.WAITING, JobState.QUEUED, JobState.RUNNING)


def collect_jobs(session: Session, moment: datetime, *, dead_after: timedelta) -> Iterator[MetricFamily]:
    """Report jobs, their failures, and who works on them. A worker counts if seen within `dead_after`."""
    yield _count_jobs(session)
    yield _count_failures(session)
    due = select(func.min(Job.run_after)).where(Job.state.in_((JobState.WAITING, JobState.QUEUED)))
    yield gauge(Metric.JOBS_OLDEST_DUE_SECONDS, seconds_since(session.scalar(due), moment))
    faulty = select(func.min(Job.faulty_since)).where(Job.state.in_(UNFINISHED))
    yield gauge(Metric.JOBS_DELAYED_SECONDS, seconds_since(session.scalar(faulty), moment))
    unsent = session.scalar(select(func.count()).select_from(OutboxMessage)) or 0
    yield gauge(Metric.OUTBOX_MESSAGES, unsent)
    heartbeat = session.scalar(select(func.min(Job.heartbeat_at)).where(Job.state == JobState.RUNNING))
    yield gauge(Metric.ATTEMPT_SILENCE_SECONDS, seconds_since(heartbeat, moment))
    workers = session.scalar(select(func.count()).where(WorkerSeen.seen_at > moment - dead_after)) or 0
    yield gauge(Metric.WORKERS, workers)
    leases = session.scalar(select(func.count()).where(Lease.expires_at > moment)) or 0
    yield gauge(Metric.DISPATCHER_ACTIVE, int(leases > 0))


def _count_jobs(session: Session) -> MetricFamily:
    rows = session.execute(
        select(Job.kind, Job.state, func.count())
        .where(Job.state.in_(UNFINISHED))
        .group_by(Job.kind, Job.state)
    ).all()
    counts = {(str(kind), str(state)): 0 for kind in JobKind for state in UNFINISHED}
    counts |= {(str(kind), str(state)): count for kind, state, count in rows}
    return labelled_gauge(Metric.JOBS, counts)


def _count_failures(session: Session) -> MetricFamily:
    rows = session.execute(
        select(Job.kind, Job.state, Job.failure_cause).where(
            Job.state.in_((*UNFINISHED, JobState.FAILED)), Job.error.is_not(None)
        )
    ).all()
    counts = Counter(
        (str(kind), str(state), str(cause or FailureCause.UNEXPECTED)) for kind, state, cause in rows
    )
    return labelled_gauge(Metric.JOBS_FAILING, counts)
