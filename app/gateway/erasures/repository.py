"""SQL queries on erasures and their tasks."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import Row, Select, func, select, update
from sqlalchemy.orm import Session

from app.db.states import SubjectOutcome, TaskState
from app.db.tables import Batch, DrawRecord, Erasure, Model, Task, TaskSubject, Version, task_is_open

TaskRow = Row[Task, str, int, UUID | None, Batch | None, UUID | None]


def of_tenant(tenant_id: UUID) -> Select[Erasure]:
    """Select the erasures of a tenant."""
    return select(Erasure).where(Erasure.tenant_id == tenant_id)


def filtered(
    tenant_id: UUID,
    *,
    state: TaskState | None,
    model: str | None,
    reference: str | None,
    overdue_at: datetime | None,
    all_pages: bool = False,
) -> Select[Erasure]:
    """Select erasures with this reference that have a task in `state` on `model`.

    With `overdue_at`, select only open erasures whose deadline lies before that time. Pass `all_pages` to
    read every page of the result: the query then looks at each erasure once over all pages.
    """
    query = of_tenant(tenant_id)
    if reference is not None:
        query = query.where(Erasure.reference == reference)
    if state is None and model is None and overdue_at is None:
        return query
    task = select(Task.erasure_id)
    if state is not None:
        task = task.where(Task.state == state)
    if model is not None:
        own = select(Model.id).where(Model.tenant_id == tenant_id, Model.name == model)
        task = task.where(Task.model_id == own.scalar_subquery())
    if overdue_at is not None:
        task = task.where(task_is_open(), Task.due_at < overdue_at)
    if all_pages or (model is None and overdue_at is None):  # many match: look from each to its tasks
        return query.where(task.where(Task.erasure_id == Erasure.id).exists())
    return query.where(Erasure.id.in_(task))  # few match: look from the tasks to their erasures


def extend(session: Session, erasure: Erasure, *, due_at: datetime, reason: str, at: datetime) -> bool:
    """Set a later deadline.

    Return False if it was extended before: only the first of two requests succeeds.
    """
    extended = session.scalar(
        update(Erasure)
        .where(Erasure.id == erasure.id, Erasure.extended_at.is_(None))
        .values(due_at=due_at, extended_at=at, extension_reason=reason)
        .returning(Erasure.id)
    )
    if extended is not None:
        session.execute(update(Task).where(Task.erasure_id == erasure.id).values(due_at=due_at))
        session.refresh(erasure)
    return extended is not None


def by_id(session: Session, tenant_id: UUID, erasure_id: UUID) -> Erasure | None:
    """Return an erasure of the tenant, or None."""
    return session.scalar(of_tenant(tenant_id).where(Erasure.id == erasure_id))


def tasks_by_erasure(session: Session, erasure_ids: Sequence[UUID]) -> Mapping[UUID, Sequence[TaskRow]]:
    """Return the tasks of each erasure, by model name.

    Each row has the task, its model's name, the version and the certificate of its batch, the batch itself,
    and the batch's id again if it has a draw that is not published.
    """
    rows = session.execute(
        select(Task, Model.name, Version.number, Version.certificate_id, Batch, DrawRecord.batch_id)
        .join(Model, Model.id == Task.model_id)
        .outerjoin(Version, Version.batch_id == Task.batch_id)
        .outerjoin(Batch, Batch.id == Task.batch_id)
        .outerjoin(DrawRecord, DrawRecord.batch_id == Task.batch_id)
        .where(Task.erasure_id.in_(erasure_ids))
        .order_by(Model.name)
    )
    tasks: dict[UUID, list[TaskRow]] = defaultdict(list)
    for row in rows:
        tasks[row[0].erasure_id].append(row)
    return tasks


def outcomes_by_task(
    session: Session, erasure_ids: Sequence[UUID]
) -> Mapping[UUID, Mapping[SubjectOutcome, int]]:
    """Count the subjects of each task by outcome."""
    rows = session.execute(
        select(TaskSubject.task_id, TaskSubject.outcome, func.count())
        .join(Task, Task.id == TaskSubject.task_id)
        .where(Task.erasure_id.in_(erasure_ids), TaskSubject.outcome.is_not(None))
        .group_by(TaskSubject.task_id, TaskSubject.outcome)
    )
    counts: dict[UUID, dict[SubjectOutcome, int]] = defaultdict(dict)
    for task_id, outcome, count in rows:
        counts[task_id][SubjectOutcome(str(outcome))] = count
    return counts


def people_by_outcome(session: Session, erasure_id: UUID) -> dict[str, int]:
    """Count the people of a request by outcome, on the models whose batch is completed.

    Someone with two outcomes on two models counts in both.
    """
    rows = session.execute(
        select(TaskSubject.outcome, func.count(TaskSubject.ordinal.distinct()))
        .join(Task, Task.id == TaskSubject.task_id)
        .where(
            Task.erasure_id == erasure_id,
            Task.state == TaskState.COMPLETED,
            Task.batch_id.is_not(None),
            TaskSubject.outcome.is_not(None),
        )
        .group_by(TaskSubject.outcome)
        .order_by(TaskSubject.outcome)
    )
    return {str(outcome): count for outcome, count in rows}
