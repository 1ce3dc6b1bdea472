"""Forms about erasure requests: entering, extending and withdrawing them, and confirming their receipts.

Each action calls the service that the API calls, in one place.
"""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.orm import Session

from app.core import logging
from app.core.clock import now
from app.db.states import TaskState
from app.gateway.auth.guard import ServicesOf
from app.gateway.auth.scopes import Scope
from app.gateway.dashboard import queries
from app.gateway.dashboard.confirmation import Action, Fact, Reason, reason_in, render_confirmation
from app.gateway.dashboard.multipart import Fields, MultipartForm, read_upload
from app.gateway.dashboard.pages import PageRoute, render_page
from app.gateway.dashboard.sessions import ErasureWriter, OwnForm
from app.gateway.dashboard.wording import format_count, format_moment
from app.gateway.erasures import bulk, receipts, service
from app.gateway.erasures.deadlines import months_later
from app.gateway.erasures.recording import Answer, record_group
from app.gateway.erasures.schemas import ErasureDetails, ErasureView, SubjectId
from app.gateway.errors import InvalidRequest, ServiceError
from app.services import Services
from lethe.certificate.validation import validation_message
from lethe.identifiers import RULE

log = logging.get_logger("gateway")
router = APIRouter(prefix="/erasures", route_class=PageRoute, include_in_schema=False)
_SUBJECT: TypeAdapter[str] = TypeAdapter(SubjectId)
_NOBODY = "Enter at least one identifier, or choose a CSV file."
_LABELS = {
    "reference": "Your reference",
    "reason": "Reason",
    "jurisdiction": "Jurisdiction",
    "models": "Models",
    "received_at": "Received on",
}

EXTEND = Action(
    "extend",
    "Extend the deadline",
    "The law allows two more months for a complex request, once. Tell the person about the extension and the "
    "reason within the first month.",
)
EXTENSION_REASON = Reason(
    "Why the request needs more time", help="It is shown with the request and in the letter to the person."
)
WITHDRAWAL_REASON = Reason(
    "Why the request is withdrawn (optional)", required=False, help="It is shown with the request."
)
WITHDRAW = Action(
    "withdraw",
    "Withdraw the request",
    "The request is withdrawn from every model whose batch has not started yet, and the identifiers are "
    "deleted at once. To erase the same people later, enter a new request.",
    destructive=True,
)
ACKNOWLEDGE = Action(
    "acknowledge",
    "Confirm that the receipts were handed out",
    "The secret values in the receipts are destroyed. Nobody can create these receipts again, and nobody can "
    "test a guessed identifier against the certificate. Confirm this only after every letter was sent.",
    destructive=True,
)


@dataclass
class Draft:
    """What someone typed into the form for a new request. It is shown again if something is wrong.

    A file cannot be shown again: browsers do not allow it.
    """

    subjects: str = ""
    models: list[str] = field(default_factory=list)
    reference: str = ""
    reason: str = ""
    jurisdiction: str = ""
    received_on: str = ""
    key: str = ""


@router.get("/new")
def show_form(request: Request, caller: ErasureWriter, services: ServicesOf) -> Response:
    """Show the form for a new request."""
    return _render_form(request, services, caller.tenant_id, Draft(key=secrets.token_urlsafe(18)))


@router.post("/new")
async def enter_request(request: Request, caller: ErasureWriter, services: ServicesOf) -> Response:
    """Record a request that was typed in or sent as a CSV file.

    The form carries an idempotency key, so sending it twice records one request.
    """
    draft = Draft()

    def record(fields: Fields, form: MultipartForm) -> Answer:
        vars(draft).update(vars(_draft_of(fields)))
        details = _details_of(draft)
        prepared = service.prepare(
            services.vault, caller.tenant_id, details, _read_subjects(draft, form), draft.key or None
        )
        outcome = record_group(services, [prepared])[0]
        if isinstance(outcome, ServiceError):
            raise outcome
        return outcome

    try:
        answer = await read_upload(request, record)
    except InvalidRequest as problem:
        return await run_in_threadpool(
            _render_form, request, services, caller.tenant_id, draft, problem=problem.detail
        )
    recorded = json.loads(answer.body)
    if recorded["warnings"] or not caller.may(Scope.ERASURES_READ):
        return render_page(request, "erasure_recorded.html", recorded=recorded)
    return RedirectResponse(f"/erasures/{recorded['id']}", 303)


def _draft_of(fields: Fields) -> Draft:
    def last(name: str) -> str:
        return fields.get(name, [""])[-1]

    return Draft(
        subjects=last("subjects"),
        models=[name for name in fields.get("models", []) if name],
        reference=last("reference").strip(),
        reason=last("reason").strip(),
        jurisdiction=last("jurisdiction").strip(),
        received_on=last("received_on").strip(),
        key=last("key"),
    )


def _details_of(draft: Draft) -> ErasureDetails:
    try:
        return ErasureDetails(
            models=draft.models or None,
            reference=draft.reference or None,
            reason=draft.reason or None,
            jurisdiction=draft.jurisdiction or None,
            received_at=_received_at(draft.received_on),
        )
    except ValidationError as problem:
        first = problem.errors(include_input=False, include_url=False)[0]
        label = _LABELS.get(str(first["loc"][0]), "The form")
        raise InvalidRequest(f"{label} {validation_message(first)}.") from None


