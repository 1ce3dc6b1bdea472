"""The advice job: the figures for choosing λ and Δ*, on request, before or after registration.

It changes nothing about the model. If the model's data or manifest changes meanwhile, the figures describe
something that no longer exists, so the report says so and ends without them.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core import logging
from app.core.clock import now
from app.db import transitions
from app.db.states import FileKind, ModelState, PartRole
from app.db.tables import DatasetPart, Model, ModelFile, Report
from app.services import Services
from worker.context import CannotContinue, JobContext
from worker.data import datasets
from worker.data.families import FamilyError, family_of, size_problem
from worker.data.inspection import Expected, Inspection
from worker.data.scratch import working_folder
from worker.data.weights import WeightsError
from worker.distributed.rank0 import Team
from worker.features import FeatureBuilder, UnusableRepresentation
from worker.fitting import read_anchor
from worker.imports import import_parts
from worker.registration.advice import Advice, advise, training_paths

log = logging.get_logger("registration")
CHANGED = "the model changed; ask again"
POLL_SECONDS = 1.0
PROGRESS_SECONDS = 1.0
ADVISABLE = (ModelState.UPLOADING, ModelState.REJECTED, ModelState.READY)


class Inputs(NamedTuple):
    """What the advice is computed from. If it changes, the advice is void."""

    manifest: dict[str, Any]
    parts: frozenset[UUID]
    files: frozenset[tuple[str, str]]
    """Kind and digest of the anchor, the graph and the tokenizer, as far as there are any."""


def advise_model(services: Services, job_id: UUID, token: UUID, team: Team | None = None) -> None:
    """Measure the advice that was asked for, and store it or the reason why there is none."""
    context = JobContext.load(services, job_id, token, team)
    try:
        inputs, advice = _advise_unchanged(context)
    except CannotContinue as problem:
        _conclude(context, error=str(problem))
        return
    _conclude(context, result=advice.to_result(), inputs=inputs)


def _advise_unchanged(context: JobContext) -> tuple[Inputs, Advice]:
    """Measure. If that fails after the model changed, say so: the reason may no longer apply."""
    if context.model.state not in ADVISABLE:
        raise CannotContinue(CHANGED)
    _prepare_holdout(context)
    with context.services.database.reading() as session:
        inputs = _read_inputs(session, context.model.id)
    try:
        with working_folder(context.services.settings, context.token) as scratch:
            return inputs, _measure(context, inputs, scratch)
    except Exception:
        with context.services.database.reading() as session:
            if _read_inputs(session, context.model.id) == inputs:
                raise
        raise CannotContinue(CHANGED) from None


def _prepare_holdout(context: JobContext) -> None:
    """Copy the parts that are still to be imported, so that the holdout can be read.

    Training parts are needed too: holdout rows of people who have training rows are left out. A ready model
    has its holdout already, and its next append imports the rest.
    """
    if context.model.state != ModelState.READY and (problems := import_parts(context)):
        raise CannotContinue("; ".join(problems))


def _measure(context: JobContext, inputs: Inputs, scratch: Path) -> Advice:
    _represent_holdout(context, scratch)
    held_out = _inspect_holdout(context)
    _check_anchor(context)
    people = _people_in_training(context, held_out)
    watch = _Watch(context, inputs)
    advice = advise(context, people, scratch, on_progress=watch.report, cancelled=watch.changed)
    if not advice.rows:
        raise CannotContinue(advice.basis)
    return advice


def _represent_holdout(context: JobContext, scratch: Path) -> None:
    """Compute the features of the holdout, if the model has a representation. Registration reuses them."""
    try:
        builder = FeatureBuilder.open(context, scratch)
        if builder is not None:
            builder.build(context.parts(PartRole.HOLDOUT))
    except UnusableRepresentation as problem:
        raise CannotContinue("; ".join(problem.reasons)) from None


def _inspect_holdout(context: JobContext) -> Inspection:
    """Inspect every holdout row, as registration would. Raise with every problem."""
    manifest, services = context.manifest, context.services
    try:
        family = family_of(manifest)
    except FamilyError as problem:
        raise CannotContinue(str(problem)) from None
    if oversized := size_problem(manifest, family, services.settings.max_parameters):
        raise CannotContinue(oversized)
    classes = family.classes(manifest)
    most = services.settings.max_dataset_bytes
    inspection = Inspection(Expected(manifest.width, classes, needs_subject=False, most_bytes=most))
    for part in context.parts(PartRole.HOLDOUT):
        datasets.check_bytes(services.storage, part.rows_path, part.rows_sha256)
        inspection.add(services.storage, f"holdout {part.name}", part.rows_path)
    if inspection.problems:
        raise CannotContinue("; ".join(inspection.problems))
    return inspection


def _check_anchor(context: JobContext) -> None:
    declared, uploaded = context.manifest.origins.anchor != "zero", context.file(FileKind.ANCHOR) is not None
    if declared and not uploaded:
        raise CannotContinue("anchor: origins.anchor declares one, but none was uploaded; upload it")
    try:
        read_anchor(context)
    except WeightsError as problem:
        raise CannotContinue(f"anchor: {problem}") from None


def _people_in_training(context: JobContext, held_out: Inspection) -> int:
    """Count the people in the holdout who have training rows. Only the identifiers of those are read."""
    storage = context.services.storage
    trained = Inspection(held_out.expected)
    for path in training_paths(context):
        try:
            for batch in datasets.batches(storage, path, [datasets.SUBJECT]):
                trained.subjects.add(batch.column(datasets.SUBJECT).drop_null())
        except datasets.FAULTS:
            raise CannotContinue(
                "the identifiers in the training data cannot be read, so holdout rows of people who have "
                "training rows cannot be left out: each part must be a Parquet file with the column "
                f"{datasets.SUBJECT}"
            ) from None
    return trained.subjects.shared(held_out.subjects)


@dataclass
class _Watch:
    """Records how far the measurement is, and notices when the model changes."""

    context: JobContext
    inputs: Inputs
    started: float = field(default_factory=time.monotonic)
    _reported_at: float = field(default=0.0)
    _polled_at: float = field(default=0.0)
    _changed: bool = field(default=False)

    def report(self, share: float) -> None:
        """Record the share that is done with the model, at most once a second."""
        elapsed = time.monotonic() - self.started
        if time.monotonic() - self._reported_at < PROGRESS_SECONDS:
            return
        self._reported_at = time.monotonic()
        left = self.context.services.settings.advice_seconds - elapsed
        eta = max(0.0, min(left, elapsed * (1 - share) / share))
        progress = {"step": "advice", "percent": round(100 * share), "eta_seconds": round(eta, 1)}
        with self.context.writing() as session:
            session.get_one(Model, self.context.model.id).progress = progress

    def changed(self) -> bool:
        """Return whether the model has changed. The answer is cached for a second."""
        if not self._changed and time.monotonic() - self._polled_at >= POLL_SECONDS:
            self._polled_at = time.monotonic()
            with self.context.services.database.reading() as session:
                self._changed = _read_inputs(session, self.context.model.id) != self.inputs
        return self._changed


def _read_inputs(session: Session, model_id: UUID) -> Inputs:
    parts = select(DatasetPart.id).where(
        DatasetPart.model_id == model_id, DatasetPart.last_generation.is_(None)
    )
    files = select(ModelFile).where(ModelFile.model_id == model_id, ModelFile.kind != FileKind.WEIGHTS)
    return Inputs(
        session.get_one(Model, model_id).manifest,
        frozenset(session.scalars(parts)),
        frozenset((file.kind, file.sha256) for file in session.scalars(files)),
    )


def _conclude(
    context: JobContext,
    *,
    result: dict[str, Any] | None = None,
    error: str | None = None,
    inputs: Inputs | None = None,
) -> None:
    with context.writing() as session:
        model = session.get_one(Model, context.model.id, with_for_update=True)
        if inputs is not None and _read_inputs(session, model.id) != inputs:
            result, error = None, CHANGED
        model.progress = None
        report = session.scalars(select(Report).where(Report.job_id == context.job_id)).one()
        report.result, report.error, report.completed_at = result, error and error[:1000], now()
        transitions.finish_job(session, context.job_id, context.token, now())
    log.info("report ended", kind=report.kind, report=str(report.id), failed=error is not None)
