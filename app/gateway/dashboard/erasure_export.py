"""The list of requests as rows of a CSV file, read page by page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from sqlalchemy import Row, Select, select
from sqlalchemy.orm import Session

from app.core.clock import now
from app.db.states import BatchState, TaskState
from app.db.tables import Batch, Erasure, Model, Task
from app.gateway.erasures import service
from app.services import Services

COLUMNS = (
    "request",
    "reference",
    "state",
    "on_hold",
    "people",
    "models",
    "received_at",
    "due_at",
    "extension_reason",
    "completed_at",
    "late_days",
    "jurisdiction",
    "reason",
)
ROWS_PER_READ = 1000
TASKS_PER_FETCH = 1000
_SELECTED = (
    Erasure.id,
    Erasure.reference,
    Erasure.subjects,
    Erasure.received_at,
    Erasure.due_at,
    Erasure.extension_reason,
    Erasure.jurisdiction,
    Erasure.reason,
    Erasure.created_at,
)


@dataclass
class _Tasks:
    """What the export shows of the tasks of one request."""

    models: list[str] = field(default_factory=list)
    states: set[TaskState] = field(default_factory=set)
    on_hold: bool = False
    last_completed_at: datetime | None = None


def export_rows(services: Services, query: Select[Erasure]) -> Iterator[Sequence[object]]:
    """Yield the requests that a query selects, newest first, as rows under `COLUMNS`.

    A page takes two statements, however many requests and models it has, and a read of its own: a slow
    client keeps none open. Columns are read rather than objects, which take several times as long.
    """
    page_query = query.with_only_columns(*_SELECTED).order_by(Erasure.id.desc()).limit(ROWS_PER_READ)
    after = page_query
    while True:
        with services.database.reading() as session:
            page = session.execute(after).all()
            tasks = _read_tasks(session, [row.id for row in page])
        for row in page:
            yield _describe(row, tasks.get(row.id, _Tasks()))
        if len(page) < ROWS_PER_READ:
            return
        after = page_query.where(Erasure.id < page[-1].id)


def _read_tasks(session: Session, erasure_ids: Sequence[UUID]) -> Mapping[UUID, _Tasks]:
    """Summarise the tasks of each request.

    They are fetched in portions and each name is kept once, because a page may have a million tasks.
    """
    if not erasure_ids:
        return {}
    rows = session.execute(
        select(Task.erasure_id, Task.state, Task.completed_at, Model.name, Batch.state)
        .join(Model, Model.id == Task.model_id)
        .outerjoin(Batch, Batch.id == Task.batch_id)
        .where(Task.erasure_id.in_(erasure_ids))
        .execution_options(yield_per=TASKS_PER_FETCH)
    )
    names: dict[str, str] = {}
    summaries: dict[UUID, _Tasks] = {}
    for erasure_id, state, completed_at, name, batch_state in rows:
        tasks = summaries.setdefault(erasure_id, _Tasks())
        tasks.models.append(names.setdefault(name, name))
        tasks.states.add(TaskState(state))
        tasks.on_hold |= batch_state == BatchState.HELD
        if completed_at is not None:
            tasks.last_completed_at = max(tasks.last_completed_at or completed_at, completed_at)
    return summaries


def _describe(row: Row[*tuple[object, ...]], tasks: _Tasks) -> Sequence[object]:
    progress = service.derive_progress(
        tasks.states,
        created_at=row.created_at,
        due_at=row.due_at,
        last_completed_at=tasks.last_completed_at,
        at=now(),
    )
    return (
        row.id,
        row.reference,
        progress.state,
        tasks.on_hold,
        row.subjects,
        " ".join(sorted(tasks.models)),
        row.received_at,
        row.due_at,
        row.extension_reason,
        progress.completed_at,
        progress.late_days,
        row.jurisdiction,
        row.reason,
    )
