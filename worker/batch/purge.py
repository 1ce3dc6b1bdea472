"""Stage 8, purge: delete every trace of the erased rows. Only then is the batch completed."""

import time

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from app.core.clock import now
from app.db import paths, transitions
from app.db.paths import ATTEMPTS
from app.db.states import JobState, ReportKind, VersionState
from app.db.tables import DatasetPart, Job, Model, Report, TaskSubject, Version
from worker.batch.late_uploads import has_unsearched_part, locked_model, remove_late_rows
from worker.batch.membership import run_membership_test
from worker.batch.no_data_receipts import sign_no_data_receipts
from worker.batch.subjects import SubjectEntry, subject_pages
from worker.batch.suppression import suppress
from worker.batch.task_keys import destroy_subject_keys
from worker.context import JobContext
from worker.imports import sweep_uploads

WAL_TRIES = 50
_OF_ROWS = (ReportKind.EVALUATION, ReportKind.AUDIT, ReportKind.ADVICE, ReportKind.MEMBERSHIP)
_ADVICE_FIGURES = ("advice_grid", "recommendation")


def purge(context: JobContext) -> None:
    """Delete the erased rows, superseded weights and identifiers, and complete the batch and its job."""
    context.services.tracer.stage("purge")
    run_membership_test(context)
    forgotten = False
    while not forgotten:  # search again if a part arrived in the meantime
        searched = remove_late_rows(context)
        delete_files(context)
        sweep_uploads(context)
        sign_no_data_receipts(context)
        forgotten = forget_identifiers(context, searched)
    destroy_subject_keys(context)
    empty_write_ahead_log(context)
    with context.writing() as session:
        transitions.complete_batch(session, context.batch_in(session), now())
        transitions.finish_job(session, context.job_id, context.token, now())


def delete_files(context: JobContext) -> None:
    """Delete replaced parts, superseded weights and sketches, and what other attempts left behind."""
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
    replaced = [path for part in old_parts for path in (part.path, part.features_path) if path is not None]
    replaced += [version.path for version in old_versions]
    storage.delete(*replaced, *_orphans(context), *_stale_sketches(context))
    with context.writing() as session:
        session.execute(delete(DatasetPart).where(DatasetPart.id.in_([part.id for part in old_parts])))
        transitions.purge_versions(session, [version.id for version in old_versions])
        if old_parts:
            _delete_reports(context, session)


def _orphans(context: JobContext) -> list[str]:
    """Return files of this model's attempts that nothing refers to. They may hold rows of erased people.

    The order matters: list the files, then the running jobs, then the references (see
    `app.dispatcher.orphan_sweep`).
    """
    files = context.services.storage.list(ATTEMPTS)
    with context.services.database.reading() as session:
        jobs = session.execute(select(Job.id, Job.state).where(Job.model_id == context.model.id)).all()
        working = (JobState.QUEUED, JobState.RUNNING)
        ended = {str(job_id) for job_id, state in jobs if state not in working or job_id == context.job_id}
        in_use = select(DatasetPart.path, DatasetPart.features_path).where(
            DatasetPart.last_generation.is_(None)
        )
        kept = {path for paths in session.execute(in_use) for path in paths if path is not None}
        kept |= set(session.scalars(select(Version.path).where(Version.state == VersionState.CURRENT)))
    return [path for path in files if path not in kept and path.split("/")[1] in ended and "/." not in path]


def _stale_sketches(context: JobContext) -> list[str]:
    """Return the curvature sketches of superseded versions. They were made from rows that are gone.

    A sketch is written with the model locked and only while its version is current, so none can appear after
    this list was made (see `worker.sketches`).
    """
    current = paths.sketch(context.model.id, context.current_version().id)
    folder = paths.sketches(context.model.id)
    return [path for path in context.services.storage.list(folder) if path != current]


def _delete_reports(context: JobContext, session: Session) -> None:
    """Delete evaluations, audits, membership tests and advice from rows that are gone.

    The registration report loses its advice too. A running job notices that the model changed, and the
    membership test of this batch stays, because its job has not ended.
    """
    ended = select(Job.id).where(Job.model_id == context.model.id, Job.finished_at.is_not(None))
    session.execute(
        delete(Report)
        .where(Report.kind.in_(_OF_ROWS), Report.job_id.in_(ended))
        .execution_options(synchronize_session=False)
    )
    model = session.get_one(Model, context.model.id)
    if model.report is not None:
        model.report = model.report | dict.fromkeys(_ADVICE_FIGURES)


def forget_identifiers(context: JobContext, searched: frozenset[str]) -> bool:
    """Delete the identifiers of the batch page by page, and return whether all are deleted.

    Only keyed hashes remain, and only if the policy keeps a suppression list. Returns False, with the
    remaining identifiers still there, if a part has arrived that was not searched yet.
    """
    with subject_pages(context) as pages:
        return all(_forget_page(context, page, searched) for page in pages)


def _forget_page(context: JobContext, page: list[SubjectEntry], searched: frozenset[str]) -> bool:
    """Delete some identifiers, unless a part has arrived in which these people were not searched for."""
    with context.writing() as session:
        model = locked_model(context, session)
        if has_unsearched_part(session, model.id, searched):
            return False
        if context.manifest.policy.suppression_list:
            suppress(context, session, [entry.identifier for entry in page])
        forgotten = {"identifier": None, "person": None}
        session.execute(
            update(TaskSubject),
            [entry.key() | forgotten for entry in page],
        )
    return True


def empty_write_ahead_log(context: JobContext) -> None:
    """Remove deleted identifiers from SQLite's write-ahead log. Raises if a reader keeps it open too long."""
    for _ in range(WAL_TRIES):
        if context.services.database.forget_deleted_bytes():
            return
        time.sleep(0.1)
    raise TimeoutError("the write-ahead log could not be emptied: a reader holds it")
