"""Search: one field that finds a request, a model, a batch or a certificate."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Batch, Certificate, Erasure, Model
from app.gateway.auth.caller import Caller
from app.gateway.auth.guard import ServicesOf
from app.gateway.auth.scopes import Scope
from app.gateway.batches import service as batches
from app.gateway.certificates import repository as certificates
from app.gateway.dashboard.pages import PageRoute, render_page
from app.gateway.dashboard.sessions import SignedIn
from app.gateway.erasures import repository as erasures

router = APIRouter(route_class=PageRoute, include_in_schema=False)
MAX_HITS = 20
_DIGEST = re.compile(r"(?:lethe:)?(?:sha256:)?([0-9a-f]{64})")
Text = Annotated[str, Query(max_length=300, pattern=r"^[^\x00-\x1f\x7f]*$")]


@dataclass(frozen=True)
class Hit:
    """Something that was found."""

    kind: str
    name: str
    path: str


@router.get("/search")
def search(request: Request, caller: SignedIn, services: ServicesOf, q: Text = "") -> Response:
    """Find things by id, reference, name or digest. A single hit is opened at once.

    Every query compares a whole value, so it uses an index or reads the rows of one tenant at most.
    """
    text = q.strip()
    with services.database.reading() as session:
        hits = find(session, caller, text) if text else []
    if len(hits) == 1:
        return RedirectResponse(hits[0].path, 303)
    return render_page(request, "search.html", q=text, hits=hits)


def find(session: Session, caller: Caller, text: str) -> list[Hit]:
    """Return what the caller may see and the text denotes."""
    identifier = _parse_uuid(text)
    hits: list[Hit] = []
    if caller.may(Scope.ERASURES_READ):
        hits += _requests(session, caller.tenant_id, text, identifier)
    if caller.may(Scope.MODELS_READ):
        hits += _models_and_batches(session, caller.tenant_id, text, identifier)
    if caller.may(Scope.CERTIFICATES_READ):
        hits += _certificates(session, caller.tenant_id, text, identifier)
    return hits


def _requests(session: Session, tenant_id: UUID, text: str, identifier: UUID | None) -> list[Hit]:
    matches = Erasure.reference == text if identifier is None else Erasure.id == identifier
    query = erasures.of_tenant(tenant_id).where(matches).order_by(Erasure.id.desc()).limit(MAX_HITS)
    return [
        Hit("Request", erasure.reference or f"…{str(erasure.id)[-8:]}", f"/erasures/{erasure.id}")
        for erasure in session.scalars(query)
    ]


def _models_and_batches(session: Session, tenant_id: UUID, text: str, identifier: UUID | None) -> list[Hit]:
    if identifier is not None:
        found: Sequence[Batch] = session.scalars(
            batches.of_tenant(tenant_id).where(Batch.id == identifier)
        ).all()
        return [Hit("Batch", f"…{str(batch.id)[-8:]}", f"/batches/{batch.id}") for batch in found]
    names = session.scalars(
        select(Model.name).where(Model.tenant_id == tenant_id, Model.name == text.lower())
    )
    return [Hit("Model", name, f"/models/{name}") for name in names]


def _certificates(session: Session, tenant_id: UUID, text: str, identifier: UUID | None) -> list[Hit]:
    digest = _DIGEST.fullmatch(text.lower())
    if identifier is None and digest is None:
        return []
    matches = Certificate.id == identifier if digest is None else Certificate.digest == digest[1]
    found = session.scalars(certificates.of_tenant(tenant_id).where(matches)).all()
    return [
        Hit("Certificate", f"…{str(certificate.id)[-8:]}", f"/certificates/{certificate.id}")
        for certificate in found
    ]


def _parse_uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
