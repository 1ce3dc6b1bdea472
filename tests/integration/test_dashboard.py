"""Access to the dashboard: sessions, forms, scopes, headers."""

import re
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from app.core.clock import new_id, now
from app.core.settings import Settings
from app.core.vault import Vault
from app.db.states import BatchState
from app.db.tables import Batch, Job
from app.gateway.auth import service as access
from app.gateway.auth.scopes import Scope
from app.gateway.dashboard import sessions
from app.gateway.dashboard.endpoints import PAGE_MODULES
from app.gateway.main import create_app
from app.services import Services
from tests.integration.dashboard import Visitor
from tests.integration.job_world import World

# These tests need little SQL. test_dashboard_pages.py runs the pages' queries on both databases.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
PAGES = {
    "/erasures": Scope.ERASURES_READ,
    f"/erasures/{new_id()}": Scope.ERASURES_READ,
    "/batches": Scope.MODELS_READ,
    f"/batches/{new_id()}": Scope.MODELS_READ,
    f"/batches/{new_id()}/events": Scope.MODELS_READ,
    f"/batches/{new_id()}/retry": Scope.MODELS_ADMIN,
    "/models": Scope.MODELS_READ,
    "/models/toy": Scope.MODELS_READ,
    "/models/toy/versions/1/checkpoint": Scope.CHECKPOINTS_READ,
    "/certificates": Scope.CERTIFICATES_READ,
    f"/certificates/{new_id()}": Scope.CERTIFICATES_READ,
    f"/certificates/{new_id()}/pack.json": Scope.CERTIFICATES_READ,
}


@pytest.fixture
def visitor(gateway: TestClient, services: Services) -> Visitor:
    return Visitor(gateway, services, "tenant")


def test_a_session_is_a_strict_cookie_without_the_key(visitor: Visitor) -> None:
    answer = visitor.sign_in(next="/erasures?state=failed")
    assert (answer.status_code, answer.headers["location"]) == (303, "/erasures?state=failed")
    cookie = answer.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=28800"))
    assert "Secure" not in cookie
    assert visitor.key.rpartition("_")[2] not in cookie
    assert visitor.get("/").status_code == 200


@pytest.mark.parametrize("by", ["scheme", "setting"])
def test_over_https_the_cookie_is_secure_and_bound_to_this_host(
    settings: Settings, services: Services, by: str
) -> None:
    forced = settings.model_copy(update={"secure_cookies": True if by == "setting" else None})
    base = "https://lethe.example" if by == "scheme" else "http://lethe.example"
    with TestClient(create_app(forced), base_url=base) as gateway:
        visitor = Visitor(gateway, services, "tenant")
        page = visitor.get("/login")
        assert page.headers["set-cookie"].startswith("__Host-lethe-visit=")
        visit = page.cookies.get("__Host-lethe-visit") or ""
        token = re.search(r'form_token" value="(\w+)', page.text)
        assert token is not None
        answer = visitor.client.post(
            "/login",
            data={"key": visitor.key, "form_token": token.group(1)},
            headers={"Cookie": f"__Host-lethe-visit={visit}"},
        )
        assert answer.headers["set-cookie"].startswith("__Host-lethe-session=")
        assert "Secure" in answer.headers["set-cookie"]


@pytest.mark.parametrize("after", ["//evil.example", "https://evil.example", "/\\evil.example", "evil"])
def test_signing_in_never_redirects_to_another_site(visitor: Visitor, after: str) -> None:
    assert visitor.sign_in(next=after).headers["location"] == "/"


def test_a_wrong_key_is_refused_with_a_message(visitor: Visitor) -> None:
    for wrong in (visitor.key[:-1], visitor.key + "x", "lethe_x_y", "ключ", " "):
        answer = visitor.sign_in(wrong)
        assert answer.status_code == 401
        assert "unknown or was revoked" in answer.text
        assert "-session" not in answer.headers["set-cookie"]
        assert wrong.strip() == "" or wrong not in answer.text
    assert visitor.get("/").headers["location"] == "/login"


def test_a_revoked_key_ends_its_sessions_at_once(visitor: Visitor, services: Services) -> None:
    visitor.signed_in()
    with services.database.writing() as session:
        access.revoke_key(session, visitor.key_id)
    assert visitor.get("/").headers["location"] == "/login"
    assert visitor.get("/erasures").headers["location"] == "/login?next=/erasures"


