"""Deliveries: retries, several couriers, dead deliveries and replays."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

from app.core.webhooks.sender import Answer
from app.db.webhooks import WebhookDelivery
from app.dispatcher import webhook_delivery
from app.gateway.auth.scopes import Scope
from app.gateway.webhooks.service import MAX_WEBHOOKS
from app.services import Services
from tests import eventually
from tests.integration.harness import key_for
from tests.integration.webhooks.world import (
    Hook,
    Post,
    count,
    exhaust,
    ready,
    register,
)
from tests.webhook_receiver import Receiver, receiver

# For tests that do not depend on the database.
ONE_DATABASE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_a_receiver_that_fails_is_tried_again_later_and_later(
    hook: Hook, post: Post, there: Receiver
) -> None:
    there.status = 503
    ready(post.services, hook)
    for n, wait in enumerate(webhook_delivery.WAITS[:4], start=1):
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
    post.sender.kills_after_sending = True
    assert post.courier.round() == 1
    post.courier.settle()
    post.sender.kills_after_sending = False
    assert hook.deliveries()[0]["state"] == "pending"
    other = post.another()
    assert other.round() == 0, "claimed until its lease is over"
    post.clock.passes(seconds=webhook_delivery.LEASE.total_seconds() + 1)
    assert other.round() == 1
    other.close()
    first, second = there.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body
    assert hook.deliveries()[0]["state"] == "delivered"


def test_an_attempt_that_was_overtaken_has_nothing_to_say(hook: Hook, post: Post, there: Receiver) -> None:
    """The attempt takes longer than its lease, and another one delivers the message meanwhile."""
    ready(post.services, hook)
    there.status = 500
    other = post.another()

    def overtake() -> None:
        post.sender.meanwhile = lambda: None
        there.status = 200
        post.clock.passes(minutes=5)
        assert other.round() == 1
        other.settle()

    post.sender.meanwhile = overtake
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
        slow.before_answer = lambda: go_on.wait(120)
        hanging = register(gateway, owner, slow.url)
        for _ in range(20):
            hanging.post("/test")
        hook.post("/test")
        assert post.courier.round() == webhook_delivery.PER_ENDPOINT + 1
        eventually(lambda: hook.deliveries("delivered"))
        hook.post("/test")
        eventually(lambda: post.courier.round() + 1 and len(hook.deliveries("delivered")) == 2)
        assert len(slow.received) == webhook_delivery.PER_ENDPOINT
        go_on.set()
        post.courier.settle()


class Stalling:
    """A sender whose messages to some receivers do not arrive before the gate opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.sent: list[str] = []

    def send(self, url: str, *, body: bytes, headers: dict[str, str]) -> Answer:
        if "hanging" in url:
            assert self.gate.wait(120)
        self.sent.append(url)
        return Answer(200)


@ONE_DATABASE
def test_the_hanging_receivers_of_a_tenant_do_not_hold_up_another(
    gateway: TestClient, services: Services, owner: dict[str, str]
) -> None:
    for n in range(MAX_WEBHOOKS):
        register(gateway, owner, f"https://hooks.example.com/hanging/{n}").post("/test")
    other = register(gateway, key_for(services, "another tenant", Scope.ADMIN))
    other.post("/test")
    sender = Stalling()
    courier = webhook_delivery.Courier(services, sender=sender)
    assert courier.round() == webhook_delivery.PER_TENANT + 1
    eventually(lambda: other.deliveries("delivered"))
    other.post("/test")
    eventually(lambda: courier.round() + 1 and len(other.deliveries("delivered")) == 2)
    assert courier.round() == 0, "the senders that are left are not for the first tenant"
    sender.gate.set()
    eventually(lambda: courier.round() + 1 and len(sender.sent) == MAX_WEBHOOKS + 2)
    courier.close()


def test_after_the_last_try_it_is_dead_until_it_is_replayed(hook: Hook, post: Post, there: Receiver) -> None:
    there.status = 500
    for _ in range(2):
        ready(post.services, hook)
    exhaust(post)
    assert len(there.received) == 2 * (len(webhook_delivery.WAITS) + 1)
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
    hook.post(f"/deliveries/{dead[0]['id']}/replay")  # delivered messages can be replayed too
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
    assert shown["attempts"] == len(webhook_delivery.WAITS) + 2


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
    post.sender.meanwhile = lambda: hook.patch(url=there.url + "/new")
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
    """The URL was registered while it was allowed, or its name now resolves to another address."""
    post.sender.intranet = False
    ready(post.services, hook)
    assert post.deliver() == 1
    assert [shown["error"] for shown in hook.deliveries("pending")] == ["target_refused"]
    assert not there.received


@ONE_DATABASE
def test_the_loop_delivers_and_stops(hook: Hook, services: Services, there: Receiver) -> None:
    stop = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(webhook_delivery.run, webhook_delivery.Courier(services), stop, 0.1)
        hook.post("/test")
        eventually(lambda: hook.deliveries("delivered"))
        stop.set()
        running.result(30)
    assert len(there.received) == 1


@pytest.mark.parametrize(("asked", "seconds"), [("90", 90), ("999999999", 3600), ("soon", 5), ("1", 5)])
def test_a_receiver_may_ask_for_a_longer_wait_within_a_limit(
    hook: Hook, post: Post, there: Receiver, asked: str, seconds: int
) -> None:
    there.status, there.retry_after = 429, asked
    ready(post.services, hook)
    assert post.deliver() == 1
    post.clock.passes(seconds=seconds - 2)
    assert post.deliver() == 0
    post.clock.passes(seconds=3)
    assert post.deliver() == 1


def test_cloudevents_are_an_option_of_a_webhook(hook: Hook, post: Post, there: Receiver) -> None:
    assert hook.look()["format"] == "standard"
    assert hook.patch(format="cloudevents")["format"] == "cloudevents"
    ready(post.services, hook)
    assert post.deliver() == 1
    (got,) = there.received
    event = got.verified(hook.secret)
    assert got.headers["content-type"] == "application/cloudevents+json"
    assert event.keys() == {"specversion", "id", "source", "type", "time", "datacontenttype", "data"}
    assert (event["specversion"], event["type"]) == ("1.0", "lethe.model.ready")
    assert event["id"] == got.headers["webhook-id"]
    assert event["data"].keys() == {"model_id", "model"}
    hook.patch(format="standard")
    ready(post.services, hook)
    assert post.deliver() == 1
    assert there.received[1].headers["content-type"] == "application/json"
    assert there.received[1].verified(hook.secret)["type"] == "model.ready"
