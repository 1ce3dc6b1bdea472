"""Figures by model: what is open and when it is due, and what is spent of ε.

At most `MOST_MODELS` models are told apart, oldest first; how many are not is a figure of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from pydantic import ValidationError
from sqlalchemy import Row, case, func, select
from sqlalchemy.orm import Session

from app.db.manifest import Manifest
from app.db.states import ModelState, TaskState
from app.db.tables import Certificate, Model, Task, Tenant
from app.metrics.families import gauge
from certificate import envelope, statement
from certificate.predicate import Lifetime
from certificate.predicate_v1 import LifetimeV1

MOST_MODELS = 500
WITHIN = {"1d": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
DUE = ("overdue", *WITHIN, "later")
OPEN = (TaskState.RECEIVED, TaskState.BATCHED, TaskState.RUNNING, TaskState.FAILED)


@dataclass(frozen=True)
class Open:
    model_id: UUID
    due: str
    failed: bool
    count: int


def open_requests(session: Session, moment: datetime) -> list[Open]:
    """The index on model and state is used: tasks that ended, the most of them, are not looked at."""
    due = case(
        (Task.due_at < moment, "overdue"),
        *((Task.due_at < moment + time, name) for name, time in WITHIN.items()),
        else_="later",
    ).label("due")
    failed = (Task.state == TaskState.FAILED).label("failed")
    rows = session.execute(
        select(Task.model_id, due, failed, func.count())
        .where(Task.model_id.in_(select(Model.id)), Task.state.in_(OPEN))
        .group_by(Task.model_id, "due", "failed")
    )
    return [Open(model_id, name, bool(lost), count) for model_id, name, lost, count in rows]


def figures(session: Session, moment: datetime) -> Iterator[Metric]:
    live = session.execute(
        select(Model, Tenant.name)
        .join(Tenant, Tenant.id == Model.tenant_id)
        .where(Model.state != ModelState.RETIRED)
        .order_by(Model.id)
        .limit(MOST_MODELS)
    ).all()
    alive = session.scalar(select(func.count()).where(Model.state != ModelState.RETIRED)) or 0
    yield gauge("lethe_models", "Models that are not retired.", alive)
    yield gauge("lethe_models_not_shown", "Of these, without figures of their own.", alive - len(live))
    yield _open(session, live, moment)
    yield from _budgets(session, live)


def _open(session: Session, live: Sequence[Row[Model, str]], moment: datetime) -> Metric:
    names = {model.id: (tenant, model.name) for model, tenant in live}
    counts = {(*labels, due): 0 for labels in names.values() for due in DUE}
    for found in open_requests(session, moment):
        if found.model_id in names:
            counts[(*names[found.model_id], found.due)] += found.count
    family = GaugeMetricFamily(
        "lethe_model_requests_open",
        "Requests not fulfilled, by model and time to the deadline.",
        labels=["tenant", "model", "due"],
    )
    for labels, count in counts.items():
        family.add_metric(labels, count)
    return family


def _budgets(session: Session, live: Sequence[Row[Model, str]]) -> Iterator[Metric]:
    """As the newest certificate states it. An estimate is no ε: such a model has no figure."""
    labels = ["tenant", "model"]
    spent = GaugeMetricFamily("lethe_model_epsilon_spent", "ε since the last retraining.", labels=labels)
    cap = GaugeMetricFamily("lethe_model_epsilon_cap", "The most it may become.", labels=labels)
    said = _lifetimes(session)
    for model, tenant in live:
        lifetime = said.get(model.id)
        if lifetime is None or lifetime.epsilon_total is not None:
            spent.add_metric([tenant, model.name], (lifetime and lifetime.epsilon_total) or 0.0)
        try:
            cap.add_metric(
                [tenant, model.name], Manifest.model_validate(model.manifest).policy.lifetime_epsilon
            )
        except ValidationError:  # of a version this one does not know; the others are still shown
            continue
    yield from (spent, cap)


def _lifetimes(session: Session) -> dict[UUID, Lifetime | LifetimeV1]:
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
        .limit(MOST_MODELS)
    )
    return {
        model_id: statement.parse(envelope.parse(raw).payload).predicate.lifetime for model_id, raw in rows
    }