def test_a_session_expires(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    visitor.signed_in()
    monkeypatch.setattr(sessions, "now", lambda: now() + timedelta(hours=7.9))
    assert visitor.get("/").status_code == 200
    monkeypatch.setattr(sessions, "now", lambda: now() + timedelta(hours=8.1))
    assert visitor.get("/").status_code == 303


def test_a_forged_session_is_refused(visitor: Visitor, services: Services) -> None:
    visitor.signed_in()
    genuine = visitor.client.cookies["lethe-session"]
    key_id, ends_at, nonce, mac = genuine.split(".")
    other_vault: Any = SimpleNamespace(vault=Vault(b"x" * 32), settings=services.settings)
    elsewhere = sessions.Sessions(other_vault).mac_of(f"{key_id}.{ends_at}.{nonce}")
    forged = [
        f"{new_id().hex}.{ends_at}.{nonce}.{mac}",
        f"{key_id}.{int(ends_at) + 1}.{nonce}.{mac}",
        f"{key_id}.{ends_at}.{nonce}x.{mac}",
        f"{key_id}.{ends_at}.{nonce}.{elsewhere}",
        f"{key_id}.{ends_at}.{nonce}.",
        f"{key_id}.{ends_at}.{nonce}",
        ".",
        "",
    ]
    for cookie in forged:
        answer = visitor.client.get("/", headers={"Cookie": f"lethe-session={cookie}"})
        assert answer.status_code == 303, cookie
    assert visitor.get("/").status_code == 200


def test_signing_out_ends_the_session_even_if_the_cookie_was_copied(visitor: Visitor) -> None:
    visitor.signed_in()
    kept = visitor.client.cookies["lethe-session"]
    assert visitor.send("/logout", {"form_token": "0" * 64}).status_code == 403
    assert visitor.get("/").status_code == 200
    answer = visitor.send("/logout", {"form_token": visitor.token("/")})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert visitor.get("/", headers={"Cookie": f"lethe-session={kept}"}).status_code == 303


def test_signing_out_takes_effect_on_every_gateway(visitor: Visitor, settings: Settings) -> None:
    visitor.signed_in()
    cookie = {"Cookie": f"lethe-session={visitor.client.cookies['lethe-session']}"}
    with TestClient(create_app(settings), follow_redirects=False) as other:
        assert other.get("/", headers=cookie).status_code == 200
        visitor.send("/logout", {"form_token": visitor.token("/")})
        assert other.get("/", headers=cookie).status_code == 303


def test_a_search_for_control_characters_is_refused(visitor: Visitor) -> None:
    visitor.signed_in()
    assert visitor.get("/erasures?q=%00").status_code == 404


def test_a_form_from_another_site_is_refused(
    visitor: Visitor, gateway: TestClient, services: Services
) -> None:
    stranger = Visitor(gateway, services, "tenant").signed_in()
    visitor.signed_in()
    for token in ("", "0" * 64, stranger.token("/"), visitor.token("/login")):
        answer = visitor.send(f"/batches/{new_id()}/retry", {"form_token": token})
        assert answer.status_code == 403
        assert "earlier session" in answer.text
    assert visitor.send("/login", {"key": visitor.key}).status_code == 403
    unsent = visitor.client.post("/logout", json={"form_token": visitor.token("/")})
    assert unsent.status_code == 415
    assert visitor.send("/login", {"key": "x" * 20_000}).status_code == 413


def test_every_page_requires_signing_in(visitor: Visitor) -> None:
    for path in PAGES:
        answer = visitor.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/login?next={path}")
    assert visitor.send(f"/batches/{new_id()}/retry", {}).headers["location"] == "/login"


def test_a_key_without_the_scope_sees_which_scope_it_lacks(gateway: TestClient, services: Services) -> None:
    allowed = {scope: set(Scope) - {scope, Scope.ADMIN} for scope in set(PAGES.values())}
    for lacking, scopes in allowed.items():
        visitor = Visitor(gateway, services, "tenant", *scopes).signed_in()
        for path, needed in PAGES.items():
            answer = visitor.get(path)
            if needed == lacking:
                assert answer.status_code == 403, path
                assert "Not allowed" in answer.text
                assert f"<code>{lacking}</code>" in answer.text
            else:
                assert answer.status_code in (200, 404), path
    nothing = Visitor(gateway, services, "tenant", Scope.ERASURES_WRITE).signed_in().get("/")
    assert nothing.status_code == 200
    assert nothing.text.count("It needs the scope") == 3
    assert 'href="/models"' not in nothing.text


def test_every_response_forbids_foreign_content(visitor: Visitor) -> None:
    visitor.signed_in()
    for path in ("/", "/login", *PAGES):
        answer = visitor.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "data:" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store", path
        if answer.headers["content-type"].startswith("text/html"):
            assert re.search(r"<script(?! src=)|<style|\sstyle=|\son\w+=|javascript:", answer.text) is None
            assert re.search(r'(?:src|href|action)="(?!/|#|\?)', answer.text) is None, path


def test_user_input_is_escaped(visitor: Visitor) -> None:
    wrote = "<script>alert(1)</script>\"'"
    body = {"subjects": ["a"], "reference": wrote, "reason": wrote}
    made = visitor.client.post("/v1/erasures", json=body, headers=visitor.headers).json()
    visitor.signed_in()
    for path in ("/", "/erasures", f"/erasures/{made['id']}", "/erasures?q=%3Cscript%3E"):
        text = visitor.get(path).text
        assert "<script>" not in text
    assert "&lt;script&gt;alert(1)" in visitor.get("/erasures").text


def test_the_dashboard_is_not_part_of_the_api(visitor: Visitor, settings: Settings) -> None:
    spec = visitor.get("/openapi.json").json()
    assert all(
        path.startswith(("/v1/", "/opendsr/", "/healthz", "/readyz", "/metrics")) for path in spec["paths"]
    )
    visitor.signed_in()
    assert visitor.get("/v1/models").status_code == 401, "the API must not accept the cookie"
    assert visitor.get("/nowhere").headers["content-type"] == "application/problem+json"
    with TestClient(create_app(settings.model_copy(update={"dashboard": False}))) as without:
        assert without.get("/").status_code == 404
        assert without.get("/healthz").status_code == 200


def test_static_files_are_cached_by_their_content(visitor: Visitor) -> None:
    page = visitor.get("/login").text
    (style,) = re.findall(r'href="(/static/style\.css\?v=\w+)"', page)
    answer = visitor.get(style)
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-type"] == "text/css; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    again = visitor.get(style, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert visitor.get("/static/style.css?v=old").headers["cache-control"] == "no-cache"
    assert visitor.get("/static/nothing.css").status_code == 404
    assert visitor.get("/static/%2e%2e%2fpages.py").status_code == 404


@pytest.fixture
def world(services: Services) -> World:
    return World(services)


def _failed_batch(world: World) -> Batch:
    world.ask(0, subjects=3)
    world.dispatchers[0].seal_due()
    with world.services.database.writing() as session:
        batch = session.query(Batch).one()
        session.execute(update(Batch).values(state=BatchState.FAILED, error="the disk is full"))
        session.execute(update(Job).values(state="failed"))
    return batch


def test_a_decision_is_confirmed_first_and_made_once(
    gateway: TestClient, services: Services, world: World
) -> None:
    batch = _failed_batch(world)
    visitor = Visitor(gateway, services, "tenant").signed_in()
    shown = visitor.get(f"/batches/{batch.id}").text
    assert "the disk is full" in shown
    assert f"/batches/{batch.id}/retry" in shown
    assert "/approve" not in shown
    asked = visitor.get(f"/batches/{batch.id}/retry")
    assert "Try again?" in asked.text
    assert "Failed" in visitor.get(f"/batches/{batch.id}").text, (
        "the confirmation page must not change anything"
    )
    token = visitor.token(f"/batches/{batch.id}/retry")
    made = visitor.send(f"/batches/{batch.id}/retry", {"form_token": token})
    assert (made.status_code, made.headers["location"]) == (303, f"/batches/{batch.id}")
    assert "Sealed" in visitor.get(f"/batches/{batch.id}").text
    again = visitor.send(f"/batches/{batch.id}/retry", {"form_token": token})
    assert again.status_code == 409
    assert "Only a batch that is on hold or failed can be retried" in again.text
    stopped = visitor.send(f"/batches/{batch.id}/cancel", {"form_token": token})
    assert stopped.status_code == 303
    assert "Someone cancelled this batch" in visitor.get(f"/batches/{batch.id}").text
    assert visitor.send(f"/batches/{batch.id}/explode", {"form_token": token}).status_code == 404


def test_a_reader_is_offered_no_decision(gateway: TestClient, services: Services, world: World) -> None:
    batch = _failed_batch(world)
    visitor = Visitor(gateway, services, "tenant", Scope.MODELS_READ).signed_in()
    assert f"/batches/{batch.id}/retry" not in visitor.get(f"/batches/{batch.id}").text
    token = visitor.token("/")
    assert visitor.send(f"/batches/{batch.id}/retry", {"form_token": token}).status_code == 403
    events = visitor.get(f"/batches/{batch.id}/events")
    assert "event: sealed" in events.text
    seen = visitor.get(f"/batches/{batch.id}/events?after=999999")
    assert seen.text == ""


def test_every_route_of_the_dashboard_is_guarded(visitor: Visitor) -> None:
    """A new page without a guard fails here."""
    ids = {"name": "toy", "number": "1", "ordinal": "0", "action": "retry"}
    checked = 0
    for route in [route for module in PAGE_MODULES for route in module.router.routes]:
        if route.path in ("/login", "/login/start", "/login/callback"):  # open to everyone
            continue
        path = re.sub(r"\{(\w+)\}", lambda found: ids.get(found.group(1), str(new_id())), route.path)
        for method in route.methods:
            answer = visitor.client.request(method, path)
            assert answer.status_code == 303, (method, path)
            assert answer.headers["location"].startswith("/login")
            checked += 1
    assert checked > 15
