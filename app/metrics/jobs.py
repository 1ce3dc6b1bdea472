"""Who works, who waits, what fails."""

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.states import JobKind, JobState
from app.db.tables import Job, Lease, OutboxMessage, WorkerSeen
from app.metrics.families import age, gauge

UNDER_WAY = (JobState.WAITING, JobState.QUEUED, JobState.RUNNING)
_ERROR = re.compile(r"([A-Z]\w{1,60}) in \w+")


def figures(session: Session, moment: datetime, *, alive: timedelta) -> Iterator[Metric]:
    yield from _jobs(session)
    yield from _failures(session)
    due = select(func.min(Job.run_after)).where(Job.state.in_((JobState.WAITING, JobState.QUEUED)))
    late = age(session.scalar(due), moment)
    yield gauge("lethe_jobs_oldest_due_seconds", "How long the oldest job waits for a worker.", late)
    sent = session.scalar(select(func.count()).select_from(OutboxMessage)) or 0
    yield gauge("lethe_outbox_messages", "Messages the dispatcher has yet to send.", sent)
    beat = session.scalar(select(func.min(Job.heartbeat_at)).where(Job.state == JobState.RUNNING))
    text = "Time since the last heartbeat of the quietest running attempt."
    yield gauge("lethe_attempt_silence_seconds", text, age(beat, moment))
    workers = session.scalar(select(func.count()).where(WorkerSeen.seen_at > moment - alive)) or 0
    yield gauge("lethe_workers", "Workers seen lately.", workers)
    leases = session.scalar(select(func.count()).where(Lease.expires_at > moment)) or 0
    yield gauge("lethe_dispatcher_active", "Whether a dispatcher holds the lease: 1 or 0.", int(leases > 0))


def _jobs(session: Session) -> Iterator[Metric]:
    rows = session.execute(
        select(Job.kind, Job.state, func.count())
        .where(Job.state.in_(UNDER_WAY))
        .group_by(Job.kind, Job.state)
    ).all()
    counts = {(str(kind), str(state)): 0 for kind in JobKind for state in UNDER_WAY}
    counts |= {(kind, state): count for kind, state, count in rows}
    family = GaugeMetricFamily("lethe_jobs", "Jobs under way.", labels=["kind", "state"])
    for labels, count in counts.items():
        family.add_metric(labels, count)
    yield family


def _failures(session: Session) -> Iterator[Metric]:
    rows = session.execute(
        select(Job.kind, Job.state, Job.error).where(
            Job.state.in_((*UNDER_WAY, JobState.FAILED)), Job.error.is_not(None)
        )
    ).all()
    counts = Counter((kind, state, reason(str(error))) for kind, state, error in rows)
    family = GaugeMetricFamily(
        "lethe_jobs_failing",
        "Jobs that failed, or whose latest attempt did.",
        labels=["kind", "state", "reason"],
    )
    for labels, count in counts.items():
        family.add_metric(labels, count)
    yield family


def reason(error: str) -> str:
    """One of few words: a label must not grow with what happens.

    >>> reason("the worker went silent"), reason("the worker process ended: killed by SIGKILL")
    ('silent', 'process_ended')
    >>> reason("TimeoutError in _empty_wal"), reason("the signing key file is missing")
    ('TimeoutError', 'other')
    """
    if error == "the worker went silent":
        return "silent"
    if error.startswith("the worker process ended"):
        return "process_ended"
    named = _ERROR.fullmatch(error)
    return named[1] if named else "other"
