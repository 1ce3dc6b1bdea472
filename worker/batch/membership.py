"""The membership test a policy may ask for: the last look at the erased rows, before they are purged.

The model is published by then, so nothing that is found can choose among draws; and nothing that goes wrong
here may keep the rows from being purged.
"""

from dataclasses import asdict
from typing import Any

from sqlalchemy import select

from app import logs
from app.clock import new_id, now
from app.db import transitions
from app.db.states import PartRole, ReportKind
from app.db.tables import DatasetPart, Report, Version
from certificate.predicate import SMALLEST_DESCRIBED_SET
from worker.evaluation.membership import membership_report
from worker.evaluation.networks import holdout_of
from worker.evaluation.utility import Holdout
from worker.loading import datasets
from worker.loading.families import family_of
from worker.pipeline.context import CannotContinue, Context
from worker.pipeline.report import ReportJob, footing_of
from worker.pipeline.resolve import subjects_of
from worker.pipeline.scratch import working_folder
from worker.pipeline.solve import objective_of

log = logs.get("pipeline")
UNFINISHED = "the test was begun and has not ended"


def look_for_members(context: Context) -> None:
    """Once for a published batch, and begun once only: what killed one attempt would kill the next.

    So the report is there from the beginning, and says that the test did not end until it has.
    """
    report = _wanted(context)
    if report is None:
        return
    with context.writing() as session:
        session.add(report)
    result, error = None, None
    try:
        result = _measured(context, report)
    except CannotContinue as problem:
        error = str(problem)
    except transitions.TokenLost:
        raise
    except Exception as problem:  # the purge goes first; foreign messages may quote data
        error = f"the test could not be run: {type(problem).__name__}"
    with context.writing() as session:
        mine = session.get_one(Report, report.id)
        mine.result, mine.error, mine.completed_at = result, error and error[:1000], now()
    log.info("membership tested", report=str(report.id), failed=error is not None)


def _wanted(context: Context) -> Report | None:
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


def _measured(context: Context, report: Report) -> dict[str, Any]:
    with context.services.database.reading() as session:
        footing = footing_of(session, context.model.id)
    with working_folder(context.services.settings, context.token) as scratch:
        job = ReportJob(context, report, footing, scratch)
        forget = _forget(job)
        objective = job.objective(PartRole.HOLDOUT)
        unseen = holdout_of(objective)
        if unseen is None:
            raise CannotContinue(f"a model of the family {context.manifest.family} cannot be tested here")
        solution = job.retrain(job.objective(PartRole.TRAIN), context.manifest.policy.target_distance)
        try:
            found = membership_report(
                forget,
                unseen,
                unlearned=objective.flatten(job.published()),
                retrained=solution.w,
                classifier=family_of(context.manifest).classes(context.manifest) is not None,
            )
        except ValueError as problem:  # too few rows, or no class in common
            raise CannotContinue(str(problem)) from None
        finally:
            solution.w.zero_()
    return {name: _plain(figures) for name, figures in asdict(found).items()}


def _forget(job: ReportJob) -> Holdout:
    """The erased rows: those of the batch's subjects in the parts that this batch has replaced."""
    context = job.context
    with context.services.database.reading() as session:
        replaced = session.scalars(
            select(DatasetPart.path).where(
                DatasetPart.model_id == context.model.id,
                DatasetPart.role == PartRole.TRAIN,
                DatasetPart.first_generation.is_not(None),
                DatasetPart.last_generation.is_not(None),
            )
        ).all()
    storage, manifest = context.services.storage, context.manifest
    subjects: set[str] = set()
    asked = subjects_of(context)[0].keys()
    for path in replaced:
        subjects |= datasets.holders(storage, path, asked)
    if len(subjects) < SMALLEST_DESCRIBED_SET:  # as many records follow: everyone has one
        raise CannotContinue(f"fewer than {SMALLEST_DESCRIBED_SET} subjects: no figures are kept of so few")
    rows = datasets.memory_map(storage, replaced, manifest.width, job.scratch / "forget", subjects)
    forget = holdout_of(objective_of(context, rows, None))
    if forget is None:
        raise CannotContinue(f"a model of the family {manifest.family} cannot be tested here")
    return forget


def _plain(value: Any) -> Any:
    """JSON has no numbers for keys."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    return value
