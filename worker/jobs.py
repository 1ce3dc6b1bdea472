"""Which function runs each kind of job."""

from collections.abc import Mapping
from typing import Protocol
from uuid import UUID

from app.db.states import JobKind
from app.services import Services
from worker.batch.run import append, unlearn
from worker.distributed.rank0 import Team
from worker.registration.advice_job import advise_model
from worker.registration.register import register
from worker.reports.evaluation import evaluate


class JobFunction(Protocol):
    """Runs one attempt at a job and records its outcome in SQL. Without a team it works on one rank."""

    def __call__(self, services: Services, job_id: UUID, token: UUID, team: Team | None = None) -> None: ...


def audit(services: Services, job_id: UUID, token: UUID, team: Team | None = None) -> None:
    """Run a replay audit.

    The module is imported on demand: its statistics libraries take a third of the start-up time, and every
    attempt is a new process.
    """
    from worker.reports import audit as replay_audit

    replay_audit.audit(services, job_id, token, team)


JOBS: Mapping[JobKind, JobFunction] = {
    JobKind.REGISTER: register,
    JobKind.UNLEARN: unlearn,
    JobKind.APPEND: append,
    JobKind.EVALUATE: evaluate,
    JobKind.AUDIT: audit,
    JobKind.ADVISE: advise_model,
}
