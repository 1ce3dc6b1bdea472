"""Pages about models: versions, remaining privacy budget, class mix and holdout score."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core.clock import now
from app.db.manifest import Manifest
from app.db.retention import read_evidence
from app.db.states import PartRole
from app.db.tables import Certificate, Model, ModelFile
from app.gateway.auth.caller import Caller
from app.gateway.auth.guard import ServicesOf
from app.gateway.auth.scopes import Scope
from app.gateway.batches import service as batches
from app.gateway.dashboard import queries
from app.gateway.dashboard.certificate_pages import read_statement
from app.gateway.dashboard.model_forms import FILES
from app.gateway.dashboard.pages import ROWS_PER_PAGE, PageRoute, render_list, render_page
from app.gateway.dashboard.sessions import ModelReader
from app.gateway.dashboard.wording import describe_pace
from app.gateway.models import ledger, repository, service, versions
from app.gateway.models.ledger import Ledger, LedgerEntry
from app.gateway.models.schemas import ModelName
from lethe.certificate.evidence import EvidenceRecord
from lethe.certificate.representation import ROW_CHECKS

router = APIRouter(prefix="/models", route_class=PageRoute, include_in_schema=False)
MAX_RELEASES, MAX_BATCHES = 40, 5
PACE_DAYS, MIN_PACE_DAYS = 90, 30


@dataclass(frozen=True)
class ClassCounts:
    """Rows per class before and after the erasure that led to a version."""

    version: int
    before: dict[str, int]
    after: dict[str, int]


@dataclass(frozen=True)
class VersionFigures:
    """The exact figures of one version: holdout F1, certified distance Δ, its target Δ*, and ε so far."""

    label: str
    f1: float | None
    distance: float | None = None
    target: float | None = None
    epsilon: float | None = None


@router.get("")
def list_models(
    request: Request, caller: ModelReader, services: ServicesOf, cursor: UUID | None = None
) -> Response:
    """List the tenant's models."""
    query = repository.of_tenant(caller.tenant_id)
    return render_list(
        request, services, "models.html", query, Model.id, cursor=cursor, show=service.describe_models
    )


@router.get("/{name}")
def show_model(request: Request, name: ModelName, caller: ModelReader, services: ServicesOf) -> Response:
    """Show one model. Figures without noise (scores, rows per class) need the scope `audit:read`."""
    with services.database.reading() as session:
        model = service.get(session, caller.tenant_id, name)
        may_audit = caller.may(Scope.AUDIT_READ)
        releases = _releases(session, model.id) if may_audit else []
        budget = ledger.compute_ledger(session, model)
        entries = budget.entries[-MAX_RELEASES:]
        history = _history(releases, entries)
        context: dict[str, Any] = {
            "model": service.describe_model(session, model),
            "versions": versions.versions_of(session, model.id, ROWS_PER_PAGE),
            "ledger": budget,
            "batches": _batches(session, model.id, caller),
            "classes": _class_counts(releases),
            "history": history,
            "scores": [(row.label, row.f1) for row in history if row.f1 is not None],
            "distances": [
                (row.label, 100 * row.distance / row.target)
                for row in history
                if row.distance is not None and row.target
            ],
            "spending": [
                (f"v{e.version}", e.running_epsilon) for e in entries if e.running_epsilon is not None
            ],
            "pace": _pace(budget),
            "files": _files(session, model) if model.state in service.BEFORE_VALIDATION else None,
            "file_kinds": _file_kinds(model),
            "row_check": _row_check(model),
            "may_audit": may_audit,
            "evidence_was_deleted": any(evidence is None for _, evidence in releases),
        }
    return render_page(request, "model.html", **context)


def _row_check(model: Model) -> str | None:
    """Return how rows are kept apart in words, or None before registration and without a representation."""
    represented = (model.report or {}).get("representation")
    return None if represented is None else ROW_CHECKS[represented["row_check"]]


def _batches(session: Session, model_id: UUID, caller: Caller) -> list[Any]:
    newest = queries.batches_of_model(session, model_id, MAX_BATCHES)
    return [*batches.describe_batches(session, newest, caller)]


def _releases(session: Session, model_id: UUID) -> list[tuple[Certificate, EvidenceRecord | None]]:
    """Return the newest releases, newest first, each with its evidence unless that was deleted.

    Discarded draws are left out.
    """
    return [
        (certificate, read_evidence(certificate))
        for certificate in queries.certificates_of_model(session, model_id, MAX_RELEASES)
        if certificate.mechanism != "discarded"
    ]


def _class_counts(releases: Sequence[tuple[Certificate, EvidenceRecord | None]]) -> ClassCounts | None:
    """Return the class counts of the newest erasure whose evidence contains them."""
    for certificate, evidence in releases:
        if evidence is not None and evidence.shift is not None:
            version = read_statement(certificate).predicate.version
            return ClassCounts(version, dict(evidence.shift.original), dict(evidence.shift.retained))
    return None


def _history(
    releases: Sequence[tuple[Certificate, EvidenceRecord | None]], entries: Sequence[LedgerEntry]
) -> list[VersionFigures]:
    """Return the figures of each version, oldest first, starting with the first release's parent."""
    spent = {entry.certificate_id: entry.running_epsilon for entry in entries}
    history: list[VersionFigures] = []
    for certificate, evidence in reversed(releases):
        predicate = read_statement(certificate).predicate
        utility = None if evidence is None else evidence.utility
        if not history and utility is not None and utility.f1_before is not None:
            history.append(VersionFigures(f"v{predicate.parent.version}", utility.f1_before))
        history.append(
            VersionFigures(
                f"v{predicate.version}",
                None if utility is None else utility.f1_after,
                None if evidence is None else evidence.distance,
                predicate.bound.distance_target,
                spent.get(certificate.id),
            )
        )
    return history


def _pace(budget: Ledger) -> str:
    """Say how long the budget lasts at the present pace. Empty if nothing was released lately."""
    costly = [entry.issued_at for entry in budget.entries if entry.shift > 0]
    if not costly or not budget.releases_left:
        return ""
    days = max(min((now() - costly[0]).days + 1, PACE_DAYS), MIN_PACE_DAYS)
    recent = sum(at > now() - timedelta(days=days) for at in costly)
    return describe_pace(budget.releases_left, recent, days) if recent else ""


def _files(session: Session, model: Model) -> list[tuple[str, int | None]]:
    """Return the files of a model that is not registered yet, each with its size, if it has arrived."""
    parts = [
        (f"{FILES['holdout' if part.role == PartRole.HOLDOUT else 'dataset'][0]}: {part.part}", part.size)
        for part in service.list_parts(session, model)
    ]
    stored = session.scalars(select(ModelFile).where(ModelFile.model_id == model.id)).all()
    return parts + [(FILES[file.kind][0], file.size) for file in stored]


def _file_kinds(model: Model) -> dict[str, str]:
    """Return what can be uploaded for this model. Only some representations need a graph or a tokenizer."""
    declared = Manifest.model_validate(model.manifest).representation
    needs = {
        "representation": declared is not None and declared.library is None,
        "tokenizer": declared is not None and declared.library is None and declared.input.kind == "text",
    }
    return {kind: name for kind, (name, _) in FILES.items() if needs.get(kind, True)}
