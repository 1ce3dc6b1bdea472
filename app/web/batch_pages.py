"""Batches: how far each is, live, and the decisions that are its owner's."""

from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from sqlalchemy.orm import Session

from app.access.guard import ServicesOf
from app.access.scopes import Scope
from app.batches import endpoints, repository, service
from app.batches.schemas import BatchShown
from app.bootstrap import Services
from app.db.states import BatchState, Decision
from app.db.tables import Batch
from app.errors import NotFound
from app.streams import Stream, Watched
from app.web import queries
from app.web.guard import DecidesOnModels, OwnForm, SeesModels, sessions_of
from app.web.listing import listing
from app.web.pages import PageRoute, page

router = APIRouter(prefix="/batches", route_class=PageRoute, include_in_schema=False)
STEPS, EVENTS = 200, 100


@dataclass(frozen=True)
class Action:
    """A decision, with what it means before it is made."""

    name: str
    title: str
    meaning: str
    grave: bool = False


RETRY = Action(
    "retry", "Try again", "The batch starts again from the beginning, under the model's present policy."
)
APPROVE = Action(
    "approve",
    "Publish as it is",
    "The version that is held is published exactly as it is, with its certificate.",
)
DISCARD = Action(
    "discard",
    "Discard the draw",
    "The version that is held is destroyed. A signed statement counts it as a release, so it spends from the "
    "model's lifetime budget. The requests stay open until the batch is tried again.",
    grave=True,
)
CANCEL = Action(
    "cancel",
    "Cancel",
    "The work on this batch stops. Nothing is published, and its requests stay open until it is tried again.",
    grave=True,
)
ACTIONS = {action.name: action for action in (RETRY, APPROVE, DISCARD, CANCEL)}
_STOPPABLE = (BatchState.SEALED, BatchState.QUEUED, BatchState.RUNNING)


def possible(batch: BatchShown, *, holds_draw: bool) -> list[Action]:
    """What the API would take now; it decides again when it is asked."""
    if batch.state == BatchState.HELD and holds_draw:
        return [APPROVE, DISCARD]
    if batch.state in (BatchState.HELD, BatchState.FAILED):
        return [] if batch.sealed_because == "append" else [RETRY]
    return [CANCEL] if batch.state in _STOPPABLE else []


def live_view(session: Session, batch: BatchShown) -> dict[str, Any]:
    """The solver's steps so far, and where to go on listening."""
    steps = [event.data for event in queries.progress(session, batch.id, STEPS)]
    return {
        "steps": steps,
        "target": next((step["target"] for step in reversed(steps) if step.get("target")), None),
        "listens": batch.state not in service.ENDED,
        "after": queries.newest_event(session, batch.id),
    }


@router.get("")
def list_batches(
    request: Request, caller: SeesModels, services: ServicesOf, cursor: UUID | None = None
) -> Response:
    query = repository.of_tenant(caller.tenant_id)
    return listing(
        request,
        services,
        "batches.html",
        query,
        Batch.id,
        cursor=cursor,
        show=lambda session, batch: service.shown(session, batch, caller),
    )


@router.get("/{batch_id}")
def show_batch(request: Request, batch_id: UUID, caller: SeesModels, services: ServicesOf) -> Response:
    with services.database.reading() as session:
        batch = service.shown(session, service.get(session, caller.tenant_id, batch_id), caller)
        live = live_view(session, batch)
        events = queries.happenings(session, batch_id, EVENTS)
        drawn = queries.holds_draw(session, batch_id)
    actions = possible(batch, holds_draw=drawn) if caller.may(Scope.MODELS_ADMIN) else []
    reached = {str(event.data.get("step")) for event in events if event.kind == "step"}
    return page(
        request, "batch.html", batch=batch, live=live, events=events, actions=actions, reached=reached
    )


@router.get("/{batch_id}/events")
async def follow_batch(
    request: Request,
    batch_id: UUID,
    caller: SeesModels,
    services: ServicesOf,
    after: Annotated[int, Query(ge=0, lt=10**18)] = 0,
    last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{1,18}$")] = None,
) -> Response:
    """The API's stream, for someone who is signed in; a browser that reconnects says where it was."""
    await run_in_threadpool(endpoints.get_batch, batch_id, caller, services)
    last = max(after, int(last_event_id or 0))
    watched = Watched(request, sessions_of(request).identify)
    return Stream(request.state.streams, endpoints._events(services, batch_id, last, watched))


@router.get("/{batch_id}/{action}")
def confirm(
    request: Request, batch_id: UUID, action: str, caller: DecidesOnModels, services: ServicesOf
) -> Response:
    """Asked again before anything happens, on a page of its own: it needs no script."""
    with services.database.reading() as session:
        batch = service.shown(session, service.get(session, caller.tenant_id, batch_id), caller)
        choices_changed = action == RETRY.name and service.retry_changes_choices(session, batch_id)
    return page(request, "confirm.html", batch=batch, action=_known(action), choices_changed=choices_changed)


@router.post("/{batch_id}/{action}")
async def decide(
    batch_id: UUID, action: str, caller: DecidesOnModels, services: ServicesOf, _: OwnForm
) -> Response:
    await run_in_threadpool(_act, _known(action), caller.tenant_id, batch_id, services)
    return RedirectResponse(f"/batches/{batch_id}", 303)


def _known(name: str) -> Action:
    if name not in ACTIONS:
        raise NotFound("There is no such decision.")
    return ACTIONS[name]


def _act(action: Action, tenant_id: UUID, batch_id: UUID, services: Services) -> None:
    with services.database.writing() as session:
        if action is RETRY:
            service.retry(session, tenant_id, batch_id)
        elif action is CANCEL:
            service.cancel(session, tenant_id, batch_id)
        else:
            service.decide(session, tenant_id, batch_id, Decision(action.name))
