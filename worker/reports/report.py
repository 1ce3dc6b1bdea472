"""What evaluation and audit share: they look at one version and its rows, and stand back when those change.

A batch of the same model is not kept waiting. Whoever looked at rows that are replaced meanwhile says so and
ends; the copy of the rows has no name on disk while it is used, so nothing has to be cleaned up after it.
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session
from torch import Tensor

from app import logs
from app.bootstrap import Services
from app.clock import now
from app.db import transitions
from app.db.states import PartRole, VersionState
from app.db.tables import Certificate, DatasetPart, Model, Report, Version
from worker.engine.trust_region import Outcome, Solution
from worker.loading import checkpoints
from worker.loading.families import FamilyObjective, family_of
from worker.pipeline.context import CannotContinue, Context
from worker.pipeline.fitting import fit
from worker.pipeline.scratch import working_folder
from worker.pipeline.solve import objective_here, objective_on, solver_settings

log = logs.get("pipeline")
CHANGED = "the model changed; ask again"
LOOK_SECONDS = 1.0


class Footing(NamedTuple):
    """What a report stands on."""

    generation: int
    version: int | None  # none when the model was retired
    parts: frozenset[UUID]


@dataclass
class ReportJob:
    context: Context
    report: Report
    footing: Footing
    scratch: Path
    _looked_at: float = field(default=0.0)

    def certificate(self) -> Certificate | None:
        """Of the version looked at; version 0 has none."""
        certificate_id = self.context.current_version().certificate_id
        if certificate_id is None:
            return None
        with self.context.services.database.reading() as session:
            return session.get_one(Certificate, certificate_id)

    def objective(self, role: PartRole) -> FamilyObjective:
        paths = tuple(part.path for part in self.context.parts(role))
        if not paths:
            raise CannotContinue(f"the model has no {role} rows")
        folder = self.scratch / role
        opened = objective_on if role == PartRole.TRAIN else objective_here  # fitted, or scored
        objective = opened(self.context, paths, folder)
        shutil.rmtree(folder)  # the rows stay mapped, and are gone when this process is
        return objective

    def published(self) -> dict[str, Tensor]:
        version = self.context.current_version()
        tensors = checkpoints.read(self.context.services.storage, version.path, sha256=version.sha256)
        checkpoints.check_shapes(tensors, family_of(self.context.manifest).shapes(self.context.manifest))
        return tensors

    def retrain(self, objective: FamilyObjective, target: float) -> Solution:
        """ŵ_R: never stored; the caller overwrites it."""
        settings = solver_settings(self.context.manifest)
        solution = fit(objective, objective.anchor, target=target, settings=settings, cancelled=self._changed)
        if solution.outcome == Outcome.CANCELLED:
            raise CannotContinue(CHANGED)
        return solution

    def _changed(self) -> bool:
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return False
        self._looked_at = time.monotonic()
        with self.context.services.database.reading() as session:
            return footing_of(session, self.context.model.id) != self.footing


def footing_of(session: Session, model_id: UUID) -> Footing:
    current = session.scalars(
        select(Version.number).where(Version.model_id == model_id, Version.state == VersionState.CURRENT)
    ).one_or_none()
    parts = session.scalars(
        select(DatasetPart.id).where(
            DatasetPart.model_id == model_id,
            DatasetPart.first_generation.is_not(None),
            DatasetPart.last_generation.is_(None),
        )
    )
    return Footing(session.get_one(Model, model_id).generation, current, frozenset(parts))


def run_report(
    services: Services, job_id: UUID, token: UUID, measure: Callable[[ReportJob], dict[str, Any]]
) -> None:
    context = Context.load(services, job_id, token)
    with services.database.reading() as session:
        report = session.scalars(select(Report).where(Report.job_id == job_id)).one()
        footing = footing_of(session, context.model.id)
    try:
        result = _measured(context, report, footing, measure)
    except CannotContinue as problem:
        _conclude(context, report, error=str(problem))
        return
    _conclude(context, report, result=result, footing=footing)


def _measured(
    context: Context, report: Report, footing: Footing, measure: Callable[[ReportJob], dict[str, Any]]
) -> dict[str, Any]:
    if footing.version != report.version:
        raise CannotContinue(CHANGED)
    try:
        with working_folder(context.services.settings, context.token) as scratch:
            return measure(ReportJob(context, report, footing, scratch))
    except CannotContinue:
        raise
    except Exception:
        with context.services.database.reading() as session:
            if footing_of(session, context.model.id) == footing:
                raise
        raise CannotContinue(CHANGED) from None  # a file was purged while it was read


def _conclude(
    context: Context,
    report: Report,
    *,
    result: dict[str, Any] | None = None,
    error: str | None = None,
    footing: Footing | None = None,
) -> None:
    with context.writing() as session:
        if footing is not None and footing_of(session, context.model.id) != footing:
            result, error = None, CHANGED
        mine = session.get_one(Report, report.id)
        mine.result, mine.error, mine.completed_at = result, error and error[:1000], now()
        transitions.finish_job(session, context.job_id, context.token, now())
    log.info("reported", kind=report.kind, report=str(report.id), failed=error is not None)
