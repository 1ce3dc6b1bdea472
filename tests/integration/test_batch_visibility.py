"""Only the model's own team sees how many rows were erased, and the class drift."""

import json
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from app.core.clock import new_id, now
from app.db import transitions
from app.db.states import BatchState, EventKind, JobState
from app.db.tables import Batch, Job
from app.gateway.auth.scopes import Scope
from app.services import Services
from tests.integration.dashboard import Visitor
from tests.integration.harness import MANIFEST, key_for

DRIFT = {"kl_retained_original": 0.0123456789012, "kl_original_retained": 0.0124}
ROWS = 4711
TEAM = frozenset({Scope.MODELS_ADMIN, Scope.ADMIN})
READERS = frozenset({Scope.MODELS_READ, *TEAM})


def completed_batch(gateway: TestClient, services: Services, subjects: int) -> UUID:
    """Create a batch of the tenant `owner` that erased `people` people."""
    owner = key_for(services, "owner", Scope.ADMIN)
    body = {"name": "toy", "manifest": MANIFEST}
    model_id = UUID(gateway.post("/v1/models", json=body, headers=owner).json()["id"])
    batch_id, job_id = new_id(), new_id()
    with services.database.writing() as session:
        session.add(Job(id=job_id, kind="unlearn", model_id=model_id, state=JobState.DONE))
        session.flush()
        session.add(
            Batch(
                id=batch_id,
                model_id=model_id,
                job_id=job_id,
                state=BatchState.COMPLETED,
                sealed_because="count",
                policy=MANIFEST["policy"],
                subjects=subjects,
                records=ROWS,
                shift=DRIFT,
            )
        )
        session.flush()
        transitions.add_event(session, batch_id, EventKind.ALERT, {"max_kl": 0.01}, now())
        transitions.add_event(session, batch_id, EventKind.COMPLETED, {}, now())
    return batch_id


@pytest.mark.parametrize("subjects", [5, 20])
@pytest.mark.parametrize("scope", list(Scope))
def test_figures_about_the_erased_are_the_teams(
    gateway: TestClient, services: Services, scope: Scope, subjects: int
) -> None:
    batch_id = completed_batch(gateway, services, subjects)
    headers = key_for(services, "owner", scope)
    if scope == Scope.MODELS_ADMIN:  # models:admin includes reading
        headers = key_for(services, "owner", scope, Scope.MODELS_READ)
    answer = gateway.get(f"/v1/batches/{batch_id}", headers=headers)
    listed = gateway.get("/v1/batches", headers=headers)
    webhook_events = gateway.get(f"/v1/batches/{batch_id}/events", headers=headers)
    if scope not in READERS:
        assert {answer.status_code, listed.status_code, webhook_events.status_code} == {403}
        return
    told = subjects >= 20 or scope in TEAM
    for shown in (answer.json(), listed.json()["items"][0]):
        assert shown["shift"] == (DRIFT if scope in TEAM else None)
        assert shown["records"] == (ROWS if told else None)
    assert "alert" in webhook_events.text
    for figure in (*DRIFT.values(), ROWS):
        assert str(figure) not in webhook_events.text


@pytest.mark.parametrize("scopes", [{Scope.MODELS_READ}, {Scope.MODELS_READ, Scope.MODELS_ADMIN}])
def test_the_dashboard_shows_what_the_api_shows(
    gateway: TestClient, services: Services, scopes: set[Scope]
) -> None:
    batch_id = completed_batch(gateway, services, 5)
    visitor = Visitor(gateway, services, "owner", *scopes).signed_in()
    pages = [visitor.get(path) for path in (f"/batches/{batch_id}", "/batches", "/models/toy", "/")]
    assert {page.status_code for page in pages} == {200}
    team = Scope.MODELS_ADMIN in scopes
    assert ("4,711" in pages[0].text, "<dt>Class drift</dt>" in pages[0].text) == (team, team)
    assert not any("4,711" in page.text or "0.0123456789012" in page.text for page in pages[1:])


def test_webhooks_and_metrics_tell_neither(gateway: TestClient, services: Services) -> None:
    from sqlalchemy import select

    from app.db.webhooks import WebhookEvent
    from app.dispatcher import webhook_events

    owner = key_for(services, "owner", Scope.ADMIN)
    gateway.post("/v1/webhooks", json={"url": "https://owner.example/hook"}, headers=owner)
    completed_batch(gateway, services, 5)
    webhook_events.expand_notices(services)
    with services.database.reading() as session:
        told = [event.data for event in session.scalars(select(WebhookEvent))]
    assert {frozenset(data) for data in told} == {frozenset({"batch_id", "model_id", "model"})}
    metrics = gateway.get("/metrics").text
    for figure in (*DRIFT.values(), ROWS):
        assert str(figure) not in json.dumps(told) + metrics
