"""Models: creating, changing, validating, appending to, flushing and retiring them."""

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.core.clock import new_id, now
from app.core.import_roots import ImportRefused, check
from app.db import audit_log, paths, refusals, transitions
from app.db.audit_log import Action
from app.db.manifest import Manifest, assurance_notes, expected_assurance
from app.db.states import PART_IMPORTS, FileKind, ImportRole, ModelState, PartRole, TaskState
from app.db.tables import (
    Batch,
    DatasetImport,
    DatasetPart,
    Job,
    Model,
    ModelFile,
    Suppression,
    Task,
    Tenant,
    Upload,
)
from app.gateway.errors import Conflict, Forbidden, InvalidRequest, NotFound
from app.gateway.models import repository, representations
from app.gateway.models.schemas import DatasetPartView, ModelRequest, ModelView, check_family
from app.services import Services
from lethe.certificate.vocabulary import ASSURANCES

MANY_PEOPLE, COUNT_SECONDS = 100, 5.0
BEFORE_VALIDATION = (ModelState.UPLOADING, ModelState.REJECTED)


def get(session: Session, tenant_id: UUID, name: str, *, lock: bool = False) -> Model:
    """Return the tenant's model with this name, or raise `NotFound`."""
    model = repository.by_name(session, tenant_id, name, lock=lock)
    if model is None:
        raise NotFound("Your tenant has no model with this name.")
    return model


class WaitingPeople:
    """Counts the people who wait for each model of a list.

    Counting reads one row per person. A count of at least `MANY_PEOPLE` is therefore used again for
    `COUNT_SECONDS`. A single model is always counted anew.
    """

    def __init__(self) -> None:
        self._counts: dict[UUID, tuple[float, int]] = {}

    def count(self, session: Session, model_ids: Sequence[UUID]) -> dict[UUID, int]:
        """Return how many people wait for each model. Models for which nobody waits are left out."""
        moment = time.monotonic()
        known = {} if len(model_ids) == 1 else self._known(model_ids, moment)
        unknown = [model_id for model_id in model_ids if model_id not in known]
        counted = transitions.waiting_subjects_by_model(session, unknown) if unknown else {}
        many = {model_id: people for model_id, people in counted.items() if people >= MANY_PEOPLE}
        self._counts |= {model_id: (moment + COUNT_SECONDS, people) for model_id, people in many.items()}
        return known | dict(counted)

    def _known(self, model_ids: Sequence[UUID], moment: float) -> dict[UUID, int]:
        self._counts = {model_id: entry for model_id, entry in self._counts.items() if entry[0] > moment}
        return {model_id: self._counts[model_id][1] for model_id in model_ids if model_id in self._counts}


_waiting_people = WaitingPeople()


def describe_model(session: Session, model: Model) -> ModelView:
    """Return a model as its tenant sees it."""
    return describe_models(session, [model])[0]


def describe_models(session: Session, models: Sequence[Model]) -> list[ModelView]:
    """Return models as their tenant sees them, in a constant number of queries.

    In a list, the number of waiting people of a model may be some seconds old if it is large.
    """
    manifests = [Manifest.model_validate(model.manifest) for model in models]
    waiting = _waiting_people.count(session, [model.id for model in models])
    changed = refusals.models_changed_after_refusal(session, list(zip(models, manifests, strict=True)))
    files = representations.describe_files(
        session, {model.id: manifest for model, manifest in zip(models, manifests, strict=True)}
    )
    return [
        ModelView(
            id=model.id,
            name=model.name,
            state=ModelState(model.state),
            manifest=manifest,
            sigma=manifest.sigma,
            generation=model.generation,
            reasons=model.reasons,
            report=model.report,
            progress=model.progress,
            representation=files.get(model.id),
            waiting_subjects=waiting.get(model.id, 0),
            assurance=(
                assurance := expected_assurance(
                    manifest, model.report, changed_after_refusal=model.id in changed
                )
            ),
            assurance_text=ASSURANCES[assurance],
            assurance_notes=assurance_notes(
                manifest, model.report, changed_after_refusal=model.id in changed
            ),
            created_at=model.created_at,
        )
        for model, manifest in zip(models, manifests, strict=True)
    ]


def list_parts(session: Session, model: Model) -> list[DatasetPartView]:
    """Return the parts in use, the staged parts, and the parts still to be imported."""
    present = [
        DatasetPartView(
            part=part.name,
            role=PartRole(part.role),
            state="staged" if part.first_generation is None else "held",
            rows=part.rows,
            size=part.size,
        )
        for part in repository.parts(session, model.id)
    ]
    return present + [
        DatasetPartView(
            part=entry.name, role=PartRole(entry.role), state="to be imported", rows=None, size=None
        )
        for entry in repository.part_imports(session, model.id)
    ]


