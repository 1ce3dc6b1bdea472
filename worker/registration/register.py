"""Registration: check that data and weights fit the manifest, and prepare version 0 of the model.

All problems are collected before the model is rejected, so that its owner can fix them at once.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from torch import Tensor, nn

from app.core import logging
from app.core.clock import now
from app.core.storage import Stored
from app.db import paths, transitions
from app.db.states import WEIGHT_FILES, FileKind, PartRole
from app.db.tables import DatasetPart, Model, ModelFile, Version
from app.services import Services
from lethe.certificate.weights_file import nonce_metadata
from worker.context import JobContext
from worker.data import datasets
from worker.data import weights as weights_files
from worker.data.families import Family, FamilyError, FamilyObjective, family_of, size_problem, trained_layers
from worker.data.inspection import Expected, Inspection
from worker.data.scratch import working_folder
from worker.data.weights import WeightsError
from worker.distributed.rank0 import Team
from worker.engine.bounds import reachable, strongly_convex_distance
from worker.engine.linearised.automatic import missing_layers
from worker.engine.linearised.inspection import inspect_linearised
from worker.engine.networks.inspection import inspect_module
from worker.engine.objective import CertifiedGradient
from worker.engine.trust_region import Outcome
from worker.engine.validation import EngineInputError
from worker.features import FeatureBuilder, UnusableRepresentation
from worker.fitting import distributed_objective, fit, noise_problem, read_anchor, solver_settings
from worker.imports import import_parts, sweep_uploads
from worker.registration.advice import advise
from worker.registration.report import Findings, compose_report

log = logging.get_logger("registration")


class Rejected(Exception):
    """The model is rejected, with every reason.

    `uncertifiable` means that a solve on its training rows failed, which later certificates must mention.
    """

    def __init__(self, *reasons: str, uncertifiable: bool = False) -> None:
        super().__init__(*reasons)
        self.reasons = list(reasons)
        self.uncertifiable = uncertifiable


@dataclass(frozen=True)
class AcceptedModel:
    """What an accepted model consists of: version 0, the rows of each part, and the registration report."""

    stored: Stored
    rows: dict[UUID, int]
    report: dict[str, Any]


def register(services: Services, job_id: UUID, token: UUID, team: Team | None = None) -> None:
    """Check a new model, and accept it with a report or reject it with every reason."""
    context = JobContext.load(services, job_id, token, team)
    try:
        with working_folder(services.settings, token) as scratch:
            accepted = _validate(context, scratch)
    except Rejected as problem:
        _reject(context, problem)
        return
    _accept(context, accepted)
    log.info("registered", model=str(context.model.id))


def _accept(context: JobContext, accepted: AcceptedModel) -> None:
    storage, weights = context.services.storage, context.file(FileKind.WEIGHTS)
    with context.writing() as session:
        # No later attempt can start while this one holds the token, so these files are leftovers.
        for path in storage.list(paths.attempts(context.job_id)):
            if path != accepted.stored.path:
                storage.delete(path)
        model = session.get_one(Model, context.model.id)
        for part_id, rows in accepted.rows.items():
            session.get_one(DatasetPart, part_id).rows = rows
        if weights is not None:
            session.delete(session.get_one(ModelFile, (model.id, FileKind.WEIGHTS)))
        session.add(
            Version(
                model_id=model.id,
                number=0,
                generation=0,
                path=accepted.stored.path,
                sha256=accepted.stored.sha256,
                size=accepted.stored.size,
            )
        )
        transitions.accept_model(session, model, accepted.report)
        transitions.finish_job(session, context.job_id, context.token, now())
    if weights is not None:  # version 0 is a copy; if we die here, the next purge deletes them
        storage.delete(weights.path)


def _reject(context: JobContext, problem: Rejected) -> None:
    with context.writing() as session:
        model = session.get_one(Model, context.model.id)
        refused = context.manifest if problem.uncertifiable else None
        transitions.reject_model(session, model, problem.reasons, uncertifiable=refused)
        transitions.finish_job(session, context.job_id, context.token, now())


def _validate(context: JobContext, scratch: Path) -> AcceptedModel:
    started, manifest = time.monotonic(), context.manifest
    sweep_uploads(context)
    try:
        family = family_of(manifest)
    except FamilyError as problem:
        raise Rejected(str(problem)) from None
    if oversized := size_problem(manifest, family, context.services.settings.max_parameters):
        raise Rejected(oversized)
    trained, held_out, represented = _check_files(context, family, scratch)
    objective = _open_objective(context, scratch)
    w, origin, near = _version_zero(context, family, objective)
    advice = advise(context, trained.subjects.shared(held_out.subjects), scratch)
    if advice.problem and manifest.policy.fallback == "fail":
        raise Rejected(f"network: {advice.problem}; or set the policy's fallback to retrain")
    stored = weights_files.write(
        context.services.storage, context.path("model.safetensors"), objective.unflatten(w), nonce_metadata()
    )
    findings = Findings(
        trained=trained,
        held_out=held_out,
        dimension=w.numel(),
        origin=origin,
        near=near,
        advice=advice,
        represented=represented,
        seconds=time.monotonic() - started,
    )
    return AcceptedModel(
        stored, _rows_by_part(context, trained, held_out), compose_report(manifest, findings)
    )


def _check_files(
    context: JobContext, family: Family, scratch: Path
) -> tuple[Inspection, Inspection, dict[str, Any] | None]:
    """Compute features, inspect training data and holdout, and raise with every problem of the files."""
    problems = import_parts(context)
    others = [*_file_problems(context, family), *_network_problems(context, family)]
    try:
        represented = _represent(context, scratch)
    except UnusableRepresentation as problem:  # without features there are no rows to inspect
        raise Rejected(*problems, *problem.reasons, *others) from None
    trained, held_out = (_inspect(context, family, role) for role in PartRole)
    problems += [*trained.problems, *held_out.problems, *_dataset_problems(trained), *others]
    if problems:
        raise Rejected(*problems)
    return trained, held_out, represented


def _represent(context: JobContext, scratch: Path) -> dict[str, Any] | None:
    """Compute the features of all parts, and describe the representation for the report."""
    builder = FeatureBuilder.open(context, scratch)
    if builder is None:
        return None
    builder.build(context.all_parts())
    checked = builder.check(context.parts())
    return {
        "digest": builder.digest,
        "graph_sha256": builder.files.graph.sha256,
        "row_check": checked.row_check,
        "batch_rows": checked.batch_rows,
        "nodes": checked.nodes,
        "operators": list(checked.operators),
        "features_seconds": round(builder.seconds, 3),
    }


def _inspect(context: JobContext, family: Family, role: PartRole) -> Inspection:
    training = role == PartRole.TRAIN
    manifest = context.manifest
    most = context.services.settings.max_dataset_bytes
    inspection = Inspection(Expected(manifest.width, family.classes(manifest), training, most))
    for part in context.parts(role):
        datasets.check_bytes(context.services.storage, part.rows_path, part.rows_sha256)
        name = f"{'dataset' if training else 'holdout'} {part.name}"
        inspection.add(context.services.storage, name, part.rows_path)
    return inspection


def _rows_by_part(context: JobContext, *inspections: Inspection) -> dict[UUID, int]:
    return {
        part.id: inspection.rows[part.rows_path]
        for part in context.all_parts()
        for inspection in inspections
        if part.rows_path in inspection.rows
    }


def _dataset_problems(trained: Inspection) -> list[str]:
    if trained.problems:  # the counts are complete only if every row could be read
        return []
    if trained.total == 0:
        return ["the dataset has no rows: upload at least one part with rows"]
    if trained.expected.classes is not None and len(trained.classes) < 2:
        return ["all rows have the same label: a classifier needs rows of at least two classes"]
    return []


def _file_problems(context: JobContext, family: Family) -> list[str]:
    problems = []
    for kind in WEIGHT_FILES:
        file = context.file(kind)
        if file is not None:
            shapes = family.anchor_shapes if kind == FileKind.ANCHOR else family.shapes
            expected = shapes(context.manifest)
            try:
                weights_files.read(context.services.storage, file.path, expected, sha256=file.sha256)
            except WeightsError as problem:
                problems += [f"{kind}: {reason}" for reason in problem.reasons]
    declared, uploaded = context.manifest.origins.anchor != "zero", context.file(FileKind.ANCHOR) is not None
    if uploaded and not declared:
        problems.append(
            "anchor: one was uploaded, but origins.anchor says zero; declare there where it comes from"
        )
    if declared and not uploaded:
        problems.append("anchor: origins.anchor declares one, but none was uploaded; upload it")
    return problems


def _network_problems(context: JobContext, family: Family) -> list[str]:
    if family.module is None:
        return []
    manifest = context.manifest
    module, outputs = family.module(manifest), family.classes(manifest) or 1
    if manifest.linearised:
        reasons = _linearised_problems(context, module, outputs)
    else:
        reasons = inspect_module(module, width=manifest.width, outputs=outputs)
    problems = [f"network: {reason}" for reason in reasons]
    if context.file(FileKind.ANCHOR) is None:
        problems.append(
            "anchor: a network needs one, because at zero all its units are alike and training cannot start "
            "from there; train the network on public data and upload its weights as the anchor"
        )
    return problems


def _linearised_problems(context: JobContext, module: nn.Module, outputs: int) -> list[str]:
    """Return the reasons for refusing a network that is to be linearised at the uploaded anchor."""
    layers = trained_layers(context.manifest)
    if missing := missing_layers(module, layers):
        return [f"layers: it has no parameters in {', '.join(missing)}; use names of its layers"]
    try:
        anchor = read_anchor(context)
    except WeightsError:
        return []  # reported with the files
    if anchor is None:
        return []
    return inspect_linearised(module, anchor, layers=layers, width=context.manifest.width, outputs=outputs)


def _open_objective(context: JobContext, scratch: Path) -> FamilyObjective:
    paths_of_parts = tuple(part.rows_path for part in context.parts())
    try:
        objective = distributed_objective(context, paths_of_parts, scratch)
        objective.certified_gradient(objective.anchor)  # a first pass over the rows rejects invalid values
    except EngineInputError:  # its message may quote a row, so it is not shown
        raise Rejected(
            f"the family {context.manifest.family} rejects the data: check that its labels and features are "
            "valid"
        ) from None
    return objective


def _version_zero(
    context: JobContext, family: Family, objective: FamilyObjective
) -> tuple[Tensor, str, bool | None]:
    """Return the uploaded weights, or weights trained now, their origin, and whether they are within Δ*.

    The last is None if it is not known. Problems are described without figures: figures depend on rows that
    can be erased, and ε, δ, Δ* and λ must not be fitted to them.
    """
    policy, file = context.manifest.policy, context.file(FileKind.WEIGHTS)
    problems = []
    if file is not None:
        tensors = weights_files.read(context.services.storage, file.path, family.shapes(context.manifest))
        w, origin = family.flat(context.manifest, tensors), "uploaded"
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
    gradient = objective.certified_gradient(w)
    problems += _rounding_problems(context, objective, gradient)
    if problem := noise_problem(w, context.manifest.sigma):
        problems.append(f"{problem}; raise target_distance, or lower epsilon or delta")
    if problems:
        raise Rejected(*problems, uncertifiable=True)
    return w, origin, _is_near(objective, gradient, policy.target_distance)


def _is_near(objective: FamilyObjective, gradient: CertifiedGradient, target: float) -> bool | None:
    """Return whether rule B1 proves the point within `target`, or None for networks."""
    floor = objective.curvature_floor
    if not floor > 0:
        return None
    distance = strongly_convex_distance(gradient_norm=gradient.norm, rounding=gradient.rounding, floor=floor)
    return distance <= target


def _rounding_problems(
    context: JobContext, objective: FamilyObjective, gradient: CertifiedGradient
) -> list[str]:
    floor, target = objective.curvature_floor, context.manifest.policy.target_distance
    if not floor > 0 or reachable(target=target, rounding=gradient.rounding, floor=floor):
        return []
    return [
        f"target_distance {target:.3g} cannot be certified: rounding errors alone may be larger at this "
        "lambda; raise target_distance or lambda"
    ]
