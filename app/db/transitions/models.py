"""State changes of models, from validation to retirement, and of their published versions."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.core import clock
from app.db import refusals, webhooks
from app.db.manifest import Manifest
from app.db.session import allow_long_statements
from app.db.states import JobKind, ModelState, RefusalReason, SubjectOutcome, TaskState, VersionState
from app.db.tables import Job, Model, Task, TaskSubject, Version
from app.db.transitions.data_keys import forget_subject_keys
from app.db.transitions.jobs import create_job
from app.db.webhooks import NoticeKind


def start_validation(session: Session, model: Model, now: datetime) -> Job:
    """uploading or rejected → validating: create the job that checks the uploaded files."""
    model.state, model.reasons, model.progress = ModelState.VALIDATING, [], None
    return create_job(session, JobKind.REGISTER, model.id, now)


def accept_model(session: Session, model: Model, report: dict[str, Any]) -> None:
    """validating → ready, with the report of the validation."""
    model.state, model.report, model.progress = ModelState.READY, report, None
    webhooks.add_notice(session, NoticeKind.MODEL_READY, model.id)
    session.flush()


def reject_model(
    session: Session, model: Model, reasons: list[str], *, uncertifiable: Manifest | None = None
) -> None:
    """validating → rejected, with the reasons to show to the owner. Erasures that wait for the model end.

    Pass the manifest as `uncertifiable` if its guarantee could not be certified on these rows: such a refusal
    reveals something about the rows and is recorded.
    """
    if uncertifiable is not None:
        refusals.record_refusal(session, model, uncertifiable, RefusalReason.REJECTED)
    # Recording a request locks its models as well, so no task appears unseen while this one ends the others.
    session.execute(select(Model.id).where(Model.id == model.id).with_for_update())
    model.state, model.reasons, model.progress = ModelState.REJECTED, reasons, None
    for erasure_id in complete_unreached(session, model, clock.now()):
        # The same notice as of a withdrawal: a task ended without a batch, and its erasure may be complete.
        webhooks.add_notice(session, NoticeKind.WITHDRAWN, erasure_id)
    webhooks.add_notice(session, NoticeKind.MODEL_REJECTED, model.id)
    session.flush()


def publish_version(session: Session, version: Version, *, parent_id: UUID, now: datetime) -> None:
    """Make `version` the current one and mark its parent as superseded."""
    parent = session.get_one(Version, parent_id)
    parent.state, parent.superseded_at = VersionState.SUPERSEDED, now
    session.add(version)


def purge_versions(session: Session, version_ids: Sequence[UUID]) -> None:
    """Mark superseded versions as purged. Call this after their files have been deleted."""
    session.execute(update(Version).where(Version.id.in_(version_ids)).values(state=VersionState.PURGED))


def retire_model(session: Session, model: Model) -> None:
    """any → retired. All versions are marked as purged; the caller deletes their files."""
    if model.state != ModelState.RETIRED:
        webhooks.add_notice(session, NoticeKind.MODEL_RETIRED, model.id)
    model.state = ModelState.RETIRED
    session.execute(update(Version).where(Version.model_id == model.id).values(state=VersionState.PURGED))
    session.flush()


def complete_unreached(session: Session, model: Model, now: datetime) -> Sequence[UUID]:
    """received → completed, for the tasks of a model that never became ready. Return their erasures.

    No batch will ever take these tasks, and no version was published with anyone's rows. A completed task
    without a batch tells the tenant that the model was not registered. The stored outcome is not shown.
    """
    waiting = select(Task.id).where(Task.model_id == model.id, Task.state == TaskState.RECEIVED)
    subjects = update(TaskSubject).where(TaskSubject.task_id.in_(waiting))
    allow_long_statements(session)  # there may be millions of subjects
    session.execute(
        subjects.values(
            outcome=SubjectOutcome.NOT_IN_TRAINING_SET, identifier=None, person=None
        ).execution_options(synchronize_session=False)
    )
    ended = (
        update(Task)
        .where(Task.model_id == model.id, Task.state == TaskState.RECEIVED)
        .values(state=TaskState.COMPLETED, completed_at=now)
        .returning(Task.erasure_id, Task.id, Task.subject_key_id)
    )
    rows = session.execute(ended.execution_options(synchronize_session=False)).all()
    forget_subject_keys(session, {task_id: key_id for _, task_id, key_id in rows})
    return [erasure_id for erasure_id, _, _ in rows]
