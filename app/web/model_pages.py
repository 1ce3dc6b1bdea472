"""Models: versions, what is left of the privacy budget, how the classes and the score moved."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request, Response
from sqlalchemy.orm import Session

from app.access.cache import Caller
from app.access.guard import ServicesOf
from app.access.scopes import Scope
from app.batches import service as batches
from app.db.tables import Certificate, Model
from app.ledger import service as ledgers
from app.models import repository, service
from app.models.schemas import ModelName
from app.versions import repository as versions
from app.web import queries
from app.web.certificate_pages import read
from app.web.guard import SeesModels
from app.web.listing import ROWS, listing
from app.web.pages import PageRoute, page
from certificate.evidence import EvidenceRecord

router = APIRouter(prefix="/models", route_class=PageRoute, include_in_schema=False)
RELEASES, BATCHES = 40, 5


@dataclass(frozen=True)
class Classes:
    """Rows per class, before and after; `note` says of what."""

    before: dict[str, int]
    after: dict[str, int]
    first: str
    second: str
    note: str


@router.get("")
def list_models(
    request: Request, caller: SeesModels, services: ServicesOf, cursor: UUID | None = None
) -> Response:
    query = repository.of_tenant(caller.tenant_id)
    return listing(request, services, "models.html", query, Model.id, cursor=cursor, show=service.shown)


@router.get("/{name}")
def show_model(request: Request, name: ModelName, caller: SeesModels, services: ServicesOf) -> Response:
    """Un-noised figures (score, exact classes) only for those to whom the API shows evidence."""
    with services.database.reading() as session:
        model = service.get(session, caller.tenant_id, name)
        shown = service.shown(session, model)
        newest = queries.certificates_of_model(session, model.id, RELEASES)
        audits = caller.may(Scope.AUDIT_READ)
        evidence = [_evidence(found) for found in newest] if audits else []
        context: dict[str, Any] = {
            "model": shown,
            "versions": versions.of_model(session, model.id)[:ROWS],
            "ledger": ledgers.ledger(session, model),
            "batches": _batches(session, model.id, caller),
            "classes": _classes(newest, evidence),
            "scores": _scores(newest, evidence),
            "audits": audits,
        }
    return page(request, "model.html", **context)


def _batches(session: Session, model_id: UUID, caller: Caller) -> list[Any]:
    newest = queries.batches_of_model(session, model_id, BATCHES)
    return [batches.shown(session, batch, caller) for batch in newest]


def _evidence(found: Certificate) -> EvidenceRecord | None:
    return EvidenceRecord.read(found.evidence, "evidence") if found.mechanism != "discarded" else None


def _classes(newest: Sequence[Certificate], evidence: Sequence[EvidenceRecord | None]) -> Classes | None:
    """Of the newest erasure whose evidence tells."""
    for found, record in zip(newest, evidence, strict=False):
        if record is not None and record.shift is not None:
            number = read(found).predicate.version
            shift = record.shift
            return Classes(
                dict(shift.original),
                dict(shift.retained),
                "before",
                "after",
                f"Rows per class before and after the erasure that led to version {number}.",
            )
    return None


def _scores(
    newest: Sequence[Certificate], evidence: Sequence[EvidenceRecord | None]
) -> list[tuple[str, float]]:
    """Holdout F1 by version, oldest first; the first release also tells what came before it."""
    scores: list[tuple[str, float]] = []
    for found, record in reversed(list(zip(newest, evidence, strict=False))):
        if record is None or record.utility is None or record.utility.f1_after is None:
            continue
        said = read(found).predicate
        if not scores and record.utility.f1_before is not None:
            scores.append((f"v{said.parent.version}", record.utility.f1_before))
        scores.append((f"v{said.version}", record.utility.f1_after))
    return scores
