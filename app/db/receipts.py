"""How long a receipt can be had, and the end of its salt."""

from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Select, update
from sqlalchemy.orm import Session

from app.db.policy import Policy
from app.db.tables import Batch, Task, TaskSubject


def until(batch: Batch, completed: datetime) -> datetime:
    return completed + timedelta(days=Policy.model_validate(batch.policy).receipt_days)


def destroy_salts(session: Session, tasks: Select[UUID]) -> int:
    """From here on nobody can link these subjects to a certificate, or try a guess; how many tasks it was.

    The leaves stay: without their salts they tell nothing, and the receipts of others lead past them.
    """
    ended = update(Task).where(Task.id.in_(tasks)).values(receipts_until=None).returning(Task.id)
    ids = session.scalars(ended.execution_options(synchronize_session=False)).all()
    session.execute(
        update(TaskSubject)
        .where(TaskSubject.task_id.in_(ids))
        .values(salt=None, commitment=None, no_data=None)
        .execution_options(synchronize_session=False)
    )
    return len(ids)
