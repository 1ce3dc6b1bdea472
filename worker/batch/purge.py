"""Stage 6, purge: what the erased left behind is deleted; only then is anything called completed."""

import time

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from app.clock import now
from app.db import transitions
from app.db.states import JobState, ReportKind, VersionState
from app.db.tables import DatasetPart, Job, Report, Task, TaskSubject, Version
from app.orphans import ATTEMPTS
from worker.pipeline.context import Context
from worker.pipeline.holdings import suppress, sweep_uploads
from worker.pipeline.late import came_meanwhile, locked_model, remove_late_rows
from worker.pipeline.membership import look_for_members
from worker.pipeline.receipts import sign_no_data
from worker.pipeline.resolve import subjects_of

WAL_TRIES = 50


def purge(context: Context) -> None:
    context.services.tracer.stage("purge")
    look_for_members(context)
    forgotten = False
    while not forgotten:  # once more for every part that comes while this one is searched
        searched = remove_late_rows(context)
        _delete_files(context)
        sweep_uploads(context)
        sign_no_data(context)
        forgotten = _forget_identifiers(context, searched)
    _empty_wal(context)
    with context.writing() as session:
        transitions.complete_batch(session, context.batch_in(session), now())
        transitions.finish_job(session, context.job_id, context.token, now())


def _delete_files(context: Context) -> None:
    """Replaced parts, superseded checkpoints, and whatever other attempts for this model have left."""
    storage = context.services.storage
    with context.services.database.reading() as session:
        old_parts = session.scalars(
            select(DatasetPart).where(
                DatasetPart.model_id == context.model.id, DatasetPart.last_generation.is_not(None)
            )
        ).all()
        old_versions = session.scalars(
            select(Version).where(
                Version.model_id == context.model.id, Version.state == VersionState.SUPERSEDED
            )
        ).all()
    replaced = [*(part.path for part in old_parts), *(version.path for version in old_versions)]
    for path in [*replaced, *_left_behind(context)]:
        storage.delete(path)
    with context.writing() as session:
        session.execute(delete(DatasetPart).where(DatasetPart.id.in_([part.id for part in old_parts])))
        session.execute(
            update(Version)
            .where(Version.id.in_([version.id for version in old_versions]))
            .values(state=VersionState.PURGED)
        )
        if old_parts:
            _delete_reports(context, session)


def _left_behind(context: Context) -> list[str]:
    """Files of this model's attempts that nothing refers to: rows of those erased now may be among them.

    In this order: files, then who is at work, then what is referred to (see `app.orphans`).
    """
    found = context.services.storage.list(ATTEMPTS)
    with context.services.database.reading() as session:
        jobs = session.execute(select(Job.id, Job.state).where(Job.model_id == context.model.id)).all()
        working = (JobState.QUEUED, JobState.RUNNING)
        ended = {str(job_id) for job_id, state in jobs if state not in working or job_id == context.job_id}
        kept = set(session.scalars(select(DatasetPart.path).where(DatasetPart.last_generation.is_(None))))
        kept |= set(session.scalars(select(Version.path).where(Version.state == VersionState.CURRENT)))
    return [path for path in found if path not in kept and path.split("/")[1] in ended and "/." not in path]


def _delete_reports(context: Context, session: Session) -> None:
    """Evaluations and audits of rows that are gone. One under way finds the model changed, and says so."""
    ended = select(Job.id).where(Job.model_id == context.model.id, Job.finished_at.is_not(None))
    session.execute(
        delete(Report)
        .where(Report.kind.in_((ReportKind.EVALUATION, ReportKind.AUDIT)), Report.job_id.in_(ended))
        .execution_options(synchronize_session=False)
    )


def _forget_identifiers(context: Context, searched: frozenset[str]) -> bool:
    """What remains is a keyed hash if the policy keeps a suppression list, else nothing.

    False when a part came that is not searched yet.
    """
    assert context.batch is not None
    subjects = list(subjects_of(context)[0])
    with context.writing() as session:
        model = locked_model(context, session)
        if subjects and came_meanwhile(session, model.id, searched):
            return False
        if subjects and context.manifest.policy.suppression_list:
            suppress(context, session, subjects)
        tasks = select(Task.id).where(Task.batch_id == context.batch.id)
        gone = update(TaskSubject).where(TaskSubject.task_id.in_(tasks))
        session.execute(gone.values(identifier=None, person=None))
    return True


def _empty_wal(context: Context) -> None:
    for _ in range(WAL_TRIES):
        if context.services.database.forget_deleted_bytes():
            return
        time.sleep(0.1)
    raise TimeoutError("the write-ahead log could not be emptied: a reader holds it")
