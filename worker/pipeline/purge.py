"""Stage 6, purge: what the erased left behind is deleted; only then is anything called completed."""

import time

from sqlalchemy import delete, select, update

from app.clock import now
from app.db import paths, transitions
from app.db.states import VersionState
from app.db.tables import DatasetPart, Task, TaskSubject, Version
from worker.pipeline.context import Context
from worker.pipeline.holdings import suppress, sweep_uploads
from worker.pipeline.membership import look_for_members
from worker.pipeline.receipts import sign_no_data
from worker.pipeline.resolve import subjects_of

WAL_TRIES = 50


def purge(context: Context) -> None:
    look_for_members(context)
    _delete_files(context)
    sweep_uploads(context)
    sign_no_data(context)
    _forget_identifiers(context)
    _empty_wal(context)
    with context.writing() as session:
        transitions.complete_batch(session, context.batch_in(session), now())
        transitions.finish_job(session, context.job_id, context.token, now())


def _delete_files(context: Context) -> None:
    """Replaced parts, superseded checkpoints, and whatever other attempts at this job have left."""
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
        live = set(session.scalars(select(DatasetPart.path).where(DatasetPart.last_generation.is_(None))))
        live |= set(session.scalars(select(Version.path).where(Version.state == VersionState.CURRENT)))
    orphans = [path for path in storage.list(paths.attempts(context.job_id)) if path not in live]
    for path in [*(part.path for part in old_parts), *(version.path for version in old_versions), *orphans]:
        storage.delete(path)
    with context.writing() as session:
        session.execute(delete(DatasetPart).where(DatasetPart.id.in_([part.id for part in old_parts])))
        session.execute(
            update(Version)
            .where(Version.id.in_([version.id for version in old_versions]))
            .values(state=VersionState.PURGED)
        )


def _forget_identifiers(context: Context) -> None:
    """What remains is a keyed hash if the policy keeps a suppression list, else nothing."""
    assert context.batch is not None
    listed = list(subjects_of(context)[0]) if context.manifest.policy.suppression_list else []
    with context.writing() as session:
        if listed:
            suppress(context, session, listed)
        tasks = select(Task.id).where(Task.batch_id == context.batch.id)
        session.execute(update(TaskSubject).where(TaskSubject.task_id.in_(tasks)).values(identifier=None))


def _empty_wal(context: Context) -> None:
    for _ in range(WAL_TRIES):
        if context.services.database.forget_deleted_bytes():
            return
        time.sleep(0.1)
    raise TimeoutError("the write-ahead log could not be emptied: a reader holds it")
