"""Metrics by model: open requests by deadline, and how much of ε is spent.

At most `MAX_MODELS` models have series of their own, oldest first. `lethe_models_not_shown` counts the rest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from prometheus_client.metrics_core import Metric as MetricFamily
from pydantic import ValidationError
from sqlalchemy import Row, case, func, select
from sqlalchemy.orm import Session

from app.db.manifest import Manifest
from app.db.states import ModelState, TaskState
from app.db.tables import Certificate, Model, Task, Tenant, task_is_open
from app.gateway.metrics.catalogue import Metric, gauge, labelled_gauge
from lethe.certificate import envelope, statement
from lethe.certificate.predicate import Lifetime
from lethe.certificate.predicate_v1 import LifetimeV1

MAX_MODELS = 500
WITHIN = {"1d": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
DUE = ("overdue", *WITHIN, "later")


@dataclass(frozen=True)
class OpenRequests:
    """How many open requests of a model are due in the same period."""

    model_id: UUID
    due: str
    failed: bool
    count: int


def open_requests(session: Session, moment: datetime) -> list[OpenRequests]:
    """Count open requests by model and period.

    The query reads an index of the open tasks in its own order, so it sorts nothing and skips the many tasks
    that have ended.
    """
    limits = [moment, *(moment + time for time in WITHIN.values())]
    due_before = [func.sum(case((Task.due_at < limit, 1), else_=0)) for limit in limits]
    rows = session.execute(
        select(Task.model_id, Task.state, *due_before, func.count())
        .where(task_is_open())
        .group_by(Task.model_id, Task.state)
    )
    return [
        OpenRequests(model_id, due, state == TaskState.FAILED, count)
        for model_id, state, *totals in rows
        for due, count in zip(DUE, _differences(totals), strict=True)
        if count
    ]


def _differences(totals: Sequence[int]) -> list[int]:
    """Return how much each total adds to the one before it."""
    return [after - before for before, after in zip((0, *totals), totals, strict=False)]


def collect_models(session: Session, groups: Sequence[OpenRequests]) -> Iterator[MetricFamily]:
    """Report the number of models, and open requests and privacy budget of each."""
    labelled = session.execute(
        select(Model, Tenant.name)
        .join(Tenant, Tenant.id == Model.tenant_id)
        .where(Model.state != ModelState.RETIRED)
        .order_by(Model.id)
        .limit(MAX_MODELS)
    ).all()
    total = session.scalar(select(func.count()).where(Model.state != ModelState.RETIRED)) or 0
    yield gauge(Metric.MODELS, total)
    yield gauge(Metric.MODELS_NOT_SHOWN, total - len(labelled))
    yield _count_open_requests(labelled, groups)
    yield from _report_budgets(session, labelled)


def _count_open_requests(models: Sequence[Row[Model, str]], groups: Sequence[OpenRequests]) -> MetricFamily:
    names = {model.id: (tenant, model.name) for model, tenant in models}
    counts = {(*labels, due): 0 for labels in names.values() for due in DUE}
    for group in groups:
        if group.model_id in names:
            counts[(*names[group.model_id], group.due)] += group.count
    return labelled_gauge(Metric.MODEL_REQUESTS_OPEN, counts)


def _report_budgets(session: Session, models: Sequence[Row[Model, str]]) -> Iterator[MetricFamily]:
    """Report ε as the newest certificate states it. An estimate is not an ε, so such a model has no value."""
    spent: dict[tuple[str, ...], float] = {}
    cap: dict[tuple[str, ...], float] = {}
    lifetimes = _newest_lifetimes(session)
    for model, tenant in models:
        lifetime = lifetimes.get(model.id)
        if lifetime is None or lifetime.epsilon_total is not None:
            spent[tenant, model.name] = (lifetime and lifetime.epsilon_total) or 0.0
        try:
            policy = Manifest.model_validate(model.manifest).policy
        except ValidationError:  # written by another version of Lethe; the other models still have values
            continue
        cap[tenant, model.name] = policy.lifetime_epsilon
    yield labelled_gauge(Metric.EPSILON_SPENT, spent)
    yield labelled_gauge(Metric.EPSILON_CAP, cap)


def _newest_lifetimes(session: Session) -> dict[UUID, Lifetime | LifetimeV1]:
    newest = (
        select(Certificate.model_id, func.max(Certificate.chain_index).label("last"))
        .group_by(Certificate.model_id)
        .subquery()
    )
    rows = session.execute(
        select(Certificate.model_id, Certificate.envelope)
        .join(
            newest,
            (newest.c.model_id == Certificate.model_id) & (newest.c.last == Certificate.chain_index),
        )
        .join(Model, Model.id == Certificate.model_id)
        .where(Model.state != ModelState.RETIRED)
        .order_by(Certificate.model_id)
        .limit(MAX_MODELS)
    )
    return {
        model_id: statement.parse(envelope.parse(raw).payload).predicate.lifetime for model_id, raw in rows
    }
