"""Forms about models: registering one, uploading its files, starting its validation, and flushing it.

Each action calls the service that the API calls, in one place.
"""

import json
import re
import tomllib
from typing import Any, Literal, cast
from uuid import UUID

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse

from app.db.manifest import Manifest
from app.gateway.auth.guard import ServicesOf
from app.gateway.dashboard.confirmation import Action, Checkbox, Fact, render_confirmation
from app.gateway.dashboard.multipart import Fields, MultipartForm, read_upload
from app.gateway.dashboard.pages import PageRoute, render_page
from app.gateway.dashboard.sessions import ModelAdmin, OwnForm
from app.gateway.dashboard.wording import format_count
from app.gateway.errors import InvalidRequest
from app.gateway.models import files, service
from app.gateway.models.files import Target
from app.gateway.models.schemas import NAME, PART, ModelName, ModelRequest, check_family
from app.gateway.wake_up import WAKES_DISPATCHER
from app.services import Services
from lethe.manifest_check import manifest_problems

router = APIRouter(route_class=PageRoute, include_in_schema=False)
MAX_MANIFEST_BYTES = 1 << 20
FileKindName = Literal["dataset", "holdout", "weights", "anchor", "representation", "tokenizer"]
# What people can upload, in the order of the form: the kind, its name, and whether it is a part with a name.
FILES: dict[str, tuple[str, bool]] = {
    "dataset": ("Training rows (Parquet)", True),
    "holdout": ("Holdout rows (Parquet)", True),
    "weights": ("Trained weights (safetensors)", False),
    "anchor": ("Anchor (safetensors)", False),
    "representation": ("Representation (ONNX)", False),
    "tokenizer": ("Tokenizer (JSON)", False),
}
FLUSH = Action(
    "flush",
    "Start the batch now",
    "Everyone who is waiting is erased in one batch, without waiting for more people or a deadline. The "
    "batch publishes a new version, which uses part of the model's privacy budget.",
)
ANYWAY = Checkbox("force", "Start it anyway, with fewer people than the policy requires")


@router.get("/register")
def show_form(request: Request, _: ModelAdmin) -> Response:
    """Show the form for a new model."""
    return _render_form(request)


@router.post("/register")
async def register_model(request: Request, caller: ModelAdmin, services: ServicesOf) -> Response:
    """Create a model from its manifest. The model's page then takes its files."""
    typed = {"name": "", "manifest": ""}
    problems: list[str] = []

    def create(fields: Fields, form: MultipartForm) -> str | None:
        typed.update({name: fields.get(name, [""])[-1] for name in typed})
        content = b"".join(_limited(form)) if form.file_name else typed["manifest"].encode()
        if form.file_name:
            typed["manifest"] = content.decode(errors="replace")
        document = _parse_manifest(content, problems)
        body = _checked(typed["name"].strip(), document, problems)
        return None if body is None else _create(services, caller.tenant_id, body)

    name = await read_upload(request, create)
    if name is None:
        return _render_form(request, status=422, problems=problems, **typed)
    return RedirectResponse(f"/models/{name}", 303)


def _limited(form: MultipartForm) -> list[bytes]:
    pieces, size = [], 0
    for piece in form.file():
        size += len(piece)
        if size > MAX_MANIFEST_BYTES:
            raise InvalidRequest("The manifest is too large. It may have at most 1 MiB.")
        pieces.append(piece)
    return pieces


def _parse_manifest(content: bytes, problems: list[str]) -> Any:
    """Return the manifest in a TOML or JSON text, or add what is wrong with it to `problems`."""
    try:
        text = content.decode("utf-8-sig").strip()
        return json.loads(text) if text.startswith("{") else tomllib.loads(text)
    except (ValueError, RecursionError) as problem:
        place = re.search(r"line \d+", str(problem))
        problems.append(f"The manifest is neither TOML nor JSON{f': look at {place[0]}' if place else ''}.")
        return None


