"""Published versions of a model: endpoints, schema and queries.

Only the current version can be downloaded.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core.storage import Stored
from app.db.states import ModelState, VersionState
from app.db.tables import Certificate, Version
from app.gateway.auth.guard import CanReadCheckpoints, CanReadModels, ServicesOf
from app.gateway.errors import Gone, NotFound
from app.gateway.models import service
from app.gateway.models.downloads import MEDIA_TYPE, Download, download_responses
from app.gateway.models.schemas import ModelName

router = APIRouter(prefix="/v1/models/{name}/versions", tags=["versions"])
MAX_LISTED = 1000

VersionNumber = Annotated[
    str,
    Path(
        pattern=r"^(?:current|[0-9]{1,9})$",
        description="The number of the version, or `current`.",
        examples=["current"],
    ),
]


class VersionView(BaseModel):
    """A published version of a model."""

    number: int = Field(description="Version 0 is the model as registered.")
    state: VersionState = Field(description="Only the weights of the `current` version can be downloaded.")
    sha256: str = Field(description="The SHA-256 digest of the weights file, in hex.")
    size: int = Field(description="The size of the weights file in bytes.")
    certificate_id: UUID | None = Field(
        description="The certificate of the version. Null for version 0, the model as registered, without "
        "noise."
    )
    batch_id: UUID | None = Field(description="The batch that produced the version. Null for version 0.")
    created_at: datetime
    superseded_at: datetime | None = Field(
        description="When a newer version replaced it. Null for the current version."
    )


@router.get("")
def list_versions(name: ModelName, caller: CanReadModels, services: ServicesOf) -> list[VersionView]:
    """List the versions of a model, newest first. At most 1000 are returned."""
    with services.database.reading() as session:
        model = service.get(session, caller.tenant_id, name)
        versions = versions_of(session, model.id)
        return [VersionView.model_validate(version, from_attributes=True) for version in versions]


@router.get("/{number}/signature", response_class=Response)
def download_signature(
    name: ModelName, number: VersionNumber, caller: CanReadCheckpoints, services: ServicesOf
) -> Response:
    """Download `model.sig`, the signature of the weights for the OpenSSF `model_signing` tool.

    Version 0 has no signature.
    """
    with services.database.reading() as session:
        version = downloadable(session, caller.tenant_id, name, number)
        signature = model_signature(session, version)
    if signature is None:
        raise NotFound(
            f"Version {version.number} has no signature. Only versions with a certificate are signed."
        )
    return Response(signature, media_type="application/vnd.dev.sigstore.bundle.v0.3+json")


@router.get(
    "/{number}/checkpoint",
    response_class=StreamingResponse,
    summary="Download weights",
    responses=download_responses(MEDIA_TYPE),
)
def download_checkpoint(
    name: ModelName,
    number: VersionNumber,
    caller: CanReadCheckpoints,
    services: ServicesOf,
    download: Download,
) -> Response:
    """Download the weights as safetensors.

    Weights of superseded versions are deleted. Asking for one answers 410 with the path of the current
    version.
    """
    with services.database.reading() as session:
        version = downloadable(session, caller.tenant_id, name, number)
    stored = Stored(version.path, version.sha256, version.size)
    return download.send(services.storage, stored, f"{name}-v{version.number}.safetensors")


def versions_of(session: Session, model_id: UUID, limit: int = MAX_LISTED) -> Sequence[Version]:
    """Return the versions of a model, newest first."""
    return session.scalars(
        select(Version).where(Version.model_id == model_id).order_by(Version.number.desc()).limit(limit)
    ).all()


def current_version(session: Session, model_id: UUID) -> Version | None:
    """Return the current version of a model, or None if it has none."""
    return session.scalar(
        select(Version).where(Version.model_id == model_id, Version.state == VersionState.CURRENT)
    )


def model_signature(session: Session, version: Version) -> bytes | None:
    """Return the signature of a version's weights, or None if it has no certificate."""
    if version.certificate_id is None:
        return None
    return session.scalar(select(Certificate.model_signature).where(Certificate.id == version.certificate_id))


def downloadable(session: Session, tenant_id: UUID, name: str, number: str) -> Version:
    """Return the current version if `number` names it. Raise `Gone` for superseded versions."""
    model = service.get(session, tenant_id, name)
    if model.state == ModelState.RETIRED:
        raise Gone("The model is retired, and its weights are deleted.")
    current = current_version(session, model.id)
    if number == "current":
        if current is None:
            raise NotFound("The model has no version yet. Wait until it is ready.")
        return current
    version = session.scalar(
        select(Version).where(Version.model_id == model.id, Version.number == int(number))
    )
    if version is None:
        raise NotFound(f"The model has no version {number}.")
    if version.state != VersionState.CURRENT:
        assert current is not None
        where = f"/v1/models/{name}/versions/{current.number}/checkpoint"
        raise Gone(
            f"Version {number} was superseded by version {current.number}, and its weights are deleted. "
            f"Download version {current.number} instead.",
            current=where,
        )
    return version
