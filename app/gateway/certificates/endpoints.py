"""Endpoints for certificates, public keys and the certificate log."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import PlainTextResponse

from app.db import audit_log
from app.db.audit_log import Action
from app.db.tables import Certificate
from app.gateway.auth.caller import Caller
from app.gateway.auth.guard import CanAudit, CanReadCertificates, MayBePublic, ServicesOf
from app.gateway.certificates import repository, service
from app.gateway.certificates.schemas import CertificateView, ConsistencyProof, InclusionProof, Verification
from app.gateway.certificates.verification import Verifier, load_material
from app.gateway.pagination import Cursor, Limit, Page, fetch_page
from lethe.certificate import envelope
from lethe.certificate.keys import KeySet
from lethe.certificate.pack import Pack

router = APIRouter(prefix="/v1", tags=["certificates"])
_ENVELOPE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The signed envelope.",
        "content": {"application/vnd.in-toto+json": {"schema": {"type": "object"}}},
    }
}
LeafIndex = Annotated[
    int, Query(ge=0, lt=2**53, description="The position of a certificate or statement in the log, from 0.")
]
OldSize = Annotated[
    int, Query(ge=0, lt=2**53, description="The number of leaves in the tree head that you kept.")
]


@router.get("/certificates")
def list_certificates(
    caller: CanReadCertificates, services: ServicesOf, limit: Limit = 50, cursor: Cursor = None
) -> Page[CertificateView]:
    """List your tenant's certificates, newest first."""
    with services.database.reading() as session:
        return fetch_page(
            session,
            repository.of_tenant(caller.tenant_id),
            Certificate.id,
            limit=limit,
            cursor=cursor,
            describe=lambda certificates: [
                CertificateView.model_validate(certificate, from_attributes=True)
                for certificate in certificates
            ],
        )


@router.get("/certificates/{certificate_id}", response_class=Response, responses=_ENVELOPE)
def get_certificate(certificate_id: UUID, caller: MayBePublic, services: ServicesOf) -> Response:
    """Return the signed envelope (DSSE), byte for byte as it was signed and logged."""
    with services.database.reading() as session:
        certificate = service.get(session, certificate_id, _tenant(caller))
    return Response(certificate.envelope, media_type="application/vnd.in-toto+json")


@router.get("/certificates/{certificate_id}/pack")
def get_pack(certificate_id: UUID, caller: MayBePublic, services: ServicesOf) -> Pack:
    """Return the pack: one file with everything that `lethe verify` needs offline."""
    with services.database.reading() as session:
        return service.pack(session, service.get(session, certificate_id, _tenant(caller)))


@router.get("/certificates/{certificate_id}/bundle")
def get_bundle(certificate_id: UUID, caller: MayBePublic, services: ServicesOf) -> dict[str, Any]:
    """Return the same signature as a Sigstore bundle (v0.3)."""
    with services.database.reading() as session:
        certificate = service.get(session, certificate_id, _tenant(caller))
    return envelope.to_bundle(envelope.parse(certificate.envelope))


@router.get("/certificates/{certificate_id}/verify", summary="Verify a certificate on this server")
def verify_here(
    certificate_id: UUID, request: Request, caller: CanReadCertificates, services: ServicesOf
) -> Verification:
    """Run the verification checklist on this server, with the evidence.

    To verify without trusting this server, download the pack and run `lethe verify` offline.
    """
    with services.database.reading() as session:
        certificate = service.get(session, certificate_id, caller.tenant_id)
        material = load_material(session, certificate)
    verifier: Verifier = request.state.verifier
    return Verification.model_validate(verifier.run_checklist(material).to_dict())


@router.get("/certificates/{certificate_id}/evidence")
def get_evidence(certificate_id: UUID, caller: CanAudit, services: ServicesOf) -> Response:
    """Return the evidence: the exact figures, without noise, that the certificate commits to.

    For auditors. The audit log records every download. After the policy's `evidence_days` the evidence is
    deleted, and the answer is 410. The certificate stays.
    """
    with services.database.writing() as session:
        evidence = service.evidence(service.get(session, certificate_id, caller.tenant_id))
        audit_log.record(
            session, caller.tenant_id, Action.EVIDENCE_DOWNLOADED, f"certificate/{certificate_id}"
        )
    return Response(evidence, media_type="application/json")


@router.get("/keys")
def get_keys(_: MayBePublic, services: ServicesOf) -> KeySet:
    """Return the public signing keys, each with the positions of the log that it may sign."""
    with services.database.reading() as session:
        return service.key_set(session)


@router.get("/log/checkpoint", response_class=PlainTextResponse, summary="Get the tree head")
def get_log_checkpoint(_: MayBePublic, services: ServicesOf) -> str:
    """Return the signed tree head of the certificate log, in the C2SP tlog-checkpoint format."""
    with services.database.reading() as session:
        return service.tree_head(session).tree_head


@router.get("/log/inclusion", summary="Get an inclusion proof")
def get_inclusion(index: LeafIndex, _: MayBePublic, services: ServicesOf) -> InclusionProof:
    """Prove that the certificate or "no data held" statement at this position is in the log."""
    with services.database.reading() as session:
        return service.prove_inclusion(session, index)


@router.get("/log/consistency", summary="Get a consistency proof")
def get_consistency(old_size: OldSize, _: MayBePublic, services: ServicesOf) -> ConsistencyProof:
    """Prove that the log has only grown since it had `old_size` leaves."""
    with services.database.reading() as session:
        return service.prove_consistency(session, old_size)


def _tenant(caller: Caller | None) -> UUID | None:
    return None if caller is None else caller.tenant_id
