"""The membership test that a policy can ask for, run on the erased rows just before they are purged.

The model is published by then, so the result cannot influence which draw is released. A failure of the test
must not keep the rows from being purged.
"""

from dataclasses import asdict
from typing import Any

from sqlalchemy import select

from app.core import logging
from app.core.clock import new_id, now
from app.db import transitions
from app.db.states import PartRole, ReportKind
from app.db.tables import DatasetPart, Report, Version
from lethe.certificate.predicate import SMALLEST_DESCRIBED_SET
from worker.batch.subjects import load_identifiers
from worker.context import CannotContinue, JobContext
from worker.data import datasets
from worker.data.families import FamilyObjective, family_of
from worker.data.scratch import working_folder
from worker.evaluation.membership import membership_report
from worker.evaluation.utility import Holdout, holdout_of
from worker.fitting import objective_from_rows
from worker.reports.report import ReportJob, read_snapshot

log = logging.get_logger("batch")
UNFINISHED = "the test started but did not finish, and it is not repeated"


def run_membership_test(context: JobContext) -> None:
    """Run the test if the policy asks for one and none was started for this batch.

    It is started only once, because whatever killed one attempt would kill the next. The report therefore
    exists from the start, and says that the test did not finish until it has.
    """
    report = _new_report(context)
    if report is None:
        return
    with context.writing() as session:
        session.add(report)
    result, error = None, None
    try:
        result = _measure(context, report)
    except CannotContinue as problem:
        error = str(problem)
    except transitions.TokenLost:
        raise
    except Exception as problem:  # the purge must go on; messages of other libraries may quote data
        log.error(
            "membership test failed",
            kind=type(problem).__name__,
            where=logging.where(problem.__traceback__),
        )
        error = "the test failed unexpectedly; the worker's log says where"
    with context.writing() as session:
        stored = session.get_one(Report, report.id)
        stored.result, stored.error, stored.completed_at = result, error and error[:1000], now()
    log.info("membership test ended", report=str(report.id), failed=error is not None)


def _new_report(context: JobContext) -> Report | None:
    """Return an unfinished report for the test, or None if no test is to be run."""
    if not context.manifest.policy.membership_test:
        return None
    assert context.batch is not None
    with context.services.database.reading() as session:
        if session.scalar(select(Report.id).where(Report.job_id == context.job_id)) is not None:
            return None
        version = session.scalar(select(Version).where(Version.batch_id == context.batch.id))
    if version is None or not context.batch.subjects:
        return None
    return Report(
        id=new_id(),
        kind=ReportKind.MEMBERSHIP,
        model_id=context.model.id,
        certificate_id=version.certificate_id,
        version=version.number,
        job_id=context.job_id,
        error=UNFINISHED,
        created_at=now(),
    )


def _measure(context: JobContext, report: Report) -> dict[str, Any]:
    with context.services.database.reading() as session:
        snapshot = read_snapshot(session, context.model.id)
    with working_folder(context.services.settings, context.token) as scratch:
        job = ReportJob(context, report, snapshot, scratch)
        erased = _erased_rows(job)
        objective = job.objective(PartRole.HOLDOUT)
        unseen = _scorable(context, objective)
        solution = job.retrain(job.objective(PartRole.TRAIN), context.manifest.policy.target_distance)
        try:
            findings = membership_report(
                erased,
                unseen,
                unlearned=objective.flatten(job.published()),
                retrained=solution.w,
                classifier=family_of(context.manifest).classes(context.manifest) is not None,
            )
        except ValueError as problem:  # too few rows, or no class in common
            raise CannotContinue(str(problem)) from None
        finally:
            solution.w.zero_()
    return {name: _plain(figures) for name, figures in asdict(findings).items()}


def _erased_rows(job: ReportJob) -> Holdout:
    """Read the erased rows: those of the batch's people in the parts that this batch replaced."""
    context = job.context
    with context.services.database.reading() as session:
        parts = session.scalars(
            select(DatasetPart).where(
                DatasetPart.model_id == context.model.id,
                DatasetPart.role == PartRole.TRAIN,
                DatasetPart.first_generation.is_not(None),
                DatasetPart.last_generation.is_not(None),
            )
        ).all()
    replaced = [part.rows_path for part in parts]
    storage, manifest = context.services.storage, context.manifest
    people: set[str] = set()
    identifiers = load_identifiers(context)
    for path in replaced:
        people |= datasets.holders(storage, path, identifiers)
    if len(people) < SMALLEST_DESCRIBED_SET:  # everyone has a row, so there are at least as many rows
        raise CannotContinue(
            f"fewer than {SMALLEST_DESCRIBED_SET} erased people: figures about so few are not kept"
        )
    rows = datasets.memory_map(storage, replaced, manifest.width, job.scratch / "forget", people)
    return _scorable(context, objective_from_rows(context, rows, None))


def _scorable(context: JobContext, objective: FamilyObjective) -> Holdout:
    rows = holdout_of(objective)
    if rows is None:
        raise CannotContinue(f"models of the family {context.manifest.family} cannot be scored row by row")
    return rows


def _plain(value: Any) -> Any:
    """Convert the keys of dictionaries to strings, as JSON requires."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    return value