def create(session: Session, tenant_id: UUID, body: ModelRequest, *, quota: int) -> Model:
    """Create a model. Raise `Conflict` if the tenant has one with the same name, or `quota` models."""
    representations.check_library(session, body.manifest.representation)
    model = Model(
        id=new_id(),
        tenant_id=tenant_id,
        name=body.name,
        manifest=body.manifest.model_dump(mode="json", by_alias=True),
        created_at=now(),
    )
    session.add(model)
    try:
        session.flush()
    except IntegrityError:
        raise Conflict(f"Your tenant already has a model named {body.name}. Choose another name.") from None
    if quota and repository.count_live(session, tenant_id) > quota:
        raise Conflict(
            f"Your tenant has {quota} models, which is the limit of this installation. Retire one that you "
            "no longer need, or ask the operator for more."
        )
    _record(session, Action.MODEL_CREATED, model, {"policy": model.manifest["policy"]})
    return model


def change(session: Session, tenant_id: UUID, name: str, patch: dict[str, Any]) -> Model:
    """Merge `patch` into the manifest and validate the result.

    The policy can change at any time, for batches sealed from then on. The data was validated against the
    rest of the manifest, so the rest can change only before validation.
    """
    model = get(session, tenant_id, name, lock=True)
    if model.state not in (*BEFORE_VALIDATION, ModelState.READY):
        raise Conflict(f"The model is {model.state}. Its manifest cannot be changed in this state.")
    if model.state == ModelState.READY and not _may_change_registered(patch):
        raise Conflict(
            "The model is registered, so only its policy, annotations and origins.standardisation can be "
            "changed. To change anything else, register a new model."
        )
    try:
        manifest = Manifest.model_validate(merge_patch(model.manifest, patch))
        check_family(manifest.family)
    except ValidationError as problem:
        errors = problem.errors(include_input=False, include_url=False)
        raise RequestValidationError([error | {"loc": ("body", *error["loc"])} for error in errors]) from None
    except ValueError as problem:
        raise InvalidRequest(str(problem)) from None
    if "representation" in patch:
        representations.check_library(session, manifest.representation)
        representations.forget_unused_files(session, model, manifest.representation)
    before, model.manifest = model.manifest, manifest.model_dump(mode="json", by_alias=True)
    _record(session, Action.MODEL_CHANGED, model, manifest_changes(before, model.manifest))
    return model


