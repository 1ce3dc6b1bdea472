"""Pages about certificates: the guarantee, its assumptions, the verification checklist, and downloads."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from fastapi import APIRouter, Request, Response

from app.db.states import VersionState
from app.db.tables import Certificate
from app.gateway.auth.guard import ServicesOf
from app.gateway.certificates import endpoints, repository, service
from app.gateway.certificates.verification import FILE_LINE, load_material
from app.gateway.dashboard.pages import PageRoute, attach_json, render_list, render_page
from app.gateway.dashboard.sessions import CertificateReader, WeightsReader
from app.gateway.dashboard.wording import ASSUMPTION, format_count
from app.gateway.models import versions
from app.gateway.models.downloads import FileDownload
from app.gateway.models.schemas import ModelName
from app.gateway.models.versions import VersionNumber
from lethe.certificate import envelope, statement
from lethe.certificate.predicate import Origins, Predicate
from lethe.certificate.predicate_v1 import OriginsV1
from lethe.certificate.representation import CertifiedRepresentation
from lethe.certificate.statement import AnyPredicate, AnyStatement
from lethe.certificate.vocabulary import ASSUMPTIONS, RegistrationWarning

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass(frozen=True)
class CertificateSummary:
    """A certificate as a row of a list."""

    id: UUID
    mechanism: str
    predicate: AnyPredicate
    people: int


@dataclass(frozen=True)
class CertificateText:
    """The sentences of a certificate, whatever its format version.

    `assumptions` are pairs of a title and a sentence.
    """

    erased: str
    people: int
    reference: str
    assumptions: Sequence[tuple[str, str]]
    limits: Sequence[str]
    origins: Origins | OriginsV1
    warnings: Sequence[str]
    representation: CertifiedRepresentation | None


def read_statement(certificate: Certificate) -> AnyStatement:
    """Return the signed statement of a stored certificate. The signature is not checked here."""
    return statement.parse(envelope.parse(certificate.envelope).payload)


def summarise_certificate(certificate: Certificate) -> CertificateSummary:
    """Return a stored certificate as a row of a list."""
    predicate = read_statement(certificate).predicate
    return CertificateSummary(certificate.id, certificate.mechanism, predicate, predicate.deletion_set.people)


def describe_certificate(predicate: AnyPredicate) -> CertificateText:
    """Return the sentences of a certificate of format 1 or 2."""
    guarantee, erased = predicate.guarantee, predicate.deletion_set
    return CertificateText(
        describe_erased(erased.people, erased.records),
        erased.people,
        guarantee.reference_text,
        [(ASSUMPTION.get(name, name), sentence) for name, sentence in guarantee.assumption_texts],
        guarantee.limit_texts,
        predicate.objective.origins,
        describe_warnings(predicate.objective.warnings),
        predicate.objective.representation if isinstance(predicate, Predicate) else None,
    )


def describe_erased(people: int, records: int | None) -> str:
    """Return a sentence about how much was erased.

    >>> describe_erased(1, None)
    'The data of 1 person was erased from this model.'
    >>> describe_erased(30, 31)
    '31 records of 30 people were erased from this model.'
    """
    who = format_count(people, "person", "people")
    if records is None:
        return f"The data of {who} was erased from this model."
    verb = "was" if records == 1 else "were"
    return f"{format_count(records, 'record')} of {who} {verb} erased from this model."


def describe_warnings(warnings: Sequence[RegistrationWarning]) -> list[str]:
    """Return the warnings of registration as sentences of the certificate's vocabulary."""
    return [ASSUMPTIONS[warning] for warning in warnings]


@router.get("/certificates")
def list_certificates(
    request: Request, caller: CertificateReader, services: ServicesOf, cursor: UUID | None = None
) -> Response:
    """List the tenant's certificates."""
    return render_list(
        request,
        services,
        "certificates.html",
        repository.of_tenant(caller.tenant_id),
        Certificate.id,
        cursor=cursor,
        show=lambda _, certificates: [summarise_certificate(certificate) for certificate in certificates],
    )


@router.get("/certificates/keys.json")
def download_keys(caller: CertificateReader, services: ServicesOf) -> Response:
    """Download the public keys that offline verification needs."""
    return attach_json(endpoints.get_keys(caller, services).model_dump(mode="json"), "keys.json")


@router.get("/certificates/{certificate_id}")
def show_certificate(
    request: Request, certificate_id: UUID, caller: CertificateReader, services: ServicesOf
) -> Response:
    """Show one certificate with the result of checking it on this server."""
    with services.database.reading() as session:
        certificate = service.get(session, certificate_id, caller.tenant_id)
        material, tree_head = load_material(session, certificate), service.tree_head(session)
    report, signed = request.state.verifier.run_checklist(material), read_statement(certificate)
    file_line = next(line for line in report.lines if line.number == FILE_LINE)
    name = file_stem(signed)
    return render_page(
        request,
        "certificate.html",
        certificate=certificate,
        statement=signed,
        predicate=signed.predicate,
        text=describe_certificate(signed.predicate),
        report=report,
        file_checked=file_line.ok is not None,
        current=material.version is not None and material.version.state == VersionState.CURRENT,
        log_size=tree_head.size,
        files={"pack": f"{name}.pack.json", "model": f"{name}.safetensors"},
    )


@router.get("/certificates/{certificate_id}/pack.json")
def download_pack(certificate_id: UUID, caller: CertificateReader, services: ServicesOf) -> Response:
    """Download the same pack that the API returns for this certificate."""
    with services.database.reading() as session:
        certificate = service.get(session, certificate_id, caller.tenant_id)
        pack = service.pack(session, certificate)
    name = file_stem(read_statement(certificate))
    return attach_json(pack.model_dump(mode="json", by_alias=True), f"{name}.pack.json")


@router.get("/certificates/{certificate_id}/bundle.json")
def download_bundle(certificate_id: UUID, caller: CertificateReader, services: ServicesOf) -> Response:
    """Download the certificate as a Sigstore bundle."""
    with services.database.reading() as session:
        certificate = service.get(session, certificate_id, caller.tenant_id)
    bundle = envelope.to_bundle(envelope.parse(certificate.envelope))
    return attach_json(bundle, f"{file_stem(read_statement(certificate))}.bundle.json")


@router.get("/models/{name}/versions/{number}/checkpoint")
def download_weights(
    request: Request, name: ModelName, number: VersionNumber, caller: WeightsReader, services: ServicesOf
) -> Response:
    """Download the weights. Range requests let a browser resume an interrupted download."""
    header = request.headers.get
    download = FileDownload(header("range"), header("if-range"), header("if-none-match"))
    return versions.download_checkpoint(name, number, caller, services, download)


@router.get("/models/{name}/versions/{number}/signature")
def download_signature(
    name: ModelName, number: VersionNumber, caller: WeightsReader, services: ServicesOf
) -> Response:
    """Download the signature of the weights."""
    response = versions.download_signature(name, number, caller, services)
    response.headers["Content-Disposition"] = f'attachment; filename="{name}-v{number}.sig"'
    return response


def file_stem(signed: AnyStatement) -> str:
    """Return the beginning of the names of a certificate's files."""
    return f"{signed.predicate.model}-v{signed.predicate.version}"
