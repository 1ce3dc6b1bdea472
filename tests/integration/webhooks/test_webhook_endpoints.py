"""Endpoints: secrets, permissions, and what is deleted when."""

from uuid import uuid4

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.core.settings import Settings
from app.db.webhooks import WebhookDelivery, WebhookEndpoint, WebhookEvent, WebhookNotice
from app.gateway.auth.scopes import Scope
from app.services import Services
from tests.integration.harness import key_for
from tests.integration.job_world import World
from tests.integration.webhooks.world import EXAMPLE, Hook, Post, count, ready, register, run_to_claim
from tests.webhook_receiver import Receiver, receiver

# For tests that do not depend on the database.
ONE_DATABASE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


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
    post.another().round()  # the first round of a courier deletes what has expired
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
    """The operator has not allowed private addresses."""

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
