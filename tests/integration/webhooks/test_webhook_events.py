"""Which events are sent, and which are not."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text

from app.db import transitions
from app.db.states import EventKind
from app.db.tables import Batch, Model
from app.db.webhooks import WebhookNotice
from app.gateway.auth.scopes import Scope
from app.services import Services
from tests.integration.harness import System, create_model, key_for
from tests.integration.job_world import World
from tests.integration.webhooks.world import Hook, Post, ask_both, count, register, run_to_claim
from tests.webhook_receiver import Receiver

CANARY = "canary-91c3-person"
# For tests that do not depend on the database.
ONE_DATABASE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@ONE_DATABASE
def test_a_whole_run_is_told_without_a_word_about_the_person(
    gateway: TestClient, admin: dict[str, str], system: System, there: Receiver, post: Post
) -> None:
    hook = register(gateway, admin, there.url)
    create_model(gateway, admin)
    system.settle()
    body = {"subjects": ["s1", CANARY], "reference": CANARY, "reason": CANARY, "models": ["toy"]}
    erasure = gateway.post("/v1/erasures", json=body, headers=admin).json()
    system.settle()
    post.deliver()
    told = {message["type"]: message for message in (got.verified(hook.secret) for got in there.received)}
    assert sorted(told) == [
        "batch.completed",
        "certificate.published",
        "erasure.completed",
        "model.ready",
        "version.superseded",
    ]
    assert len(there.received) == 5
    assert all(set(message) == {"type", "timestamp", "data"} for message in told.values())
    assert told["erasure.completed"]["data"] == {"erasure_id": erasure["id"]}
    published = told["certificate.published"]["data"]
    certificate = gateway.get(f"/v1/certificates/{published['certificate_id']}", headers=admin)
    assert certificate.status_code == 200
    assert published["version"] == 1
    superseded = told["version.superseded"]["data"]
    assert (superseded["version"], superseded["superseded_by"]) == (0, 1)
    everything = b"".join(got.body + repr(got.headers).encode() for got in there.received)
    assert CANARY.encode() not in everything
    tables = ("webhook_events", "webhook_deliveries", "webhook_notices")
    with post.services.database.reading() as session:
        kept = "".join(str(row) for name in tables for row in session.execute(text(f"SELECT * FROM {name}")))
    assert CANARY not in kept
    assert count(post.services, WebhookNotice) == 0


def test_what_did_not_happen_is_not_told(world: World, hook: Hook, post: Post, there: Receiver) -> None:
    world.ask(0, subjects=1)
    run_to_claim(world)

    def complete_and_break() -> None:
        with world.services.database.writing() as session:
            transitions.complete_batch(session, session.scalars(select(Batch)).one(), world.clock.wall)
            session.flush()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        complete_and_break()
    assert post.deliver() == 0
    assert not there.received


def test_failed_held_and_retried_batches_are_told(
    world: World, hook: Hook, post: Post, there: Receiver
) -> None:
    world.ask(0, subjects=1)
    held = run_to_claim(world)
    world.hold(held)
    world.ask(1, subjects=1)
    for _ in range(world.services.settings.max_attempts):
        world.clock.passes(600)
        world.fail(run_to_claim(world, 1))
    with world.services.database.writing() as session:
        batch = session.scalars(select(Batch).where(Batch.job_id == held.job_id)).one()
        transitions.add_event(session, batch.id, EventKind.ALERT, {"max_kl": 0.1}, world.clock.wall)
    post.deliver()
    assert there.types(hook.secret) == ["batch.alert", "batch.failed", "batch.held", "erasure.failed"]


def test_an_erasure_is_completed_once_when_its_last_batch_is(
    world: World, hook: Hook, post: Post, there: Receiver
) -> None:
    """Both batches end at the same moment. In either transaction the other looks unfinished."""
    ask_both(world)
    first, second = run_to_claim(world, 0), run_to_claim(world, 1)
    world.complete(first)
    post.deliver()
    assert there.types(hook.secret) == ["batch.completed"]
    world.complete(second)
    with world.services.database.writing() as session:
        for notice in (*session.scalars(select(Batch.id)),):  # the same notices again: they change nothing
            session.add(WebhookNotice(kind="completed", subject_id=notice))
    post.deliver()
    assert there.types(hook.secret).count("erasure.completed") == 1
    assert count(post.services, WebhookNotice) == 0


def test_a_withdrawal_can_complete_an_erasure(
    world: World, gateway: TestClient, services: Services, hook: Hook, post: Post, there: Receiver
) -> None:
    erasure_id = ask_both(world)
    world.complete(run_to_claim(world, 0))
    writer = key_for(services, "tenant", Scope.ERASURES_WRITE, Scope.ERASURES_READ)
    answer = gateway.delete(f"/v1/erasures/{erasure_id}", headers=writer)
    assert answer.json()["state"] == "completed", answer.text
    post.deliver()
    assert there.types(hook.secret) == ["batch.completed", "erasure.completed"]


def test_a_rejected_model_can_complete_an_erasure(
    world: World, hook: Hook, post: Post, there: Receiver
) -> None:
    ask_both(world)
    world.complete(run_to_claim(world, 0))
    post.deliver()
    assert there.types(hook.secret) == ["batch.completed"]
    with world.services.database.writing() as session:
        transitions.reject_model(session, session.get_one(Model, world.models[1]), ["no rows"])
    post.deliver()
    assert there.types(hook.secret) == ["batch.completed", "erasure.completed", "model.rejected"]


@ONE_DATABASE
def test_models_that_are_rejected_or_retired_are_told(
    world: World, hook: Hook, post: Post, there: Receiver
) -> None:
    with world.services.database.writing() as session:
        model = session.get_one(Model, world.models[0])
        transitions.reject_model(session, model, ["no rows"])
        transitions.retire_model(session, model)
        transitions.retire_model(session, model)
    post.deliver()
    assert there.types(hook.secret) == ["model.rejected", "model.retired"]


@ONE_DATABASE
def test_only_the_wanted_types_are_sent(
    world: World, gateway: TestClient, owner: dict[str, str], post: Post, there: Receiver
) -> None:
    hook = register(gateway, owner, there.url, "erasure.completed")
    world.ask(0, subjects=1)
    world.complete(run_to_claim(world))
    post.deliver()
    assert there.types(hook.secret) == ["erasure.completed"]
    assert hook.patch(event_types=[])["event_types"] == []
    world.ask(0, subjects=1)
    world.complete(run_to_claim(world))
    post.deliver()
    assert there.types(hook.secret) == ["batch.completed", "erasure.completed", "erasure.completed"]
