"""The figures of the monthly report for the privacy officer.

They come from the batches, certificates and reports of one month, so the cost depends on what happened in
that month and not on how many requests there are. The report names no person and repeats no text that someone
wrote about a request.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, Subquery, case, func, or_, select
from sqlalchemy.orm import Session

from app.db.states import BatchState, EventKind, HeldReason, ModelState, ReportKind, TaskState
from app.db.tables import Batch, BatchEvent, Certificate, Erasure, Model, Report, Task
from app.gateway.dashboard.certificate_pages import read_statement
from app.gateway.erasures.deadlines import days_late, months_later
from lethe.certificate.statement import AnyPredicate

MAX_ROWS = 200
_ENDED = (TaskState.COMPLETED, TaskState.WITHDRAWN)
_CLOCK_TOLERANCE = timedelta(days=1)
HELD_BECAUSE: Mapping[str, str] = {
    HeldReason.NOT_CERTIFIABLE: "it could not be certified",
    HeldReason.BUDGET: "the privacy budget was used up",
    HeldReason.QUALITY_GATE: "the new version scored too low",
    HeldReason.CANCELLED: "someone cancelled it",
    HeldReason.UNPUBLISHED: "the new version could not be published",
}


@dataclass(frozen=True)
class Month:
    """A calendar month in UTC."""

    year: int
    number: int

    @property
    def start(self) -> datetime:
        """The first moment of the month."""
        return datetime(self.year, self.number, 1, tzinfo=UTC)

    @property
    def end(self) -> datetime:
        """The first moment of the next month."""
        return months_later(self.start, 1)

    @property
    def name(self) -> str:
        """The name for people, such as "January 2027"."""
        return f"{self.start:%B %Y}"

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.number:02d}"

    def before(self) -> "Month":
        """Return the month before this one."""
        last = self.start - timedelta(days=1)
        return Month(last.year, last.month)

    def contains(self, column: ColumnElement[datetime]) -> ColumnElement[bool]:
        """Return the SQL condition that a time lies in this month."""
        return (column >= self.start) & (column < self.end)


@dataclass(frozen=True)
class LateRequest:
    """A request that was completed after its deadline in this month, or is still open after it."""

    id: UUID
    due_at: datetime
    completed_at: datetime | None
    days: int
    because: str


@dataclass(frozen=True)
class Requests:
    """What happened to requests in a month. `late` lists at most `MAX_ROWS` of the late ones."""

    received: int
    completed: int
    in_time: int
    extended: int
    late: Sequence[LateRequest]
    overdue: Sequence[LateRequest]

    @property
    def late_count(self) -> int:
        """How many requests were completed after their deadline."""
        return self.completed - self.in_time


@dataclass(frozen=True)
class Release:
    """A release of the month."""

    certificate_id: UUID
    mechanism: str
    predicate: AnyPredicate


@dataclass(frozen=True)
class Budget:
    """The privacy budget of a model at the end of the month."""

    model: str
    epsilon: float | None
    cap: float | None
    assurance: str
    releases: int


@dataclass(frozen=True)
class Audit:
    """An audit of the month."""

    model: str
    version: int
    at: datetime
    verdict: str


def requests_of(session: Session, tenant_id: UUID, month: Month, at: datetime) -> Requests:
    """Return the figures about requests. `at` is the moment up to which open requests count as overdue."""
    ended = _completed_in(tenant_id, month)
    in_time = case((ended.c.completed_at <= ended.c.due_at, 1), else_=0)
    completed, met, extended = session.execute(
        select(
            func.count(), func.coalesce(func.sum(in_time), 0), func.count(ended.c.extended_at)
        ).select_from(ended)
    ).one()
    late = _late_rows(session, ended)
    overdue = _overdue(session, tenant_id, min(at, month.end))
    reasons = _reasons(session, [row.id for row in (*late, *overdue)][: 2 * MAX_ROWS])
    # An id contains the time at which a request was entered, which is never before it was received.
    entered = UUID(int=int((month.start - _CLOCK_TOLERANCE).timestamp() * 1000) << 80)
    received = session.scalar(
        select(func.count())
        .select_from(Erasure)
        .where(
            Erasure.tenant_id == tenant_id,
            Erasure.id > entered,
            month.contains(Erasure.received_at),  # type: ignore[arg-type]
        )
    )
    return Requests(
        received=received or 0,
        completed=completed,
        in_time=met,
        extended=extended,
        late=[_late(row, row.completed_at, reasons) for row in late],
        overdue=[_late(row, at, reasons, still_open=True) for row in overdue],
    )


@dataclass(frozen=True)
class _Row:
    id: UUID
    due_at: datetime
    created_at: datetime
    completed_at: datetime


def _late_rows(session: Session, ended: Subquery) -> list[_Row]:
    """Return the requests that were completed after their deadline, oldest deadline first."""
    columns = (ended.c.id, ended.c.due_at, ended.c.created_at, ended.c.completed_at)
    rows = session.execute(
        select(*columns).where(ended.c.completed_at > ended.c.due_at).order_by(ended.c.due_at).limit(MAX_ROWS)
    )
    return [_Row(*row) for row in rows]


def _completed_in(tenant_id: UUID, month: Month) -> Subquery:
    """Select the requests whose last task was completed in the month."""
    in_batches = (
        select(Task.erasure_id)
        .join(Batch, Batch.id == Task.batch_id)
        .join(Model, Model.id == Batch.model_id)
        .where(Model.tenant_id == tenant_id, month.contains(Batch.completed_at))  # type: ignore[arg-type]
    )
    # A model that was retired before it was ready completes its requests without a batch.
    without_batch = (
        select(Task.erasure_id)
        .join(Model, Model.id == Task.model_id)
        .where(
            Model.tenant_id == tenant_id,
            Model.state == ModelState.RETIRED,
            Task.state == TaskState.COMPLETED,
            Task.batch_id.is_(None),
            month.contains(Task.completed_at),  # type: ignore[arg-type]
        )
    )
    last = func.max(Task.completed_at)
    is_open = func.sum(case((Task.state.in_(_ENDED), 0), else_=1))
    return (
        select(
            Erasure.id, Erasure.due_at, Erasure.created_at, Erasure.extended_at, last.label("completed_at")
        )
        .join(Task, Task.erasure_id == Erasure.id)
        .where(or_(Erasure.id.in_(in_batches), Erasure.id.in_(without_batch)))
        .group_by(Erasure.id, Erasure.due_at, Erasure.created_at, Erasure.extended_at)
        .having(is_open == 0, last >= month.start, last < month.end)
        .subquery()
    )


def _overdue(session: Session, tenant_id: UUID, at: datetime) -> list[_Row]:
    """Return the requests that are open now and were due before `at`, oldest deadline first."""
    rows = session.execute(
        select(Erasure.id, Erasure.due_at, Erasure.created_at)
        .join(Task, Task.erasure_id == Erasure.id)
        .join(Model, Model.id == Task.model_id)
        .where(Model.tenant_id == tenant_id, Task.state.not_in(_ENDED), Task.due_at < at)
        .distinct()
        .order_by(Erasure.due_at)
        .limit(MAX_ROWS)
    )
    return [_Row(row[0], row[1], row[2], at) for row in rows]


def _late(
    row: _Row, ended: datetime, reasons: Mapping[UUID, str], *, still_open: bool = False
) -> LateRequest:
    because = reasons.get(row.id, "It waited for its batch.")
    if row.created_at > row.due_at:
        days = days_late(row.due_at, row.created_at)
        because = f"It was entered {days} {'day' if days == 1 else 'days'} after its deadline."
    return LateRequest(
        row.id, row.due_at, None if still_open else ended, days_late(row.due_at, ended), because
    )


def _reasons(session: Session, erasure_ids: Sequence[UUID]) -> dict[UUID, str]:
    """Say what delayed the batch of each request: a hold, a failure or a late start."""
    if not erasure_ids:
        return {}
    tasks = session.execute(
        select(Task.erasure_id, Batch.id, Batch.state, Batch.sealed_at, Task.due_at)
        .join(Batch, Batch.id == Task.batch_id)
        .where(Task.erasure_id.in_(erasure_ids))
    ).all()
    events: dict[UUID, set[str]] = defaultdict(set)
    stored = session.execute(
        select(BatchEvent.batch_id, BatchEvent.kind, BatchEvent.data).where(
            BatchEvent.batch_id.in_([row[1] for row in tasks]),
            BatchEvent.kind.in_((EventKind.HELD, EventKind.FAILED)),
        )
    )
    for batch_id, kind, data in stored:
        held = kind == EventKind.HELD
        events[batch_id].add(HELD_BECAUSE.get(str(data.get("reason")), "") if held else "failed")
    reasons: dict[UUID, str] = {}
    for erasure_id, batch_id, state, sealed_at, due_at in tasks:
        reasons[erasure_id] = _reason(events[batch_id], state, sealed_after_deadline=sealed_at > due_at)
    return reasons


def _reason(events: set[str], state: str, *, sealed_after_deadline: bool) -> str:
    """
    >>> _reason({"the new version scored too low"}, "completed", sealed_after_deadline=False)
    'Its batch was on hold: the new version scored too low.'
    """
    held = sorted(events - {"failed", ""})
    if held:
        verb = "is" if state == BatchState.HELD else "was"
        return f"Its batch {verb} on hold: {' and '.join(held)}."
    if "failed" in events:
        return "Its batch failed and was tried again." if state != BatchState.FAILED else "Its batch failed."
    return "Its batch started after the deadline." if sealed_after_deadline else "Its batch took too long."


def releases_of(session: Session, tenant_id: UUID, month: Month) -> list[Release]:
    """Return the releases of the month, oldest first. A discarded draw is one too."""
    rows = session.scalars(
        select(Certificate)
        .join(Model, Model.id == Certificate.model_id)
        .where(Model.tenant_id == tenant_id, month.contains(Certificate.created_at))  # type: ignore[arg-type]
        .order_by(Certificate.id)
        .limit(MAX_ROWS)
    )
    return [Release(row.id, row.mechanism, read_statement(row).predicate) for row in rows]


def budgets_of(session: Session, tenant_id: UUID, month: Month) -> list[Budget]:
    """Return the budget of each model as its newest certificate at the end of the month states it."""
    newest = (
        select(Certificate.model_id, func.max(Certificate.chain_index).label("chain_index"))
        .join(Model, Model.id == Certificate.model_id)
        .where(Model.tenant_id == tenant_id, Certificate.created_at < month.end)
        .group_by(Certificate.model_id)
        .subquery()
    )
    rows = session.scalars(
        select(Certificate)
        .join(
            newest,
            (newest.c.model_id == Certificate.model_id) & (newest.c.chain_index == Certificate.chain_index),
        )
        .limit(MAX_ROWS)
    )
    budgets = []
    for row in rows:
        predicate = read_statement(row).predicate
        lifetime = predicate.lifetime
        budgets.append(
            Budget(
                predicate.model, lifetime.epsilon_total, lifetime.cap, lifetime.assurance, lifetime.index + 1
            )
        )
    return sorted(budgets, key=lambda budget: budget.model)


def audits_of(session: Session, tenant_id: UUID, month: Month) -> list[Audit]:
    """Return the replay audits that ended in the month. An erasure deletes the audits before it."""
    rows = session.execute(
        select(Report, Model.name)
        .join(Model, Model.id == Report.model_id)
        .where(
            Model.tenant_id == tenant_id,
            Report.kind == ReportKind.AUDIT,
            month.contains(Report.completed_at),  # type: ignore[arg-type]
        )
        .order_by(Report.id)
        .limit(MAX_ROWS)
    )
    return [
        Audit(name, report.version, report.completed_at, _verdict(report))
        for report, name in rows
        if report.completed_at is not None
    ]


def _verdict(report: Report) -> str:
    if report.deleted_at is not None:
        return "deleted, as the policy of the model says"
    if report.error is not None or report.result is None:
        return "failed"
    return str(report.result.get("verdict", ""))
