"""Models, from validation to retirement."""

from datetime import datetime
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.db import refusals, webhooks
from app.db.manifest import Manifest
from app.db.states import JobKind, ModelState, SubjectOutcome, TaskState
from app.db.tables import Job, Model, Task, TaskSubject
from app.db.transitions.jobs import create_job


def start_validation(session: Session, model: Model, now: datetime) -> Job:
    model.state, model.reasons = ModelState.VALIDATING, []
    return create_job(session, JobKind.REGISTER, model.id, now)


def accept_model(session: Session, model: Model, report: dict[str, Any]) -> None:
    model.state, model.report = ModelState.READY, report
    webhooks.note(session, "model.ready", model.id)
    session.flush()


def reject_model(
    session: Session, model: Model, reasons: list[str], *, uncertifiable: Manifest | None = None
) -> None:
    """validating → rejected. `uncertifiable`: under this manifest the rows themselves were refused."""
    if uncertifiable is not None:
        refusals.record_refusal(session, model, uncertifiable, "rejected")
    model.state, model.reasons = ModelState.REJECTED, reasons
    webhooks.note(session, "model.rejected", model.id)
    session.flush()


def retire_model(session: Session, model: Model) -> None:
    if model.state != ModelState.RETIRED:
        webhooks.note(session, "model.retired", model.id)
    model.state = ModelState.RETIRED
    session.flush()


def complete_unreached(session: Session, model: Model, now: datetime) -> None:
    """received → completed, for a model that never was ready: no batch will ever take these.

    Nothing was trained on their rows, and what was sent is deleted with the model.
    """
    waiting = select(Task.id).where(Task.model_id == model.id, Task.state == TaskState.RECEIVED)
    subjects = update(TaskSubject).where(TaskSubject.task_id.in_(waiting))
    session.execute(
        subjects.values(
            outcome=SubjectOutcome.NOT_IN_TRAINING_SET, identifier=None, person=None
        ).execution_options(synchronize_session=False)
    )
    session.execute(
        update(Task)
        .where(Task.model_id == model.id, Task.state == TaskState.RECEIVED)
        .values(state=TaskState.COMPLETED, completed_at=now)
    )
