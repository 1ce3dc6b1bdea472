"""Registration: does the data fit the manifest, do the weights, how far are they from the optimum?"""

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from torch import Tensor

from app.bootstrap import Services
from app.clock import now
from app.db import paths, transitions
from app.db.tables import DatasetPart, Model, Version
from app.storage import Stored
from worker.engine.linear import LinearObjective
from worker.engine.training import train
from worker.engine.trust_region import SolverSettings
from worker.engine.validation import EngineInputError
from worker.loading import checkpoints, datasets, families
from worker.loading.checkpoints import CheckpointError
from worker.loading.datasets import DatasetError
from worker.pipeline.certify import distance_refusal
from worker.pipeline.context import CannotContinue, Context
from worker.pipeline.scratch import working_folder
from worker.pipeline.solve import objective_on


@dataclass(frozen=True)
class Registered:
    stored: Stored
    rows: dict[UUID, int]
    report: dict[str, float | int | str]


def register(services: Services, job_id: UUID, token: UUID) -> None:
    context = Context.load(services, job_id, token)
    try:
        with working_folder(services.settings, token) as scratch:
            registered = _validate(context, scratch)
    except (DatasetError, CheckpointError, EngineInputError, CannotContinue) as problem:
        _reject(context, str(problem))
        return
    with context.writing() as session:
        model = session.get_one(Model, context.model.id)
        for part_id, rows in registered.rows.items():
            session.get_one(DatasetPart, part_id).rows = rows
        session.add(
            Version(
                model_id=model.id,
                number=0,
                generation=0,
                path=registered.stored.path,
                sha256=registered.stored.sha256,
                size=registered.stored.size,
            )
        )
        transitions.accept_model(session, model, registered.report)
        transitions.finish_job(session, job_id, token, now())


def _reject(context: Context, reason: str) -> None:
    with context.writing() as session:
        transitions.reject_model(session, session.get_one(Model, context.model.id), [reason])
        transitions.finish_job(session, context.job_id, context.token, now())


def _validate(context: Context, scratch: Path) -> Registered:
    manifest, storage = context.manifest, context.services.storage
    parts = context.parts()
    rows = {
        part.id: datasets.check_schema(
            storage, part.path, width=manifest.width, real_labels=manifest.family == "ridge"
        )
        for part in parts
    }
    objective = objective_on(context, tuple(part.path for part in parts), scratch)
    uploaded = _uploaded(context, objective)
    if uploaded is None:
        solution = train(
            objective,
            target=manifest.policy.target_distance,
            settings=SolverSettings(max_seconds=manifest.policy.time_limit_seconds),
        )
        if refusal := distance_refusal(context, solution):
            raise CannotContinue(f"training did not reach the policy's target_distance: {refusal.detail}")
        w, origin = solution.w, "trained by the service"
    else:
        w, origin = uploaded, "uploaded"
    found = objective.certified_gradient(w)
    stored = checkpoints.write(
        storage, context.path("model.safetensors"), objective.unflatten(w), {}
    )
    storage.delete(paths.uploaded_weights(context.model.id))
    report: dict[str, float | int | str] = {
        "rows": sum(rows.values()),
        "dimension": manifest.dimension,
        "weights": origin,
        "gradient_norm": found.norm,
        "curvature_floor": manifest.lam,
        "sigma": manifest.policy.sigma,
    }
    return Registered(stored, rows, report)


def _uploaded(context: Context, objective: LinearObjective) -> Tensor | None:
    path = paths.uploaded_weights(context.model.id)
    if not context.services.storage.exists(path):
        return None
    tensors = checkpoints.read(context.services.storage, path)
    checkpoints.check_shapes(tensors, families.shapes(context.manifest))
    return objective.flatten(tensors)