def manifest_changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the names of the fields that differ, and for the policy the values before and after.

    Other fields may hold free text, which is not copied to the audit log.

    >>> manifest_changes({"a": "x", "policy": {"epsilon": 1}}, {"a": "y", "policy": {"epsilon": 2}})
    {'fields': ['a', 'policy'], 'policy': {'epsilon': {'before': 1, 'after': 2}}}
    """
    old, new = before.get("policy", {}), after.get("policy", {})
    return {
        "fields": sorted(
            name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        ),
        "policy": {
            name: {"before": old.get(name), "after": new.get(name)}
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        },
    }


def _record(session: Session, action: Action, model: Model, details: dict[str, Any] | None = None) -> None:
    audit_log.record(session, model.tenant_id, action, f"model/{model.name}", details)


def _may_change_registered(patch: dict[str, Any]) -> bool:
    """Return whether the patch only changes what the data was not validated against."""
    origins = patch.get("origins", {})
    return patch.keys() <= {"policy", "origins", "annotations"} and (
        isinstance(origins, dict) and origins.keys() <= {"standardisation"}
    )


def merge_patch(document: Any, patch: Any) -> Any:
    """Apply a JSON Merge Patch (RFC 7396). Null removes a member, so that its default applies again.

    >>> merge_patch({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": None}, "e": 4})
    {'a': 1, 'b': {'d': 3}, 'e': 4}
    """
    if not isinstance(patch, dict):
        return patch
    base = document if isinstance(document, dict) else {}
    combined = {key: value for key, value in base.items() if patch.get(key, value) is not None}
    changes = {key: merge_patch(base.get(key), value) for key, value in patch.items() if value is not None}
    return combined | changes


def plan_import(
    services: Services, tenant_id: UUID, name: str, role: ImportRole, uri: str, part: str = ""
) -> None:
    """Record that a file is to be imported. A worker copies it when it registers the model or appends.

    Only dataset parts have a name (`part`).
    """
    with services.database.reading() as session:
        tenant = session.get_one(Tenant, tenant_id).name
    try:
        check(uri, services.settings.import_roots, tenant)
    except ImportRefused as problem:
        raise Forbidden(f"The import was refused: {problem}.") from None
    with services.database.writing() as session:
        model = get(session, tenant_id, name, lock=True)
        ready = model.state == ModelState.READY
        if model.state not in BEFORE_VALIDATION and not (ready and role == ImportRole.TRAIN):
            raise Conflict(f"The model is {model.state}. Nothing can be imported in this state.")
        if ready and repository.is_appending(session, model.id):
            raise Conflict("An append is in progress. Import more parts after it has ended.")
        if role in PART_IMPORTS:
            if repository.part_named(session, model.id, PartRole(role), part) is not None:
                raise Conflict("The model already has a part with this name. Choose another name.")
        else:
            representations.check_importable(session, model, FileKind(role))
        planned = repository.pending_import(session, model.id, role, part)
        if planned is None:
            session.add(DatasetImport(model_id=model.id, role=role, name=part, uri=uri))
        else:
            planned.uri = uri
        _record(session, Action.FILE_IMPORTED, model, {"file": role.value, "part": part})


def start_validation(session: Session, tenant_id: UUID, name: str) -> Model:
    """Start registration. Raise `Conflict` if the model is past it, lacks a file or is being advised on.

    Registration and advice both import the planned parts, so they do not run at the same time.
    """
    model = get(session, tenant_id, name, lock=True)
    if model.state not in BEFORE_VALIDATION:
        raise Conflict(f"The model is {model.state}. It can be validated only while uploading or rejected.")
    if not repository.has_training_data(session, model.id):
        raise Conflict("The model has no data yet. Upload at least one dataset part first.")
    representations.check_complete(session, model)
    if repository.is_advising(session, model.id):
        raise Conflict("Advice on this model is in progress. Validate the model after it has ended.")
    transitions.start_validation(session, model, now())
    _record(session, Action.MODEL_REGISTERED, model)
    return model


def start_append(session: Session, tenant_id: UUID, name: str) -> Batch:
    """Start a batch that appends the staged parts. Raise `Conflict` if it cannot start now."""
    model = get(session, tenant_id, name, lock=True)
    if model.state != ModelState.READY:
        raise Conflict(f"The model is {model.state}. Rows can be appended only to a ready model.")
    if not repository.has_staged(session, model.id):
        raise Conflict("The model has no staged part. Upload at least one dataset part first.")
    if transitions.has_open_batch(session, model.id):
        raise Conflict("Another batch of this model is in progress. Append after it has ended.")
    batch = transitions.start_append(session, model, now())
    _record(session, Action.MODEL_APPENDED, model, {"batch_id": str(batch.id)})
    return batch


def request_flush(session: Session, tenant_id: UUID, name: str, *, force: bool = False) -> int:
    """Ask the dispatcher to seal the waiting erasures now, and return how many people wait.

    With fewer people than the policy's minimum this needs `force`.
    """
    model = get(session, tenant_id, name, lock=True)
    waiting = transitions.waiting_subjects(session, model.id)
    smallest = Manifest.model_validate(model.manifest).policy.smallest_batch
    if 0 < waiting < smallest and not force:
        raise Conflict(too_few(waiting, smallest))
    model.flush_requested = waiting > 0
    _record(session, Action.MODEL_FLUSHED, model, {"waiting_subjects": waiting, "force": force})
    return waiting


def too_few(waiting: int, smallest: int) -> str:
    """Explain why so few people are not erased at once, and what the caller can do.

    >>> too_few(1, 10).split(".")[0]
    '1 person is waiting, and the policy requires at least 10 in a batch'
    """
    who = "1 person is waiting" if waiting == 1 else f"{waiting} people are waiting"
    return (
        f"{who}, and the policy requires at least {smallest} in a batch. Anyone who compares the versions "
        "before and "
        "after a small erasure can nearly reconstruct the erased rows. The batch is sealed when enough "
        "people are "
        "waiting or a deadline is near. To seal it now anyway, repeat the request with force=true "
        "(lethe model flush NAME --anyway)."
    )


# Retirement


def retire(session: Session, tenant_id: UUID, name: str) -> Model:
    """Retire a model and delete its data from the database. Retiring it again changes nothing.

    Raises `Conflict` while anyone's erasure from the model is open, so that nobody is forgotten.
    """
    model = get(session, tenant_id, name, lock=True)
    if model.state == ModelState.VALIDATING:
        raise Conflict("The model is being validated. Retire it after that.")
    if model.state in BEFORE_VALIDATION:
        transitions.complete_unreached(session, model, now())
    _require_no_open_erasure(session, model)
    transitions.retire_model(session, model)
    for table in (DatasetPart, ModelFile, Upload, DatasetImport, Suppression):
        session.execute(delete(table).where(table.model_id == model.id))
    _record(session, Action.MODEL_RETIRED, model)
    return model


def delete_files(services: Services, model_id: UUID) -> None:
    """Delete the files of a retired model, after the commit.

    It is safe to repeat. The orphan sweep removes whatever a crash leaves behind.
    """
    with services.database.reading() as session:
        jobs = session.scalars(select(Job.id).where(Job.model_id == model_id)).all()
    own = [paths.uploaded(model_id), paths.sketches(model_id)]
    for folder in [*own, *(paths.attempts(job_id) for job_id in jobs)]:
        services.storage.delete(folder)
    services.database.forget_deleted_bytes()


def _require_no_open_erasure(session: Session, model: Model) -> None:
    waiting, _, _ = transitions.waiting_requests(session, model.id)
    if waiting:
        raise Conflict(
            "Erasures are waiting for this model. Flush it and wait until they are completed, or withdraw "
            "them."
        )
    if transitions.has_open_batch(session, model.id):
        raise Conflict("A batch of this model is in progress. Retire the model after the batch has ended.")
    failed = select(Task.id).where(Task.model_id == model.id, Task.state == TaskState.FAILED)
    if session.scalar(failed.limit(1)) is not None:
        raise Conflict("An erasure failed on this model. Retry its batch first.")
