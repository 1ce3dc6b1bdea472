"""Webhooks from a change of state to a receiver that verifies the signature, on both databases."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, text

from app.access.scopes import Scope
from app.bootstrap import Services
from app.db import transitions
from app.db.tables import Batch, Model
from app.db.webhooks import (
    WebhookDelivery,
    WebhookEndpoint,
    WebhookEvent,
    WebhookNotice,
)
from app.settings import Settings
from app.webhooks import delivery, schedule
from tests import eventually
from tests.integration.harness import System, create_model, key_for
from tests.integration.job_world import World
from tests.integration.webhook_world import EXAMPLE, Hook, Post, ask_both, register, run_to_claim
from tests.webhook_receiver import Receiver, receiver

CANARY = "canary-91c3-person"
# For what is not about the database: the other one would only cost time.
ONE_DATABASE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"webhook_intranet": True})


@pytest.fixture
def there() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture
def world(services: Services) -> World:
    return World(services)


@pytest.fixture
def owner(services: Services, world: World) -> dict[str, str]:
    return key_for(services, "tenant", Scope.WEBHOOKS_ADMIN)


@pytest.fixture
def hook(gateway: TestClient, owner: dict[str, str], there: Receiver) -> Hook:
    return register(gateway, owner, there.url)


@pytest.fixture
def post(services: Services) -> Iterator[Post]:
    made = Post(services)
    yield made
    made.courier.close()


def count(services: Services, table: type) -> int:
    with services.database.reading() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


# What is told


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
        transitions.add_event(session, batch.id, "alert", {"max_kl": 0.1}, world.clock.wall)
    post.deliver()
    assert there.types(hook.secret) == ["batch.alert", "batch.failed", "batch.held", "erasure.failed"]


def test_an_erasure_is_completed_once_when_its_last_batch_is(
    world: World, hook: Hook, post: Post, there: Receiver
) -> None:
    """Both batches end at the same moment: from within either the other looks unfinished."""
    ask_both(world)
    first, second = run_to_claim(world, 0), run_to_claim(world, 1)
    world.complete(first)
    post.deliver()
    assert there.types(hook.secret) == ["batch.completed"]
    world.complete(second)
    with world.services.database.writing() as session:
        for notice in (*session.scalars(select(Batch.id)),):  # told again of both: it changes nothing
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


# How it is delivered


def test_a_receiver_that_fails_is_tried_again_later_and_later(
    hook: Hook, post: Post, there: Receiver
) -> None:
    there.status = 503
    ready(post.services, hook)
    for n, wait in enumerate(schedule.WAITS[:4], start=1):
        assert post.deliver() == 1
        assert post.deliver() == 0
        (shown,) = hook.deliveries("pending")
        assert (shown["attempts"], shown["status_code"], shown["error"]) == (n, 503, "bad_status")
        post.clock.passes(seconds=wait.total_seconds() - 2)
        assert post.deliver() == 0
        post.clock.passes(seconds=3)
    there.status = 200
    assert post.deliver() == 1
    (shown,) = hook.deliveries("delivered")
    assert (shown["attempts"], shown["status_code"], shown["next_attempt_at"]) == (5, 200, None)
    assert len({got.headers["webhook-id"] for got in there.received}) == 1
    assert len({got.body for got in there.received}) == 1
    stamps = [int(got.headers["webhook-timestamp"]) for got in there.received]
    assert stamps == sorted(set(stamps)), "signed anew each time"
    assert post.deliver() == 0


def test_a_sender_that_dies_before_writing_it_down_is_followed_by_another(
    hook: Hook, post: Post, there: Receiver
) -> None:
    ready(post.services, hook)
    post.wire.kills_after_sending = True
    assert post.courier.round() == 1
    post.courier.settle()
    post.wire.kills_after_sending = False
    assert hook.deliveries()[0]["state"] == "pending"
    other = post.another()
    assert other.round() == 0, "claimed until its lease is over"
    post.clock.passes(seconds=delivery.LEASE.total_seconds() + 1)
    assert other.round() == 1
    other.close()
    first, second = there.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body
    assert hook.deliveries()[0]["state"] == "delivered"


def test_an_attempt_that_was_overtaken_has_nothing_to_say(hook: Hook, post: Post, there: Receiver) -> None:
    """It was held up for longer than its lease; another has delivered meanwhile."""
    ready(post.services, hook)
    there.status = 500
    other = post.another()

    def overtake() -> None:
        post.wire.meanwhile = lambda: None
        there.status = 200
        post.clock.passes(minutes=5)
        assert other.round() == 1
        other.settle()

    post.wire.meanwhile = overtake
    assert post.courier.round() == 1
    post.courier.settle()
    other.close()
    (shown,) = hook.deliveries()
    assert (shown["state"], shown["status_code"], shown["attempts"]) == ("delivered", 200, 2)


def test_several_couriers_send_each_message_once(hook: Hook, post: Post, there: Receiver) -> None:
    for _ in range(30):
        hook.post("/test")
    couriers = [post.another() for _ in range(3)]

    def drain(n: int) -> None:
        while couriers[n].round() or count(post.services, WebhookDelivery) > len(there.received):
            couriers[n].settle()

    with ThreadPoolExecutor(3) as threads:
        for done in [threads.submit(drain, n) for n in range(3)]:
            done.result()
    for courier in couriers:
        courier.close()
    assert len(there.received) == 30
    assert len({got.headers["webhook-id"] for got in there.received}) == 30


@ONE_DATABASE
def test_a_receiver_that_hangs_holds_nobody_else_up(
    gateway: TestClient, owner: dict[str, str], hook: Hook, post: Post, there: Receiver
) -> None:
    with receiver() as slow:
        go_on = threading.Event()
        slow.before_answer = lambda: go_on.wait(30)
        hanging = register(gateway, owner, slow.url)
        for _ in range(20):
            hanging.post("/test")
        hook.post("/test")
        assert post.courier.round() == delivery.PER_ENDPOINT + 1
        eventually(lambda: hook.deliveries("delivered"))
        hook.post("/test")
        eventually(lambda: post.courier.round() + 1 and len(hook.deliveries("delivered")) == 2)
        assert len(slow.received) == delivery.PER_ENDPOINT
        go_on.set()
        post.courier.settle()


def test_after_the_last_try_it_is_dead_until_it_is_replayed(hook: Hook, post: Post, there: Receiver) -> None:
    there.status = 500
    for _ in range(2):
        ready(post.services, hook)
    exhaust(post)
    assert len(there.received) == 2 * (len(schedule.WAITS) + 1)
    dead = hook.deliveries("dead")
    assert [shown["attempts"] for shown in dead] == [11, 11]
    assert hook.deliveries("delivered") == []
    there.status, there.received = 200, []
    shown = hook.post(f"/deliveries/{dead[0]['id']}/replay")
    assert (shown["state"], shown["message_id"]) == ("pending", dead[0]["message_id"])
    hook.post(f"/deliveries/{dead[0]['id']}/replay", expect=409)
    post.deliver()
    assert there.received[0].headers["webhook-id"] == dead[0]["message_id"]
    assert hook.post("/replay") == {"replayed": 1}
    post.deliver()
    assert len(there.received) == 2
    assert hook.post("/replay") == {"replayed": 0}
    assert {shown["state"] for shown in hook.deliveries()} == {"delivered"}
    hook.post(f"/deliveries/{dead[0]['id']}/replay")  # a delivered one too: the receiver may have lost it
    post.deliver()
    assert len(there.received) == 3


@ONE_DATABASE
def test_a_replay_begins_the_schedule_anew(hook: Hook, post: Post, there: Receiver) -> None:
    there.status = 500
    ready(post.services, hook)
    exhaust(post)
    hook.post("/replay")
    post.deliver()
    (shown,) = hook.deliveries("pending")
    assert shown["attempts"] == len(schedule.WAITS) + 2


def test_gone_disables_the_endpoint_and_enabling_it_lets_the_rest_go_on(
    hook: Hook, post: Post, there: Receiver
) -> None:
    there.status = 410
    ready(post.services, hook)
    post.deliver()
    assert (hook.look()["enabled"], hook.look()["disabled_reason"]) == (False, "gone")
    assert [shown["status_code"] for shown in hook.deliveries("dead")] == [410]
    ready(post.services, hook)
    assert post.deliver() == 0
    assert hook.deliveries("pending") == [], "what happens meanwhile is not kept for it"
    for end in ("/test", "/replay", f"/deliveries/{hook.deliveries()[0]['id']}/replay"):
        hook.post(end, expect=409)
    there.status = 200
    assert hook.patch(enabled=True)["disabled_reason"] is None
    hook.post("/replay")
    assert post.deliver() == 1


@ONE_DATABASE
def test_gone_said_by_the_url_before_does_not_disable_the_new_one(
    hook: Hook, post: Post, there: Receiver
) -> None:
    there.status = 410
    ready(post.services, hook)
    post.wire.meanwhile = lambda: hook.patch(url=there.url + "/new")
    post.deliver()
    assert hook.look()["enabled"]


@ONE_DATABASE
def test_a_ping_is_sent_once(hook: Hook, post: Post, there: Receiver) -> None:
    sent = hook.post("/test")
    post.deliver()
    assert there.received[0].verified(hook.secret)["type"] == "webhook.ping"
    shown = hook.gateway.get(f"{hook.path}/deliveries/{sent['id']}", headers=hook.headers).json()
    assert shown["state"] == "delivered"
    there.status = 500
    hook.post("/test")
    post.deliver()
    assert hook.deliveries("dead")[0]["error"] == "bad_status"


def test_a_clock_that_jumped_back_does_not_stop_deliveries(hook: Hook, post: Post, there: Receiver) -> None:
    there.status = 500
    ready(post.services, hook)
    post.clock.passes(hours=20)
    post.deliver()
    post.clock.passes(hours=-20)
    there.status = 200
    assert post.deliver() == 1


@ONE_DATABASE
def test_a_target_inside_is_refused_when_it_is_sent_to(hook: Hook, post: Post, there: Receiver) -> None:
    """Registered while it was allowed, or under a name that leads elsewhere now."""
    post.wire.intranet = False
    ready(post.services, hook)
    assert post.deliver() == 1
    assert [shown["error"] for shown in hook.deliveries("pending")] == ["target_refused"]
    assert not there.received


@ONE_DATABASE
def test_the_loop_delivers_and_stops(hook: Hook, services: Services, there: Receiver) -> None:
    stop = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(delivery.run, services, stop)
        hook.post("/test")
        eventually(lambda: hook.deliveries("delivered"))
        stop.set()
        running.result(30)
    assert len(there.received) == 1


# Secrets


def test_both_secrets_sign_while_one_takes_the_place_of_the_other(
    hook: Hook, post: Post, there: Receiver
) -> None:
    rotated = hook.post("/rotate", {"overlap_hours": 1}, expect=200)
    assert rotated["secret"] != hook.secret
    assert rotated["old_secret_until"]
    hook.post("/test")
    post.deliver()
    there.received[0].verified(hook.secret)
    there.received[0].verified(rotated["secret"])
    assert there.received[0].headers["webhook-signature"].count("v1,") == 2
    post.clock.passes(hours=2)
    hook.post("/test")
    post.deliver()
    assert there.received[1].headers["webhook-signature"].count("v1,") == 1
    post.another().round()  # a courier's first round tidies
    with post.services.database.reading() as session:
        assert session.scalars(select(WebhookEndpoint.previous_secret)).one() is None


@ONE_DATABASE
def test_a_leaked_secret_ends_at_once(hook: Hook, post: Post, there: Receiver) -> None:
    rotated = hook.post("/rotate", {"overlap_hours": 0}, expect=200)
    hook.post("/test")
    post.deliver()
    there.received[0].verified(rotated["secret"])
    with pytest.raises(Exception, match="No matching signature"):
        there.received[0].verified(hook.secret)


@ONE_DATABASE
def test_a_secret_is_shown_once_and_kept_encrypted(
    hook: Hook, services: Services, gateway: TestClient, capfd: pytest.CaptureFixture[str], post: Post
) -> None:
    hook.post("/test")
    post.deliver()
    answers = (
        gateway.get("/v1/webhooks", headers=hook.headers).text + str(hook.look()) + str(hook.deliveries())
    )
    assert "whsec_" not in answers
    with services.database.reading() as session:
        sealed = session.scalars(select(WebhookEndpoint.secret)).one()
    assert hook.secret.encode() not in sealed
    assert hook.secret.removeprefix("whsec_").encode() not in sealed
    logged = "".join(capfd.readouterr())
    assert hook.secret not in logged
    assert hook.shown["url"] not in logged


# Who may, and what is kept


def test_tenants_neither_see_nor_hear_each_other(
    world: World, gateway: TestClient, services: Services, hook: Hook, post: Post, there: Receiver
) -> None:
    stranger = key_for(services, "stranger", Scope.ADMIN)
    with receiver() as elsewhere:
        theirs = register(gateway, stranger, elsewhere.url)
        world.ask(0, subjects=1)
        world.complete(run_to_claim(world))
        post.deliver()
        assert there.types(hook.secret) == ["batch.completed", "erasure.completed"]
        assert not elsewhere.received
    mine = hook.deliveries()[0]["id"]
    for method, path in (
        ("GET", hook.path),
        ("PATCH", hook.path),
        ("DELETE", hook.path),
        ("POST", hook.path + "/rotate"),
        ("POST", hook.path + "/test"),
        ("POST", hook.path + "/replay"),
        ("GET", hook.path + "/deliveries"),
        ("GET", f"{hook.path}/deliveries/{mine}"),
        ("POST", f"{hook.path}/deliveries/{mine}/replay"),
        ("GET", f"{theirs.path}/deliveries/{mine}"),
        ("POST", f"{theirs.path}/deliveries/{mine}/replay"),
    ):
        answer = gateway.request(method, path, json={}, headers=stranger)
        assert answer.status_code == 404, (method, path)
    shown = gateway.get("/v1/webhooks", headers=stranger).json()["items"]
    assert [item["id"] for item in shown] == [theirs.shown["id"]]


@ONE_DATABASE
def test_webhooks_need_their_scope(gateway: TestClient, services: Services) -> None:
    every = [scope for scope in Scope if scope not in (Scope.WEBHOOKS_ADMIN, Scope.ADMIN)]
    headers = key_for(services, "tenant", *every)
    for method, end in (("GET", ""), ("POST", ""), ("GET", f"/{uuid4()}"), ("POST", f"/{uuid4()}/test")):
        answer = gateway.request(method, f"/v1/webhooks{end}", json={"url": EXAMPLE}, headers=headers)
        assert answer.status_code == 403
        assert gateway.request(method, f"/v1/webhooks{end}").status_code == 401


def test_a_deleted_webhook_takes_its_deliveries_along(hook: Hook, post: Post, there: Receiver) -> None:
    ready(post.services, hook)
    post.deliver()
    assert hook.gateway.delete(hook.path, headers=hook.headers).status_code == 204
    assert hook.gateway.get(hook.path, headers=hook.headers).status_code == 404
    assert count(post.services, WebhookDelivery) == 0


def test_deliveries_are_kept_for_thirty_days(hook: Hook, post: Post, there: Receiver) -> None:
    hook.post("/test")
    post.deliver()
    post.clock.passes(days=29)
    post.another().round()
    assert len(hook.deliveries()) == 1
    post.clock.passes(days=2)
    post.another().round()
    assert hook.deliveries() == []
    assert count(post.services, WebhookEvent) == 0


@ONE_DATABASE
def test_a_tenant_has_so_many_webhooks_and_no_more(gateway: TestClient, admin: dict[str, str]) -> None:
    for _ in range(20):
        register(gateway, admin)
    body = {"url": EXAMPLE}
    assert gateway.post("/v1/webhooks", json=body, headers=admin).status_code == 409


def test_nothing_is_kept_where_nobody_listens(world: World, post: Post) -> None:
    world.ask(0, subjects=1)
    world.complete(run_to_claim(world))
    assert count(post.services, WebhookNotice) > 0
    post.deliver()
    assert count(post.services, WebhookNotice) == count(post.services, WebhookEvent) == 0


@ONE_DATABASE
class TestByDefault:
    """Where the operator did not open the intranet."""

    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return settings.model_copy(update={"webhook_intranet": False})

    def test_an_unsafe_url_is_refused_in_words(self, gateway: TestClient, admin: dict[str, str]) -> None:
        hook = register(gateway, admin)
        for url in ("http://hooks.example.com/", "https://127.0.0.1/", "https://a:b@hooks.example.com/"):
            answer = gateway.post("/v1/webhooks", json={"url": url}, headers=admin)
            assert answer.status_code == 422
            assert answer.json()["detail"].endswith(".")
            assert gateway.patch(hook.path, json={"url": url}, headers=admin).status_code == 422
        assert hook.look()["url"] == EXAMPLE


def exhaust(post: Post) -> None:
    """Until nothing is tried any more."""
    while post.deliver():
        post.clock.passes(hours=11)


def ready(services: Services, hook: Hook) -> None:
    """Something happens in the tenant of this webhook."""
    with services.database.writing() as session:
        tenant_id = session.get_one(WebhookEndpoint, UUID(hook.shown["id"])).tenant_id
        model = session.scalars(select(Model).where(Model.tenant_id == tenant_id).limit(1)).one()
        transitions.accept_model(session, model, {})
