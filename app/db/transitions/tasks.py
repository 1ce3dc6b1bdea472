"""State changes of tasks that no batch has taken yet."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.db.session import allow_long_statements
from app.db.states import TaskState
from app.db.tables import Model, Task, TaskSubject
from app.db.transitions.data_keys import forget_subject_keys
from app.db.webhooks import NoticeKind, add_notice


def withdraw_tasks(session: Session, erasure_id: UUID, model: str | None = None) -> Sequence[UUID]:
    """Withdraw the tasks of an erasure that no batch has taken yet, and return their ids.

    Pass `model` to withdraw the task on that model only. The identifiers are deleted with the tasks.
    """
    query = update(Task).where(
        Task.erasure_id == erasure_id, Task.state == TaskState.RECEIVED, Task.batch_id.is_(None)
    )
    if model is not None:
        query = query.where(Task.model_id.in_(select(Model.id).where(Model.name == model)))
    ended = query.values(state=TaskState.WITHDRAWN).returning(Task.id, Task.subject_key_id)
    keys = {row[0]: row[1] for row in session.execute(ended.execution_options(synchronize_session=False))}
    withdrawn = list(keys)
    allow_long_statements(session)  # there may be millions of subjects
    session.execute(
        update(TaskSubject).where(TaskSubject.task_id.in_(withdrawn)).values(identifier=None, person=None)
    )
    forget_subject_keys(session, keys)
    if withdrawn:
        add_notice(session, NoticeKind.WITHDRAWN, erasure_id)
    return withdrawn
