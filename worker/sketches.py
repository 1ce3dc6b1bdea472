"""Curvature sketches of published versions: prepared while the worker is idle, used by the next erasure.

A sketch (`worker.engine.sketch`) depends on the training rows and the published weights of one version, and
on nothing else. It is stored under the id of that version. The purge that follows the next version deletes
it, and a new one is computed from the rows that remain.

Preparing never delays an erasure. It runs after a job, at low priority, in a process that the worker kills as
soon as the next message arrives (`worker.queue`). A job that finds no usable sketch solves without one.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID, uuid4

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from sqlalchemy import select

from app.core import logging
from app.core.storage import StorageError
from app.db import paths
from app.db.manifest import Manifest
from app.db.states import ModelState, VersionState
from app.db.tables import Model, Version
from app.services import Services
from worker.context import JobContext
from worker.data.families import family_of
from worker.data.scratch import working_folder
from worker.distributed.rank0 import Team
from worker.engine.linear import LinearObjective
from worker.engine.linearised.objective import LinearisedObjective
from worker.engine.networks.objective import NetworkObjective
from worker.engine.sketch import CurvatureSketch, SketchCancelled, build_sketch
from worker.fitting import local_objective, published_weights

log = logging.get_logger("sketches")
LEAST_NUMBERS = 4_000_000  # in the training rows. Smaller models are solved in a moment anyway.
MOST_DIRECTIONS, LEAST_DIRECTIONS = 512, 16
NETWORK_DIRECTIONS = 64  # A network's sketch only preconditions, and each direction takes two products.
MEGABYTE = 2**20
_NICE = 10
_TENSORS = {"basis", "values"}
_HEAD = 128  # two SHA-256 digests as text


def read_sketch(context: JobContext) -> CurvatureSketch | None:
    """Read the sketch of the current version, or return None if there is no usable one.

    A sketch cannot make a certificate wrong, only a solve slow, so a damaged one is ignored.
    """
    storage, path = context.services.storage, paths.sketch(context.model.id, context.current_version().id)
    try:
        if not storage.exists(path):
            return None
        content = b"".join(storage.read(path))
        sketch, problem = parse(
            content, _key(context), family_of(context.manifest).dimension(context.manifest)
        )
    except StorageError:
        sketch, problem = None, "it could not be read"
    if sketch is None:
        log.warning("curvature sketch ignored", model=str(context.model.id), because=problem)
        return None
    device = context.team.device
    return CurvatureSketch(sketch.basis.to(device), sketch.values.to(device))


def prepare_sketches(services: Services, first: UUID | None = None) -> None:
    """Prepare the missing sketches of all models, beginning with the model `first`."""
    with suppress(OSError):
        os.nice(_NICE)
    for model, manifest in _candidates(services, first):
        token = uuid4()
        context = JobContext(services, token, token, model, manifest, None, Team.alone(services.settings))
        with suppress(SketchCancelled):
            prepare_sketch(context)


def prepare_sketch(context: JobContext) -> bool:
    """Build and store the sketch of the current version, unless there is one. Return whether it was stored.

    Raises `SketchCancelled` if the version is superseded meanwhile.
    """
    storage, version, parts = context.services.storage, context.current_version(), context.parts()
    path = paths.sketch(context.model.id, version.id)
    if storage.exists(path):
        return False
    key = _key(context)
    with working_folder(context.services.settings, context.token) as scratch:
        paths_of_rows = tuple(part.rows_path for part in parts)
        objective = local_objective(context, paths_of_rows, scratch, activations_kept=True)
        if not isinstance(objective, LinearObjective | LinearisedObjective | NetworkObjective):
            return False
        rank = sketch_rank(
            numbers=objective.rows.count * context.manifest.width,
            dimension=objective.dimension,
            megabytes=context.services.settings.sketch_megabytes,
        )
        if rank is None:
            return False
        sketch = build_sketch(
            objective,
            published_weights(context, objective),
            rank=min(rank, NETWORK_DIRECTIONS) if isinstance(objective, NetworkObjective) else rank,
            cancelled=lambda: not _is_current(context, version.id),
        )
    return sketch is not None and _store(context, version.id, key, sketch)


def _candidates(services: Services, first: UUID | None) -> Iterator[tuple[Model, Manifest]]:
    with services.database.reading() as session:
        models = session.scalars(select(Model).where(Model.state == ModelState.READY)).all()
    for model in sorted(models, key=lambda model: model.id != first):
        manifest = Manifest.model_validate(model.manifest)
        if manifest.policy.method == "tr" and manifest.rule in ("B1", "B2"):
            yield model, manifest


def sketch_rank(*, numbers: int, dimension: int, megabytes: int) -> int | None:
    """Return how many directions to compute, or None if too few fit to be of use.

    A sketch is at most a quarter as large as the training rows with their `numbers`: applying it should be
    cheap beside a pass over them.
    """
    room = megabytes * MEGABYTE // (4 * (dimension + 1))
    rank = min(MOST_DIRECTIONS, room, numbers // (4 * dimension), dimension // 4)
    return rank if rank >= LEAST_DIRECTIONS and numbers >= LEAST_NUMBERS else None


def _store(context: JobContext, version_id: UUID, key: str, sketch: CurvatureSketch) -> bool:
    """Write the sketch with the model locked, if its version is still current. Return whether it was written.

    Publishing the next version takes the same lock, and the purge lists the sketches after that. So it
    deletes every sketch from the old rows, also one whose process is killed here.
    """
    content = serialise(sketch, key)
    with context.services.database.writing() as session:
        model = session.get_one(Model, context.model.id, with_for_update=True)
        current = select(Version.id).where(
            Version.model_id == model.id, Version.state == VersionState.CURRENT
        )
        if model.state != ModelState.READY or session.scalars(current).one() != version_id:
            return False
        context.services.storage.write(paths.sketch(model.id, version_id), [content])
    log.info("curvature sketch prepared", model=str(context.model.id))
    return True


def _is_current(context: JobContext, version_id: UUID) -> bool:
    with context.services.database.reading() as session:
        version = session.get(Version, version_id)
        return version is not None and version.state == VersionState.CURRENT


def _key(context: JobContext) -> str:
    """Return a digest of what a sketch is made from: the published weights, the training rows, and λ."""
    parts = sorted(part.rows_sha256 for part in context.parts())
    text = "\n".join([context.current_version().sha256, repr(context.manifest.lam), *parts])
    return hashlib.sha256(text.encode()).hexdigest()


def serialise(sketch: CurvatureSketch, key: str) -> bytes:
    """Return the file of a sketch: the digests of its origin and of its content, then a safetensors file."""
    content = save({"basis": sketch.basis.cpu(), "values": sketch.values.cpu()})
    return f"{key}{hashlib.sha256(content).hexdigest()}".encode() + content


def parse(data: bytes, key: str, dimension: int) -> tuple[CurvatureSketch | None, str | None]:
    """Return the sketch in a file, or None and why it cannot be used."""
    head, content = data[:_HEAD], data[_HEAD:]
    if head[: len(key)] != key.encode():
        return None, "it was made from other rows or weights"
    if head[len(key) :] != hashlib.sha256(content).hexdigest().encode():
        return None, "it is damaged"
    try:
        tensors = load(content)
    except SafetensorError:
        return None, "it is not a safetensors file"
    if set(tensors) != _TENSORS:
        return None, "its tensors have unexpected names"
    basis, values = tensors["basis"], tensors["values"]
    fits = (
        basis.ndim == 2 and basis.shape == (len(values), dimension) and values.ndim == 1 and len(values) > 0
    )
    if not fits or {basis.dtype, values.dtype} != {torch.float32}:
        return None, "its tensors have unexpected shapes or types"
    if not (torch.isfinite(basis).all() and torch.isfinite(values).all() and (values >= 0).all()):
        return None, "it contains impossible numbers"
    return CurvatureSketch(basis, values), None
