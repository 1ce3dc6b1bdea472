"""Pages to print: a certificate on one page, and the letter to a person who asked to be erased.

Neither contains an identifier. The certificate names nobody. The letter names the reference of the request,
and its receipt proves something only to those who know the identifier.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import segno
from fastapi import APIRouter, Request, Response
from markupsafe import Markup
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.core.clock import now
from app.db.states import SubjectOutcome, TaskState
from app.db.tables import Certificate, Erasure, Task, Tenant, Version
from app.gateway.auth.guard import ServicesOf
from app.gateway.auth.scopes import Scope
from app.gateway.certificates import service as certificates
from app.gateway.certificates.verification import load_material
from app.gateway.dashboard.certificate_pages import describe_certificate, file_stem, read_statement
from app.gateway.dashboard.pages import PageRoute, render_page
from app.gateway.dashboard.sessions import CertificateReader, ErasureReader
from app.gateway.erasures import receipts, service
from app.gateway.erasures.deadlines import days_late
from app.gateway.erasures.receipts import ReceiptView
from app.gateway.erasures.schemas import ErasureView, TaskView
from app.gateway.errors import Conflict, Gone, NotFound
from lethe.certificate.commitment import IDENTIFIER_RULE_IN_WORDS
from lethe.certificate.statement import AnyPredicate

router = APIRouter(route_class=PageRoute, include_in_schema=False)
MAX_RECEIPTS = 200
DEFAULT_TENANT = "default"
MAX_QR_BYTES = 1200  # a larger code is hard to scan from paper


@dataclass(frozen=True)
class Answered:
    """When the requests that a certificate covers were due and answered."""

    requests: int
    first_due: datetime
    completed: datetime | None
    late: int
    """By how many days the request with the earliest deadline was late. 0 if all were answered in time."""


@dataclass(frozen=True)
class LetterPart:
    """What the letter says about one model."""

    task: TaskView
    outcome: SubjectOutcome
    file_name: str
    text: str
    """The receipt as JSON. Empty if there is none."""
    code: Markup
    """The receipt as a QR code. Empty if it is too long for one."""
    predicate: AnyPredicate | None


def draw_code(text: str) -> Markup:
    """Return a QR code as inline SVG, which a page may contain without loading anything."""
    code = segno.make(text, error="m", micro=False)
    return Markup(code.svg_inline(omitsize=True, border=2, svgclass="qr", lineclass=None))  # noqa: S704


def digest_text(digest: str) -> str:
    """Return what the QR code of a certificate says. `lethe verify --digest` accepts it."""
    return f"lethe:sha256:{digest}"


@router.get("/certificates/{certificate_id}/print")
def print_certificate(
    request: Request, certificate_id: UUID, caller: CertificateReader, services: ServicesOf
) -> Response:
    """Show a certificate on one page to print, with its digest as a QR code."""
    with services.database.reading() as session:
        certificate = certificates.get(session, certificate_id, caller.tenant_id)
        material = load_material(session, certificate)
        answered = _answered(session, certificate.id) if caller.may(Scope.ERASURES_READ) else None
    signed = read_statement(certificate)
    return render_page(
        request,
        "certificate_print.html",
        certificate=certificate,
        predicate=signed.predicate,
        statement=signed,
        text=describe_certificate(signed.predicate),
        verified=request.state.verifier.run_checklist(material).verified,
        answered=answered,
        code=draw_code(digest_text(certificate.digest)),
        file_stem=file_stem(signed),
        printed_at=now(),
    )


def _answered(session: Session, certificate_id: UUID) -> Answered | None:
    row = session.execute(
        select(func.count(), func.min(Task.due_at), func.max(Task.completed_at))
        .select_from(Task)
        .join(Version, Version.batch_id == Task.batch_id)
        .where(Version.certificate_id == certificate_id)
    ).one()
    if not row[0]:
        return None
    return Answered(row[0], row[1], row[2], days_late(row[1], row[2]))


@router.get("/erasures/{erasure_id}/letter/{ordinal}")
def print_letter(
    request: Request, erasure_id: UUID, ordinal: int, caller: ErasureReader, services: ServicesOf
) -> Response:
    """Show the letter to one person of a request, with their receipts and how to check them.

    The audit log records it like a download of the receipts.
    """
    with services.database.writing() as session:
        erasure = service.get(session, caller.tenant_id, erasure_id)
        view = service.describe_erasure(session, erasure)
        _require_complete(view)
        tenant = session.get_one(Tenant, caller.tenant_id).name
        items = _receipts(session, services, erasure, ordinal)
        if not items:
            raise NotFound("This request has no such person.")
        signed = _statements(session, items) if caller.may(Scope.CERTIFICATES_READ) else {}
    return render_page(
        request,
        "letter.html",
        erasure=view,
        ordinal=ordinal,
        parts_of_letter=[_letter_part(view, item, signed) for item in items],
        sender="" if tenant == DEFAULT_TENANT else tenant,
        identifier_rule=IDENTIFIER_RULE_IN_WORDS,
        printed_at=now(),
    )


def _require_complete(erasure: ErasureView) -> None:
    """Raise `Conflict` before every model is done: a letter must not announce what may still fail."""
    if erasure.state != TaskState.COMPLETED:
        raise Conflict("There is no letter yet, because the request is not complete on every model.")


def _receipts(session: Session, services: Any, erasure: Erasure, ordinal: int) -> Sequence[ReceiptView]:
    try:
        page = receipts.download_receipts(
            session,
            services.data_keys,
            erasure.tenant_id,
            erasure.id,
            model=None,
            ordinal=ordinal,
            limit=MAX_RECEIPTS,
            cursor=None,
        )
    except Gone:
        raise Gone(
            "There is no letter any more, because the receipts were confirmed as handed out or have expired."
        ) from None
    return page.items


def _statements(session: Session, items: Sequence[ReceiptView]) -> dict[UUID, AnyPredicate]:
    """Return the signed predicate of each certificate that the receipts refer to."""
    ids = [item.certificate_id for item in items if item.certificate_id is not None]
    found = session.scalars(select(Certificate).where(Certificate.id.in_(ids))).all()
    return {certificate.id: read_statement(certificate).predicate for certificate in found}


def _letter_part(erasure: ErasureView, item: ReceiptView, signed: dict[UUID, AnyPredicate]) -> LetterPart:
    document = item.model_dump(mode="json")["receipt"]
    text = "" if document is None else json.dumps(document, separators=(",", ":"))
    return LetterPart(
        task=next(task for task in erasure.tasks if task.model == item.model),
        outcome=item.outcome,
        file_name=f"receipt-{str(erasure.id)[-8:]}-{item.model}-{item.ordinal}.json",
        text=text,
        code=draw_code(text) if 0 < len(text) <= MAX_QR_BYTES else Markup(),
        predicate=None if item.certificate_id is None else signed.get(item.certificate_id),
    )