def _received_at(day: str) -> datetime | None:
    """Return the start of the day in UTC. Counting from the start never makes the deadline too late."""
    if not day:
        return None
    try:
        return datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise InvalidRequest("The date is not a day of the calendar. Write it as 2027-01-31.") from None


def _read_subjects(draft: Draft, form: MultipartForm) -> Iterator[str]:
    """Yield the identifiers of the text field, one per line, and then those of the CSV file."""
    number = 0
    for line_number, line in enumerate(draft.subjects.splitlines(), 1):
        if not line.strip():
            continue
        number += 1
        try:
            yield _SUBJECT.validate_python(line)  # spaces are part of an identifier
        except ValidationError:
            raise InvalidRequest(f"Line {line_number} is not an identifier. It {RULE}.") from None
    content = form.file()
    if form.file_name:
        yield from bulk.read_subjects("text/csv", content)
    elif not number:
        raise InvalidRequest(_NOBODY)


def _render_form(
    request: Request, services: Services, tenant_id: UUID, draft: Draft, *, problem: str = ""
) -> Response:
    with services.database.reading() as session:
        names = queries.erasable_models(session, tenant_id)
    return render_page(
        request,
        "erasure_new.html",
        status=422 if problem else 200,
        draft=draft,
        problem=problem,
        models=names,
        today=f"{now():%Y-%m-%d}",
    )


# Actions on one request


@router.get("/{erasure_id}/extend")
def confirm_extension(
    request: Request, erasure_id: UUID, caller: ErasureWriter, services: ServicesOf
) -> Response:
    """Ask for the reason of an extension."""
    with services.database.reading() as session:
        erasure = _view(session, caller.tenant_id, erasure_id)
    later = months_later(erasure.received_at, 3)
    facts = [*_facts(erasure), Fact("New deadline", format_moment(later))]
    return render_confirmation(request, EXTEND, f"/erasures/{erasure_id}", facts, reason=EXTENSION_REASON)


@router.post("/{erasure_id}/extend")
async def extend_deadline(
    erasure_id: UUID, caller: ErasureWriter, services: ServicesOf, form: OwnForm
) -> Response:
    """Extend the deadline and return to the request."""

    def extend() -> None:
        with services.database.writing() as session:
            service.extend(session, caller.tenant_id, erasure_id, reason_in(form, required=True))

    await run_in_threadpool(extend)
    return RedirectResponse(f"/erasures/{erasure_id}", 303)


@router.get("/{erasure_id}/withdraw")
def confirm_withdrawal(
    request: Request, erasure_id: UUID, caller: ErasureWriter, services: ServicesOf
) -> Response:
    """Ask for confirmation, and for which model if there are several."""
    with services.database.reading() as session:
        erasure = _view(session, caller.tenant_id, erasure_id)
    waiting = [task.model for task in erasure.tasks if task.state == TaskState.RECEIVED]
    return render_confirmation(
        request,
        WITHDRAW,
        f"/erasures/{erasure_id}",
        _facts(erasure),
        reason=WITHDRAWAL_REASON,
        models=waiting,
    )


@router.post("/{erasure_id}/withdraw")
async def withdraw_request(
    erasure_id: UUID, caller: ErasureWriter, services: ServicesOf, form: OwnForm
) -> Response:
    """Withdraw the request and return to it."""

    def withdraw() -> None:
        with services.database.writing() as session:
            reason = reason_in(form, required=False)
            service.withdraw(session, caller.tenant_id, erasure_id, form.get("model") or None, reason)

    await run_in_threadpool(withdraw)
    return RedirectResponse(f"/erasures/{erasure_id}", 303)


@router.get("/{erasure_id}/acknowledge")
def confirm_acknowledgement(
    request: Request, erasure_id: UUID, caller: ErasureWriter, services: ServicesOf
) -> Response:
    """Ask for confirmation before the receipts become impossible to create."""
    with services.database.reading() as session:
        erasure = _view(session, caller.tenant_id, erasure_id)
    return render_confirmation(request, ACKNOWLEDGE, f"/erasures/{erasure_id}", _facts(erasure))


@router.post("/{erasure_id}/acknowledge")
async def acknowledge_receipts(
    erasure_id: UUID, caller: ErasureWriter, services: ServicesOf, _: OwnForm
) -> Response:
    """Destroy the salts of the receipts and return to the request."""

    def acknowledge() -> None:
        with services.database.writing() as session:
            receipts.acknowledge(session, caller.tenant_id, erasure_id)
        if not services.database.forget_deleted_bytes():
            log.warning("destroyed salts remain in the write-ahead log because a reader holds it open")

    await run_in_threadpool(acknowledge)
    return RedirectResponse(f"/erasures/{erasure_id}", 303)


def _view(session: Session, tenant_id: UUID, erasure_id: UUID) -> ErasureView:
    return service.describe_erasure(session, service.get(session, tenant_id, erasure_id))


def _facts(erasure: ErasureView) -> list[Fact]:
    name: Any = erasure.reference or f"…{str(erasure.id)[-8:]}"
    return [
        Fact("Request", name, f"/erasures/{erasure.id}"),
        Fact("People", format_count(erasure.subjects, "person", "people")),
        Fact("Received", format_moment(erasure.received_at)),
        Fact("Answer due", format_moment(erasure.due_at)),
    ]
