"""What every report job shares: it measures one version and its rows, and gives up if they change.

Batches of the same model are not kept waiting. A report whose rows were replaced in the meantime says so and
ends. Its copy of the rows has no name on disk while it is used, so nothing has to be cleaned up.
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

from app.core import logging
from app.core.clock import now
from app.db import transitions
from app.db.states import PartRole, VersionState
from app.db.tables import Certificate, DatasetPart, Model, Report, Version
from worker.context import CannotContinue, JobContext
from worker.data.families import FamilyObjective
from worker.data.scratch import working_folder
from worker.engine.trust_region import Outcome, Solution
from worker.fitting import distributed_objective, fit, local_objective, published_tensors, solver_settings

log = logging.get_logger("reports")
CHANGED = "the model changed; ask again"
POLL_SECONDS = 1.0


class Snapshot(NamedTuple):
    """The state of a model that a report describes. If it changes, the report is void."""

    generation: int
    version: int | None  # None once the model is retired
    parts: frozenset[UUID]


@dataclass
class ReportJob:
    """One report under way: its context, the state of the model it describes, and a scratch folder."""

    context: JobContext
    report: Report
    snapshot: Snapshot
    scratch: Path
    _polled_at: float = field(default=0.0)

    def certificate(self) -> Certificate | None:
        """Return the certificate of the current version, or None for version 0."""
        certificate_id = self.context.current_version().certificate_id
        if certificate_id is None:
            return None
        with self.context.services.database.reading() as session:
            return session.get_one(Certificate, certificate_id)

    def objective(self, role: PartRole) -> FamilyObjective:
        """Open the objective on the training rows, for a fit, or on the holdout, for scoring."""
        paths = tuple(part.rows_path for part in self.context.parts(role))
        if not paths:
            raise CannotContinue(f"the model has no {role} rows")
        folder = self.scratch / role
        open_objective = distributed_objective if role == PartRole.TRAIN else local_objective
        objective = open_objective(self.context, paths, folder)
        shutil.rmtree(folder)  # the rows stay mapped, and are freed when this process ends
        return objective

    def published(self) -> dict[str, Tensor]:
        """Read the weights of the current version."""
        return published_tensors(self.context)

    def retrain(self, objective: FamilyObjective, target: float) -> Solution:
        """Retrain from the anchor. The result has no noise: do not store it, and overwrite it after use."""
        settings = solver_settings(self.context.manifest)
        solution = fit(objective, objective.anchor, target=target, settings=settings, cancelled=self._changed)
        if solution.outcome == Outcome.CANCELLED:
            raise CannotContinue(CHANGED)
        return solution

    def _changed(self) -> bool:
        if time.monotonic() - self._polled_at < POLL_SECONDS:
            return False
        self._polled_at = time.monotonic()
        with self.context.services.database.reading() as session:
            return read_snapshot(session, self.context.model.id) != self.snapshot


def read_snapshot(session: Session, model_id: UUID) -> Snapshot:
    """Read the model's generation, current version and parts."""
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
    return Snapshot(session.get_one(Model, model_id).generation, current, frozenset(parts))


Measure = Callable[[ReportJob], dict[str, Any]]


def run_report(context: JobContext, measure: Measure) -> None:
    """Measure, and store the result or the reason why there is none."""
    with context.services.database.reading() as session:
        report = session.scalars(select(Report).where(Report.job_id == context.job_id)).one()
        snapshot = read_snapshot(session, context.model.id)
    try:
        result = _measure_unchanged(context, report, snapshot, measure)
    except CannotContinue as problem:
        _conclude(context, report, error=str(problem))
        return
    _conclude(context, report, result=result, snapshot=snapshot)


def _measure_unchanged(
    context: JobContext, report: Report, snapshot: Snapshot, measure: Measure
) -> dict[str, Any]:
    """Measure. If that fails because the model changed, say so instead of failing the attempt."""
    if snapshot.version != report.version:
        raise CannotContinue(CHANGED)
    try:
        with working_folder(context.services.settings, context.token) as scratch:
            return measure(ReportJob(context, report, snapshot, scratch))
    except CannotContinue:
        raise
    except Exception:
        with context.services.database.reading() as session:
            if read_snapshot(session, context.model.id) == snapshot:
                raise
        raise CannotContinue(CHANGED) from None  # a file was purged while it was being read


def _conclude(
    context: JobContext,
    report: Report,
    *,
    result: dict[str, Any] | None = None,
    error: str | None = None,
    snapshot: Snapshot | None = None,
) -> None:
    with context.writing() as session:
        if snapshot is not None and read_snapshot(session, context.model.id) != snapshot:
            result, error = None, CHANGED
        stored = session.get_one(Report, report.id)
        stored.result, stored.error, stored.completed_at = result, error and error[:1000], now()
        transitions.finish_job(session, context.job_id, context.token, now())
    log.info("report ended", kind=report.kind, report=str(report.id), failed=error is not None)
