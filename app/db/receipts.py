"""Receipts: how long they can be fetched, and how their salts are destroyed."""

from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Select, update
from sqlalchemy.orm import Session

from app.core.clock import now
from app.db.key_tables import mark_dirty
from app.db.session import allow_long_statements
from app.db.tables import Batch, Task, TaskSubject
from lethe.policy import Policy


def until(batch: Batch, completed: datetime) -> datetime:
    """Return until when receipts of a batch completed at this time can be fetched."""
    return completed + timedelta(days=Policy.model_validate(batch.policy).receipt_days)


def destroy_salts(session: Session, tasks: Select[UUID]) -> int:
    """Destroy the salts of these tasks and return the number of tasks.

    From then on, nobody can link these people to a certificate or test a guessed identifier. The Merkle
    leaves stay: without their salts they reveal nothing, and the receipts of other people need them. Copies
    in freed pages become unreadable when the data keys are renewed.
    """
    allow_long_statements(session)  # there may be millions of subjects
    ended = update(Task).where(Task.id.in_(tasks)).values(receipts_until=None)
    rows = session.execute(
        ended.returning(Task.id, Task.receipt_key_id).execution_options(synchronize_session=False)
    ).all()
    ids = [task_id for task_id, _ in rows]
    session.execute(
        update(TaskSubject)
        .where(TaskSubject.task_id.in_(ids))
        .values(salt=None, commitment=None, no_data=None, log_index=None)
        .execution_options(synchronize_session=False)
    )
    keyless = update(Task).where(Task.id.in_(ids)).values(receipt_key=None, receipt_key_id=None)
    session.execute(keyless.execution_options(synchronize_session=False))
    mark_dirty(session, {key_id for _, key_id in rows}, now())
    return len(ids)
