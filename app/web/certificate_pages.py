"""Certificates: what is guaranteed, what is assumed, and the checklist, line by line."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from app.access.guard import ServicesOf
from app.certificates import endpoints, repository, service
from app.certificates.verification import FILE_LINE, checked, material
from app.db.states import VersionState
from app.db.tables import Certificate
from app.models.schemas import ModelName
from app.versions import endpoints as versions
from app.versions.schemas import VersionNumber
from app.web.certificate_text import text_of
from app.web.guard import SeesCertificates, TakesCheckpoints
from app.web.listing import listing
from app.web.pages import PageRoute, page
from certificate import envelope, statement
from certificate.pack import Pack
from certificate.statement import AnyStatement

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass(frozen=True)
class Summary:
    """A row of a list."""

    id: UUID
    mechanism: str
    log_index: int
    said: AnyStatement
    people: int


def summary(found: Certificate) -> Summary:
    said = read(found)
    return Summary(found.id, found.mechanism, found.log_index, said, text_of(said.predicate).people)


def read(found: Certificate) -> AnyStatement:
    return statement.parse(envelope.parse(found.envelope).payload)


@router.get("/certificates")
def list_certificates(
    request: Request, caller: SeesCertificates, services: ServicesOf, cursor: UUID | None = None
) -> Response:
    query = repository.of_tenant(caller.tenant_id)
    return listing(
        request,
        services,
        "certificates.html",
        query,
        Certificate.id,
        cursor=cursor,
        show=lambda _, found: summary(found),
    )


@router.get("/certificates/keys.json")
def download_keys(caller: SeesCertificates, services: ServicesOf) -> Response:
    return _attached(endpoints.get_keys(caller, services).model_dump(mode="json"), "keys.json")


@router.get("/certificates/{certificate_id}")
def show_certificate(
    request: Request, certificate_id: UUID, caller: SeesCertificates, services: ServicesOf
) -> Response:
    with services.database.reading() as session:
        found = service.get(session, certificate_id, caller.tenant_id)
        given, head = material(session, found), service.head(session)
    report, version, said = checked(services, given), given.version, read(found)
    name = _name(said)
    return page(
        request,
        "certificate.html",
        found=found,
        said=said,
        predicate=said.predicate,
        text=text_of(said.predicate),
        verdict=report,
        with_file=next(line.ok for line in report.lines if line.number == FILE_LINE) is not None,
        current=version is not None and version.state == VersionState.CURRENT,
        log_size=head.size,
        files={"pack": f"{name}.pack.json", "model": f"{name}.safetensors"},
    )


@router.get("/certificates/{certificate_id}/pack.json")
def download_pack(certificate_id: UUID, caller: SeesCertificates, services: ServicesOf) -> Response:
    """Exactly what the API gives for the same certificate."""
    with services.database.reading() as session:
        found, pack = _found_with_pack(session, certificate_id, caller.tenant_id)
    return _attached(pack.model_dump(mode="json", by_alias=True), f"{_name(read(found))}.pack.json")


@router.get("/certificates/{certificate_id}/bundle.json")
def download_bundle(certificate_id: UUID, caller: SeesCertificates, services: ServicesOf) -> Response:
    with services.database.reading() as session:
        found = service.get(session, certificate_id, caller.tenant_id)
    bundle = envelope.to_bundle(envelope.parse(found.envelope))
    return _attached(bundle, f"{_name(read(found))}.bundle.json")


@router.get("/models/{name}/versions/{number}/checkpoint")
def download_checkpoint(
    request: Request, name: ModelName, number: VersionNumber, caller: TakesCheckpoints, services: ServicesOf
) -> Response:
    """As the API gives it: with ranges, so that a broken download goes on where it stopped."""
    header = request.headers.get
    return versions.download_checkpoint(
        name, number, caller, services, header("range"), header("if-range"), header("if-none-match")
    )


@router.get("/models/{name}/versions/{number}/signature")
def download_signature(
    name: ModelName, number: VersionNumber, caller: TakesCheckpoints, services: ServicesOf
) -> Response:
    answer = versions.download_signature(name, number, caller, services)
    answer.headers["Content-Disposition"] = f'attachment; filename="{name}-v{number}.sig"'
    return answer


def _found_with_pack(session: Session, certificate_id: UUID, tenant_id: UUID) -> tuple[Certificate, Pack]:
    found = service.get(session, certificate_id, tenant_id)
    return found, service.pack(session, found)


def _name(said: AnyStatement) -> str:
    return f"{said.predicate.model}-v{said.predicate.version}"


def _attached(document: Any, file: str) -> Response:
    return JSONResponse(document, headers={"Content-Disposition": f'attachment; filename="{file}"'})
