"""Pages about batches: live progress, and the decisions that the model's team makes."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from sqlalchemy.orm import Session

from app.db.states import Decision, EventKind
from app.db.tables import Batch
from app.gateway.auth.caller import Caller
from app.gateway.auth.guard import ServicesOf
from app.gateway.auth.scopes import Scope
from app.gateway.batches import endpoints, service
from app.gateway.batches.schemas import BatchView
from app.gateway.dashboard import queries, wording
from app.gateway.dashboard.confirmation import Action, Fact, Reason, reason_in, render_confirmation
from app.gateway.dashboard.pages import PageRoute, render_list, render_page
from app.gateway.dashboard.sessions import ModelAdmin, ModelReader, OwnForm, sessions_of
from app.gateway.dashboard.wording import format_count
from app.gateway.errors import NotFound
from app.gateway.event_stream import EventStream, Listener
from app.gateway.wake_up import WAKES_DISPATCHER
from app.services import Services

router = APIRouter(prefix="/batches", route_class=PageRoute, include_in_schema=False)
MAX_STEPS, MAX_EVENTS = 200, 100


RETRY = Action(
    "retry", "Try again", "The batch starts again from the beginning, under the model's current policy."
)
APPROVE = Action(
    "approve",
    "Publish as it is",
    "The version that is on hold is published exactly as it is, with its certificate.",
)
DISCARD = Action(
    "discard",
    "Discard the draw",
    "The version that is on hold is destroyed. A signed statement records it as a release, so it still uses "
    "part of the model's lifetime privacy budget. The requests stay open until someone tries the batch "
    "again.",
    destructive=True,
)
CANCEL = Action(
    "cancel",
    "Cancel the batch",
    "Work on this batch stops and nothing is published. The requests stay open until someone tries the batch "
    "again.",
    destructive=True,
)
REASONS = {
    APPROVE.name: Reason("Why this version may be published"),
    DISCARD.name: Reason("Why this version is discarded"),
    RETRY.name: Reason("Why it is tried again (optional)", required=False),
    CANCEL.name: Reason("Why it is cancelled (optional)", required=False),
}
CHOICES_CHANGED = (
    "The policy (ε, δ or Δ*) or the regularisation λ has changed since an attempt on the same rows was "
    "refused or put on hold. The certificate will say so, and its assurance will be conditional at most. To "
    "avoid this, restore the earlier values first."
)
ACTIONS = {action.name: action for action in (RETRY, APPROVE, DISCARD, CANCEL)}


def possible_actions(batch: BatchView) -> list[Action]:
    """Return the decisions to offer. The service checks again when one is made."""
    return [ACTIONS[decision] for decision in batch.decisions]


def solver_view(session: Session, batch: BatchView) -> dict[str, Any]:
    """Return the solver's steps so far, and the event after which the live stream continues.

    Rows that are appended are represented first. `features` says how far that is until the solver starts.
    """
    reports = [event.data for event in queries.progress_reports(session, batch.id, MAX_STEPS)]
    steps = [report for report in reports if "gradient_norm" in report]
    return {
        "steps": steps,
        "features": reports[-1] if reports and not steps else None,
        "is_live": batch.state not in service.ENDED,
        "after": queries.newest_event_id(session, batch.id),
    }


@router.get("")
def list_batches(
    request: Request, caller: ModelReader, services: ServicesOf, cursor: UUID | None = None
) -> Response:
    """List the tenant's batches."""
    return render_list(
        request,
        services,
        "batches.html",
        service.of_tenant(caller.tenant_id),
        Batch.id,
        cursor=cursor,
        show=lambda session, batches: service.describe_batches(session, batches, caller),
    )


@router.get("/{batch_id}")
def show_batch(request: Request, batch_id: UUID, caller: ModelReader, services: ServicesOf) -> Response:
    """Show one batch: its state, the solver's steps, its history, and the decisions to make."""
    with services.database.reading() as session:
        batch = service.describe_batch(session, service.get(session, caller.tenant_id, batch_id), caller)
        solver = solver_view(session, batch)
        events = queries.batch_history(session, batch_id, MAX_EVENTS)
    may_decide = caller.may(Scope.MODELS_ADMIN)
    return render_page(
        request,
        "batch.html",
        batch=batch,
        solver=solver,
        events=events,
        actions=possible_actions(batch) if may_decide else [],
        started_steps={str(event.data.get("step")) for event in events if event.kind == EventKind.STEP},
    )


@router.get("/{batch_id}/events")
async def follow_batch(
    request: Request,
    batch_id: UUID,
    caller: ModelReader,
    services: ServicesOf,
    after: Annotated[int, Query(ge=0, lt=10**18)] = 0,
    last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{1,18}$")] = None,
) -> Response:
    """Stream the API's events to a signed-in browser. It sends `Last-Event-ID` when it reconnects."""
    await run_in_threadpool(endpoints.get_batch, batch_id, caller, services)
    last = max(after, int(last_event_id or 0))
    listener = Listener(request, sessions_of(request).identify)
    lines = endpoints.stream_events(services, batch_id, last, listener)
    return EventStream(request.state.streams, caller.tenant_id, lines)


@router.get("/{batch_id}/{action}")
def confirm_action(
    request: Request, batch_id: UUID, action: str, caller: ModelAdmin, services: ServicesOf
) -> Response:
    """Ask for confirmation, and for the reason of a decision."""
    with services.database.reading() as session:
        batch = service.describe_batch(session, service.get(session, caller.tenant_id, batch_id), caller)
        choices_changed = action == RETRY.name and service.retry_changes_choices(session, batch_id)
    chosen = _find_action(action)
    facts = [
        Fact("Model", batch.model, f"/models/{batch.model}"),
        Fact("Batch id", str(batch.id)),
        Fact("People", format_count(batch.subjects, "person", "people")),
        Fact("State", wording.name_of(wording.BATCH, batch.state)),
    ]
    return render_confirmation(
        request,
        chosen,
        f"/batches/{batch_id}",
        facts,
        reason=REASONS.get(action),
        warnings=[CHOICES_CHANGED] if choices_changed else [],
    )


@router.post("/{batch_id}/{action}", dependencies=[WAKES_DISPATCHER])
async def perform_action(
    batch_id: UUID, action: str, caller: ModelAdmin, services: ServicesOf, form: OwnForm
) -> Response:
    """Carry out a decision and return to the batch."""
    chosen = _find_action(action)
    asked = REASONS.get(chosen.name)
    reason = "" if asked is None else reason_in(form, required=asked.required)
    await run_in_threadpool(_perform, chosen, caller, batch_id, reason, services)
    return RedirectResponse(f"/batches/{batch_id}", 303)


def _find_action(name: str) -> Action:
    if name not in ACTIONS:
        raise NotFound("This page does not exist.")
    return ACTIONS[name]


def _perform(action: Action, caller: Caller, batch_id: UUID, reason: str, services: Services) -> None:
    with services.database.writing() as session:
        decided = service.who_and_why(caller, reason)
        if action is RETRY:
            service.retry(session, caller.tenant_id, batch_id, decided)
        elif action is CANCEL:
            service.cancel(session, caller.tenant_id, batch_id, decided)
        else:
            service.decide(session, caller.tenant_id, batch_id, Decision(action.name), decided)
