"""Models: their manifest, the start of registration and of an append."""

from typing import Any
from uuid import UUID

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.bootstrap import Services
from app.clock import new_id, now
from app.db import refusals, transitions
from app.db.manifest import Manifest, assurance_notes, expected_assurance
from app.db.states import ModelState, PartRole
from app.db.tables import Batch, DatasetImport, Model
from app.errors import Conflict, Forbidden, InvalidRequest, NotFound
from app.imports import ImportRefused, check
from app.models import repository
from app.models.schemas import Holding, ModelRequest, ModelShown, check_family

_MENDABLE = (ModelState.UPLOADING, ModelState.REJECTED)


def get(session: Session, tenant_id: UUID, name: str, *, lock: bool = False) -> Model:
    model = repository.by_name(session, tenant_id, name, lock=lock)
    if model is None:
        raise NotFound("There is no such model.")
    return model


def shown(session: Session, model: Model) -> ModelShown:
    manifest = Manifest.model_validate(model.manifest)
    changed = refusals.changed_after_refusal(session, model, manifest)
    return ModelShown(
        id=model.id,
        name=model.name,
        state=ModelState(model.state),
        manifest=manifest,
        sigma=manifest.sigma,
        generation=model.generation,
        reasons=model.reasons,
        report=model.report,
        waiting_subjects=transitions.waiting_subjects(session, model.id),
        assurance=expected_assurance(manifest, model.report, changed_after_refusal=changed),
        assurance_notes=assurance_notes(manifest, model.report, changed_after_refusal=changed),
        created_at=model.created_at,
    )


def holdings(session: Session, model: Model) -> list[Holding]:
    """What the model holds, what waits to be appended, what is still to be imported."""
    held = [
        Holding(
            part=part.name,
            role=PartRole(part.role),
            state="staged" if part.first_generation is None else "held",
            rows=part.rows,
            size=part.size,
        )
        for part in repository.parts(session, model.id)
    ]
    return held + [
        Holding(part=entry.name, role=PartRole(entry.role), state="to be imported", rows=None, size=None)
        for entry in repository.imports(session, model.id)
    ]


def create(session: Session, tenant_id: UUID, body: ModelRequest) -> Model:
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
        raise Conflict(f"There is a model {body.name} already.") from None
    return model


def change(session: Session, tenant_id: UUID, name: str, patch: dict[str, Any]) -> Model:
    """Merge `patch` into the manifest and validate the whole.

    The policy may change at any time, for batches sealed from then on; the rest is what the data was
    validated against, so it changes only before that.
    """
    model = get(session, tenant_id, name, lock=True)
    if model.state not in (*_MENDABLE, ModelState.READY):
        raise Conflict(f"The model is {model.state}; its manifest cannot change now.")
    if model.state == ModelState.READY and not _may_change_registered(patch):
        raise Conflict("The model is registered: only its policy and origins.standardisation can change.")
    try:
        manifest = Manifest.model_validate(merged(model.manifest, patch))
        check_family(manifest.family)
    except ValidationError as problem:
        errors = problem.errors(include_input=False, include_context=False, include_url=False)
        raise RequestValidationError([error | {"loc": ("body", *error["loc"])} for error in errors]) from None
    except ValueError as problem:
        raise InvalidRequest(str(problem)) from None
    model.manifest = manifest.model_dump(mode="json", by_alias=True)
    return model


def _may_change_registered(patch: dict[str, Any]) -> bool:
    """The data was validated against the rest; a declaration about constants changes nothing there."""
    origins = patch.get("origins", {})
    return patch.keys() <= {"policy", "origins"} and (
        isinstance(origins, dict) and origins.keys() <= {"standardisation"}
    )


def merged(document: Any, patch: Any) -> Any:
    """JSON Merge Patch (RFC 7396): null removes, so that the default holds again.

    >>> merged({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": None}, "e": 4})
    {'a': 1, 'b': {'d': 3}, 'e': 4}
    """
    if not isinstance(patch, dict):
        return patch
    base = document if isinstance(document, dict) else {}
    combined = {key: value for key, value in base.items() if patch.get(key, value) is not None}
    changes = {key: merged(base.get(key), value) for key, value in patch.items() if value is not None}
    return combined | changes


def plan_import(services: Services, tenant_id: UUID, name: str, role: PartRole, part: str, uri: str) -> None:
    """Only written down: the worker reads it when it registers or appends."""
    try:
        check(uri, services.settings.import_roots)
    except ImportRefused as problem:
        raise Forbidden(f"Refused: {problem}.") from None
    with services.database.writing() as session:
        model = get(session, tenant_id, name, lock=True)
        ready = model.state == ModelState.READY
        if model.state not in _MENDABLE and not (ready and role == PartRole.TRAIN):
            raise Conflict(f"The model is {model.state}; nothing can be imported for it now.")
        if ready and repository.is_appending(session, model.id):
            raise Conflict("Rows are being appended; import more when that is done.")
        if repository.part_named(session, model.id, role, part) is not None:
            raise Conflict("There is a part of this name already.")
        planned = repository.pending_import(session, model.id, role, part)
        if planned is None:
            session.add(DatasetImport(model_id=model.id, role=role, name=part, uri=uri))
        else:
            planned.uri = uri


def start_validation(session: Session, tenant_id: UUID, name: str) -> Model:
    model = get(session, tenant_id, name, lock=True)
    if model.state not in _MENDABLE:
        raise Conflict(f"The model is {model.state}; it can be validated only before that.")
    if not repository.has_training_data(session, model.id):
        raise Conflict("The model has no data yet; send at least one dataset part first.")
    transitions.start_validation(session, model, now())
    return model


def start_append(session: Session, tenant_id: UUID, name: str) -> Batch:
    model = get(session, tenant_id, name, lock=True)
    if model.state != ModelState.READY:
        raise Conflict(f"The model is {model.state}; rows are appended to a ready one.")
    if not repository.has_staged(session, model.id):
        raise Conflict("Nothing waits to be appended; send at least one dataset part first.")
    if transitions.has_open_batch(session, model.id):
        raise Conflict("A batch of this model is under way; append when it has ended.")
    return transitions.start_append(session, model, now())


def request_flush(session: Session, tenant_id: UUID, name: str, *, force: bool = False) -> int:
    """Seal what waits now, without regard to age; fewer people than the policy wants need `force`."""
    model = get(session, tenant_id, name, lock=True)
    waiting = transitions.waiting_subjects(session, model.id)
    smallest = Manifest.model_validate(model.manifest).policy.smallest_batch
    if 0 < waiting < smallest and not force:
        raise Conflict(too_few(waiting, smallest))
    model.flush_requested = waiting > 0
    return waiting


def too_few(waiting: int, smallest: int) -> str:
    """Explain why so few people are not erased at once, and what the caller can do.

    >>> too_few(1, 10).split(":")[0]
    '1 person waits, and the policy wants at least 10 in a batch'
    """
    who = "1 person waits" if waiting == 1 else f"{waiting} people wait"
    return (
        f"{who}, and the policy wants at least {smallest} in a batch: whoever compares the versions before "
        "and after a small erasure can nearly reconstruct the erased rows. The batch is sealed when enough "
        "people wait or a deadline is near. To seal it now all the same, repeat the request with force=true "
        "(lethe model flush NAME --anyway)."
    )
