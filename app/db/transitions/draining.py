"""What happens to the job of a worker that is asked to stop."""

from datetime import datetime

from sqlalchemy import delete
from sqlalchemy.orm import Session

from app.db.states import BatchState, JobState
from app.db.tables import Job, OutboxMessage
from app.db.transitions.attempts import _follow


def hand_back(session: Session, job: Job, now: datetime) -> None:
    """running → waiting, at once and not counted: nothing failed, however often workers are replaced."""
    session.execute(delete(OutboxMessage).where(OutboxMessage.job_id == job.id))
    job.state, job.token, job.run_after, job.attempt = JobState.WAITING, None, now, job.attempt - 1
    _follow(session, job, BatchState.SEALED, now)
