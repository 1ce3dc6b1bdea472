from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse

from app.access.cache import Caller
from app.access.guard import CanAudit, CanReadCertificates, MayBePublic, ServicesOf
from app.certificates import repository, service
from app.certificates.schemas import CertificateShown, ConsistencyProof, InclusionProof, Verification
from app.certificates.verification import checked, material
from app.db.tables import Certificate
from app.paging import Cursor, Limit, Page, paged
from certificate import envelope
from certificate.keys import KeySet
from certificate.pack import Pack

router = APIRouter(prefix="/v1", tags=["certificates"])
_ENVELOPE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/vnd.in-toto+json": {"schema": {"type": "object"}}}}
}
LeafIndex = Annotated[
    int, Query(ge=0, lt=2**53, description="Place of a certificate or statement in the log.")
]


@router.get("/certificates")
def list_certificates(
    caller: CanReadCertificates, services: ServicesOf, limit: Limit = 50, cursor: Cursor = None
) -> Page[CertificateShown]:
    """Newest first."""
    with services.database.reading() as session:
        return paged(
            session,
            repository.of_tenant(caller.tenant_id),
            Certificate.id,
            limit=limit,
            cursor=cursor,
            show=lambda found: CertificateShown.model_validate(found, from_attributes=True),
        )


@router.get("/certificates/{certificate_id}", response_class=Response, responses=_ENVELOPE)
def get_certificate(certificate_id: UUID, caller: MayBePublic, services: ServicesOf) -> Response:
    """The signed envelope (DSSE), byte for byte as it was signed and logged."""
    with services.database.reading() as session:
        found = service.get(session, certificate_id, _tenant(caller))
    return Response(found.envelope, media_type="application/vnd.in-toto+json")


@router.get("/certificates/{certificate_id}/pack")
def get_pack(certificate_id: UUID, caller: MayBePublic, services: ServicesOf) -> Pack:
    """One file with everything that `lethe verify` needs offline."""
    with services.database.reading() as session:
        return service.pack(session, service.get(session, certificate_id, _tenant(caller)))


@router.get("/certificates/{certificate_id}/bundle")
def get_bundle(certificate_id: UUID, caller: MayBePublic, services: ServicesOf) -> dict[str, Any]:
    """The same signature as a Sigstore bundle (v0.3)."""
    with services.database.reading() as session:
        found = service.get(session, certificate_id, _tenant(caller))
    return envelope.to_bundle(envelope.parse(found.envelope))


@router.get("/certificates/{certificate_id}/verify")
def verify_here(certificate_id: UUID, caller: CanReadCertificates, services: ServicesOf) -> Verification:
    """The checklist as this server runs it, evidence included. To rely on nobody, verify the pack offline."""
    with services.database.reading() as session:
        found = service.get(session, certificate_id, caller.tenant_id)
        given = material(session, found)
    return Verification.model_validate(checked(services, given).to_dict())


@router.get("/certificates/{certificate_id}/evidence")
def get_evidence(certificate_id: UUID, caller: CanAudit, services: ServicesOf) -> Response:
    """The exact, un-noised figures that the certificate commits to: for auditors only."""
    with services.database.reading() as session:
        found = service.get(session, certificate_id, caller.tenant_id)
    return Response(found.evidence, media_type="application/json")


@router.get("/keys")
def get_keys(_: MayBePublic, services: ServicesOf) -> KeySet:
    """Public signing keys, each with the places of the log it may sign."""
    with services.database.reading() as session:
        return service.key_set(session)


@router.get("/log/checkpoint", response_class=PlainTextResponse)
def get_log_checkpoint(_: MayBePublic, services: ServicesOf) -> str:
    """The signed tree head (C2SP tlog-checkpoint)."""
    with services.database.reading() as session:
        return service.head(session).note


@router.get("/log/inclusion")
def get_inclusion(index: LeafIndex, _: MayBePublic, services: ServicesOf) -> InclusionProof:
    """Proof that the certificate or "no data held" statement at this place is in the log."""
    with services.database.reading() as session:
        return service.inclusion(session, index)


@router.get("/log/consistency")
def get_consistency(old_size: LeafIndex, _: MayBePublic, services: ServicesOf) -> ConsistencyProof:
    """Proof that the log has only grown since it had `old_size` leaves."""
    with services.database.reading() as session:
        return service.consistency(session, old_size)


def _tenant(caller: Caller | None) -> UUID | None:
    return None if caller is None else caller.tenant_id
