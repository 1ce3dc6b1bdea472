"""Registration: does the data fit the manifest, do the weights, how far are they from the optimum?

Every problem is collected before the model is rejected, so that its owner can mend them all at once.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from torch import Tensor

from app import logs
from app.bootstrap import Services
from app.clock import now
from app.db import paths, transitions
from app.db.states import FileKind, PartRole
from app.db.tables import DatasetPart, Model, ModelFile, Version
from app.storage import Stored
from certificate.checkpoint import nonce_metadata
from worker.engine.bounds import reachable, strongly_convex_distance
from worker.engine.networks.inspection import inspect_module
from worker.engine.objective import CertifiedGradient
from worker.engine.trust_region import Outcome
from worker.engine.validation import EngineInputError
from worker.loading import checkpoints, datasets
from worker.loading.checkpoints import CheckpointError
from worker.loading.families import Family, FamilyError, FamilyObjective, family_of
from worker.loading.inspection import Expected, Inspection
from worker.pipeline import registration_report
from worker.pipeline.advice import advise
from worker.pipeline.certify import noise_refusal
from worker.pipeline.context import Context
from worker.pipeline.fitting import fit
from worker.pipeline.holdings import bring_in, sweep_uploads
from worker.pipeline.registration_report import Measured
from worker.pipeline.scratch import working_folder
from worker.pipeline.solve import objective_on, solver_settings

log = logs.get("pipeline")


class Rejected(Exception):
    """Every reason why the model is not taken. `uncertifiable`: a solve on its training rows was refused."""

    def __init__(self, *reasons: str, uncertifiable: bool = False) -> None:
        super().__init__(*reasons)
        self.reasons = list(reasons)
        self.uncertifiable = uncertifiable


@dataclass(frozen=True)
class Registered:
    stored: Stored
    rows: dict[UUID, int]
    report: dict[str, Any]


def register(services: Services, job_id: UUID, token: UUID) -> None:
    context = Context.load(services, job_id, token)
    try:
        with working_folder(services.settings, token) as scratch:
            registered = _validate(context, scratch)
    except Rejected as problem:
        _reject(context, problem)
        return
    _accept(context, registered)
    log.info("registered", model=str(context.model.id))


def _accept(context: Context, registered: Registered) -> None:
    storage, weights = context.services.storage, context.file(FileKind.WEIGHTS)
    with context.writing() as session:
        # While the token is held no later attempt can begin: what earlier ones left is nobody's.
        for path in storage.list(paths.attempts(context.job_id)):
            if path != registered.stored.path:
                storage.delete(path)
        model = session.get_one(Model, context.model.id)
        for part_id, rows in registered.rows.items():
            session.get_one(DatasetPart, part_id).rows = rows
        if weights is not None:
            session.delete(session.get_one(ModelFile, (model.id, FileKind.WEIGHTS)))
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
        transitions.finish_job(session, context.job_id, context.token, now())
    if weights is not None:  # version 0 is their copy; should we die here, the next purge finds them
        storage.delete(weights.path)


def _reject(context: Context, problem: Rejected) -> None:
    with context.writing() as session:
        model = session.get_one(Model, context.model.id)
        tried = context.manifest if problem.uncertifiable else None
        transitions.reject_model(session, model, problem.reasons, uncertifiable=tried)
        transitions.finish_job(session, context.job_id, context.token, now())


def _validate(context: Context, scratch: Path) -> Registered:
    started, manifest = time.monotonic(), context.manifest
    sweep_uploads(context)
    try:
        family = family_of(manifest)
    except FamilyError as problem:
        raise Rejected(str(problem)) from None
    problems = bring_in(context)
    trained, held_out = (_inspected(context, family, role) for role in PartRole)
    problems += [*trained.problems, *held_out.problems, *_set_problems(trained)]
    problems += [*_file_problems(context, family), *_network_problems(context, family)]
    if problems:
        raise Rejected(*problems)
    objective = _objective(context, scratch)
    w, origin, near = _version_zero(context, family, objective)
    advice = advise(context, trained.subjects.shared(held_out.subjects), scratch)
    if advice.problem and manifest.policy.fallback == "fail":
        raise Rejected(f"network: {advice.problem}; or let the policy's fallback be retrain")
    stored = checkpoints.write(
        context.services.storage, context.path("model.safetensors"), objective.unflatten(w), nonce_metadata()
    )
    measured = Measured(
        trained=trained,
        held_out=held_out,
        dimension=w.numel(),
        origin=origin,
        near=near,
        advice=advice,
        seconds=time.monotonic() - started,
    )
    rows = {
        part.id: inspection.rows[part.path]
        for part in context.holdings()
        for inspection in (trained, held_out)
        if part.path in inspection.rows
    }
    return Registered(stored, rows, registration_report.compose(manifest, measured))


def _inspected(context: Context, family: Family, role: PartRole) -> Inspection:
    training = role == PartRole.TRAIN
    manifest = context.manifest
    most = context.services.settings.max_dataset_bytes
    inspection = Inspection(Expected(manifest.width, family.classes(manifest), training, most))
    for part in context.parts(role):
        datasets.check_bytes(context.services.storage, part.path, part.sha256)
        name = f"{'dataset' if training else 'holdout'} {part.name}"
        inspection.add(context.services.storage, name, part.path)
    return inspection


def _set_problems(trained: Inspection) -> list[str]:
    if trained.problems:  # counted only where every row could be read
        return []
    if trained.total == 0:
        return ["the dataset has no rows"]
    if trained.expected.classes is not None and len(trained.classes) < 2:
        return ["all rows have the same label: there is nothing to tell apart"]
    return []


def _file_problems(context: Context, family: Family) -> list[str]:
    problems = []
    for kind in FileKind:
        file = context.file(kind)
        if file is not None:
            try:
                tensors = checkpoints.read(context.services.storage, file.path, sha256=file.sha256)
                found = checkpoints.shape_problems(tensors, family.shapes(context.manifest))
            except CheckpointError as problem:
                found = [str(problem)]
            problems += [f"{kind}: {text}" for text in found]
    declared, sent = context.manifest.origins.anchor != "zero", context.file(FileKind.ANCHOR) is not None
    if sent and not declared:
        problems.append("anchor: one was sent, but origins.anchor says zero; declare where it comes from")
    if declared and not sent:
        problems.append("anchor: origins.anchor declares one, but none was sent")
    return problems


def _network_problems(context: Context, family: Family) -> list[str]:
    if family.module is None:
        return []
    manifest = context.manifest
    found = inspect_module(
        family.module(manifest), width=manifest.width, outputs=family.classes(manifest) or 1
    )
    problems = [f"network: {reason}" for reason in found]
    if context.file(FileKind.ANCHOR) is None:
        problems.append(
            "anchor: a network needs one, trained on public data: at zero all its units are alike, and from "
            "there retraining leads nowhere"
        )
    return problems


def _objective(context: Context, scratch: Path) -> FamilyObjective:
    paths_of_parts = tuple(part.path for part in context.parts())
    try:
        objective = objective_on(context, paths_of_parts, scratch)
        objective.certified_gradient(objective.anchor)  # the first pass refuses what has no meaning
    except EngineInputError:
        # The engine's messages may quote a row.
        raise Rejected(f"the family {context.manifest.family} refuses the data") from None
    return objective


def _version_zero(
    context: Context, family: Family, objective: FamilyObjective
) -> tuple[Tensor, str, bool | None]:
    """Return the weights that were sent, or A(D), and whether they are within Δ*; None: not to be told.

    What is wrong is said without figures: they are functions of rows that can be erased, and ε, δ, Δ* and λ
    must not be fitted to them.
    """
    policy, file = context.manifest.policy, context.file(FileKind.WEIGHTS)
    problems = []
    if file is not None:
        w, origin = (
            family.flat(context.manifest, checkpoints.read(context.services.storage, file.path)),
            "uploaded",
        )
    else:
        solution = fit(
            objective,
            objective.anchor,
            target=policy.target_distance,
            settings=solver_settings(context.manifest),
        )
        w, origin = solution.w, "trained by the service"
        if solution.outcome not in (Outcome.CERTIFIED, Outcome.REACHED):
            problems.append(
                f"training did not reach the policy's target_distance ({solution.outcome}); try other values "
                "of target_distance and lambda on public rows, not on these"
            )
    found = objective.certified_gradient(w)
    problems += _rounding_problems(context, objective, found)
    if refusal := noise_refusal(w, context.manifest.sigma):
        problems.append(f"{refusal.detail}; raise target_distance or lower epsilon or delta")
    if problems:
        raise Rejected(*problems, uncertifiable=True)
    return w, origin, _is_near(objective, found, policy.target_distance)


def _is_near(objective: FamilyObjective, found: CertifiedGradient, target: float) -> bool | None:
    """By B1; of a network's curvature nothing is proven before it is measured."""
    floor = objective.curvature_floor
    if not floor > 0:
        return None
    distance = strongly_convex_distance(gradient_norm=found.norm, rounding=found.rounding, floor=floor)
    return distance <= target


def _rounding_problems(context: Context, objective: FamilyObjective, found: CertifiedGradient) -> list[str]:
    floor, target = objective.curvature_floor, context.manifest.policy.target_distance
    if not floor > 0 or reachable(target=target, rounding=found.rounding, floor=floor):
        return []
    return [
        f"target_distance {target:.3g} cannot be certified: rounding errors alone may be larger at this "
        "lambda; raise target_distance or lambda"
    ]
