"""The audit log of a tenant: reading it, exporting it, and its signed heads."""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Header, Query, Response
from pydantic import AwareDatetime, BaseModel, Field
from sqlalchemy import Select
from sqlalchemy.orm import Session

from app.db import audit_log
from app.db.audit_log import Action, AuditEntry
from app.gateway.auth.guard import CanAudit, ServicesOf
from app.gateway.certificates import service as certificates
from app.gateway.csv_files import CSV, attach_csv, attach_lines
from app.gateway.pagination import Limit
from app.services import Services
from lethe.certificate import envelope
from lethe.certificate.audit_log import AuditLogHeads, logged_head
from lethe.certificate.receipt import LogPlace

router = APIRouter(prefix="/v1/audit-log", tags=["audit log"])
NDJSON = "application/x-ndjson"
COLUMNS = (
    *("sequence", "at", "actor_kind", "actor_id", "actor_name"),
    *("action", "target", "details", "hash"),
)
CHUNK = 1000
_FORMATS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One page as JSON, or the whole log as NDJSON or CSV.",
        "content": {NDJSON: {"schema": {"type": "string"}}, CSV: {"schema": {"type": "string"}}},
    }
}


class AuditActor(BaseModel):
    """Who did something."""

    kind: Literal["api-key", "person", "operator", "system"] = Field(
        description="`person`: signed in through the identity provider. `operator`: ran a command on the "
        "server."
    )
    id: str = Field(description="The id of the API key, the person's pseudonym, or an account's name.")
    name: str = Field(description="The name of the API key, or the person's display name if it is kept.")


class AuditEntryView(BaseModel):
    """One entry of the audit log."""

    sequence: int = Field(description="The position of the entry, from 0.")
    at: datetime
    actor: AuditActor
    action: Action = Field(description="What was done.")
    target: str = Field(description="What it was done to, such as `model/digits`.")
    details: dict[str, Any] = Field(description="More about it. Never an identifier of an erased person.")
    hash: str = Field(description="The hash of this entry and of all entries before it.")


class AuditLogPage(BaseModel):
    """One page of the audit log."""

    items: list[AuditEntryView] = Field(description="The entries, newest first.")
    next_cursor: str | None = Field(
        description="Pass this as `cursor` to get the next page. Null at the end."
    )


def fetch_entries(
    session: Session, query: Select[AuditEntry], *, limit: int, cursor: str | None
) -> AuditLogPage:
    """Return one page of entries, newest first."""
    older = query if cursor is None else query.where(AuditEntry.sequence < int(cursor))
    rows = session.scalars(older.order_by(AuditEntry.sequence.desc()).limit(limit + 1)).all()
    page = rows[:limit]
    return AuditLogPage(
        items=[AuditEntryView.model_validate(row.exported.model_dump()) for row in page],
        next_cursor=str(page[-1].sequence) if len(rows) > limit else None,
    )


@router.get("", response_model=AuditLogPage, responses=_FORMATS)
def read_audit_log(
    caller: CanAudit,
    services: ServicesOf,
    accept: Annotated[
        str,
        Header(
            description=f"`{NDJSON}` or `{CSV}` exports the whole log, oldest entry first. Anything else "
            "returns one page as JSON."
        ),
    ] = "application/json",
    action: Annotated[Action | None, Query(description="Only entries of this action.")] = None,
    since: Annotated[AwareDatetime | None, Query(description="Only entries from this time on.")] = None,
    until: Annotated[AwareDatetime | None, Query(description="Only entries before this time.")] = None,
    limit: Limit = 50,
    cursor: Annotated[
        str | None,
        Query(pattern=r"^[0-9]{1,15}$", description="The `next_cursor` of the previous page."),
    ] = None,
) -> Response | AuditLogPage:
    """Return who did what in your tenant: one page as JSON, or all of it as NDJSON or CSV.

    The format follows from the `Accept` header. `limit` and `cursor` apply to pages only. An export is
    itself recorded. Only an unfiltered NDJSON export can be verified with `lethe audit-log verify`.
    """
    media = accept.partition(",")[0].partition(";")[0].strip().lower()
    query = audit_log.entries(caller.tenant_id, action=action, since=since, until=until)
    if media not in (NDJSON, CSV):
        with services.database.reading() as session:
            return fetch_entries(session, query, limit=limit, cursor=cursor)
    return export_entries(services, caller.tenant_id, query, media)


def export_entries(services: Services, tenant_id: UUID, query: Select[AuditEntry], media: str) -> Response:
    """Return the entries as a file, oldest first. The export itself is recorded, before the file begins."""
    with services.database.writing() as session:
        audit_log.record(session, tenant_id, Action.AUDIT_LOG_EXPORTED, "audit-log", {"format": media})
        size, _ = audit_log.head(session, tenant_id)
    entries = _all_entries(services, query.where(AuditEntry.sequence < size))
    if media == NDJSON:
        return attach_lines(_ndjson(entries), NDJSON, "audit-log.ndjson")
    return attach_csv(COLUMNS, _rows(entries), "audit-log.csv")


@router.get("/heads", summary="Get the signed heads")
def get_audit_log_heads(caller: CanAudit, services: ServicesOf, limit: Limit = 50) -> AuditLogHeads:
    """Return the newest signed heads of your tenant's audit log, each with its proof of inclusion.

    A worker signs the hash of the newest entry at regular intervals and appends the statement to the
    certificate log. An entry that is changed later contradicts the statement.
    """
    with services.database.reading() as session:
        return signed_heads(session, caller.tenant_id, limit)


def signed_heads(session: Session, tenant_id: UUID, limit: int) -> AuditLogHeads:
    """Return the newest signed heads with their proofs, under one tree head."""
    stored = audit_log.heads(session, tenant_id, limit)
    places = [head.log_index for head in stored]
    proofs = certificates.prove_inclusions(session, places) if places else {}
    return AuditLogHeads(
        log_id=str(tenant_id),
        heads=tuple(
            logged_head(
                envelope.parse(head.envelope),
                LogPlace(checkpoint=proof.checkpoint, index=proof.index, path=tuple(proof.path)),
            )
            for head in stored
            for proof in [proofs[head.log_index]]
        ),
        keys=certificates.key_set(session),
    )


def _all_entries(services: Services, query: Select[AuditEntry]) -> Iterator[AuditEntry]:
    """Yield entries, oldest first. Each chunk is a read of its own: a slow client keeps none open."""
    last = -1
    while True:
        chunk = query.where(AuditEntry.sequence > last).order_by(AuditEntry.sequence).limit(CHUNK)
        with services.database.reading() as session:
            rows = session.scalars(chunk).all()
        yield from rows
        if len(rows) < CHUNK:
            return
        last = rows[-1].sequence


def _ndjson(entries: Iterable[AuditEntry]) -> Iterator[bytes]:
    for entry in entries:
        yield entry.exported.to_bytes() + b"\n"


def _rows(entries: Iterable[AuditEntry]) -> Iterator[Sequence[object]]:
    for stored in entries:
        entry = stored.exported
        details = json.dumps(entry.details, ensure_ascii=False, sort_keys=True)
        actor = entry.actor
        cells = (entry.sequence, entry.at.isoformat(), actor.kind, actor.id, actor.name)
        yield (*cells, entry.action, entry.target, details, entry.hash)