def _checked(name: str, document: Any, problems: list[str]) -> ModelRequest | None:
    """Return the model to create, or None after adding every problem to `problems`."""
    if not re.fullmatch(NAME, name):
        problems.append(
            "The name may have up to 63 lower-case letters, digits and hyphens. It must not begin or end "
            "with a hyphen."
        )
    if document is None:
        return None
    if not document:
        problems.append("The manifest is empty.")
        return None
    problems.extend(manifest_problems(document))
    if problems:
        return None
    try:
        check_family(document["family"])
    except ValueError as problem:
        problems.append(f"family: {problem}")
        return None
    return ModelRequest(name=name, manifest=Manifest.model_validate(document))


def _create(services: Services, tenant_id: UUID, body: ModelRequest) -> str:
    with services.database.writing() as session:
        return service.create(session, tenant_id, body, quota=services.settings.max_models_per_tenant).name


def _render_form(
    request: Request,
    *,
    status: int = 200,
    name: str = "",
    manifest: str = "",
    problems: list[str] | None = None,
) -> Response:
    return render_page(
        request, "register.html", status=status, name=name, manifest=manifest, problems=problems or []
    )


@router.post("/models/{name}/files")
async def upload_file(
    request: Request, name: ModelName, caller: ModelAdmin, services: ServicesOf
) -> Response:
    """Store one file of a model as it arrives."""

    def store(fields: Fields, form: MultipartForm) -> None:
        target = _target(fields)
        if not form.file_name:
            raise InvalidRequest("Go back and choose a file.")
        files.store(services, caller.tenant_id, name, target, form.file(), None)

    await read_upload(request, store)
    return RedirectResponse(f"/models/{name}#files", 303)


def _target(fields: Fields) -> Target:
    kind, part = fields.get("kind", [""])[-1], fields.get("part", [""])[-1].strip()
    if kind not in FILES:
        raise InvalidRequest("Go back and choose what the file contains.")
    if not FILES[kind][1]:
        return Target(cast(FileKindName, kind))
    if not re.fullmatch(PART, part or "part0"):
        raise InvalidRequest("Go back and name the part with up to 32 lower-case letters and digits.")
    return Target(cast(FileKindName, kind), part or "part0")


@router.post("/models/{name}/validate", dependencies=[WAKES_DISPATCHER])
async def validate_model(name: ModelName, caller: ModelAdmin, services: ServicesOf, _: OwnForm) -> Response:
    """Let a worker check the files and register the model, and return to the model."""

    def start() -> None:
        with services.database.writing() as session:
            service.start_validation(session, caller.tenant_id, name)

    await run_in_threadpool(start)
    return RedirectResponse(f"/models/{name}", 303)


@router.get("/models/{name}/flush")
def confirm_flush(request: Request, name: ModelName, caller: ModelAdmin, services: ServicesOf) -> Response:
    """Ask for confirmation, with a warning if few people are waiting."""
    with services.database.reading() as session:
        model = service.describe_model(session, service.get(session, caller.tenant_id, name))
    waiting, smallest = model.waiting_subjects, model.manifest.policy.smallest_batch
    few = 0 < waiting < smallest
    facts = [
        Fact("Model", name, f"/models/{name}"),
        Fact("Waiting", format_count(waiting, "person", "people")),
    ]
    return render_confirmation(
        request,
        FLUSH,
        f"/models/{name}",
        facts,
        warnings=[_describe_few(waiting, smallest)] if few else [],
        checkbox=ANYWAY if few else None,
    )


def _describe_few(waiting: int, smallest: int) -> str:
    """
    >>> _describe_few(1, 10).split(".")[0]
    'Only 1 person is waiting, and the policy requires at least 10'
    """
    return (
        f"Only {format_count(waiting, 'person is', 'people are')} waiting, and the policy requires at least "
        f"{smallest}. Anyone who compares the versions before and after a small erasure can nearly "
        "reconstruct the erased rows. If there is no hurry, wait: the batch starts by itself when enough "
        "people are waiting or a deadline is near."
    )


@router.post("/models/{name}/flush", dependencies=[WAKES_DISPATCHER])
async def flush_model(name: ModelName, caller: ModelAdmin, services: ServicesOf, form: OwnForm) -> Response:
    """Ask the dispatcher to seal the waiting requests, and return to the model."""

    def flush() -> None:
        with services.database.writing() as session:
            service.request_flush(session, caller.tenant_id, name, force=form.get("force") == "true")

    await run_in_threadpool(flush)
    return RedirectResponse(f"/models/{name}", 303)
