"""Sign-in of people through an identity provider: with a real one, and against hostile ones."""

import json
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx
import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from fastapi.testclient import TestClient
from pydantic import SecretStr
from sqlalchemy import select

from app.core.clock import new_id, now
from app.core.settings import Settings, SettingsError
from app.db import audit_log
from app.db.audit_log import Action, AuditEntry
from app.gateway.auth.oidc import IdentityProvider, code_challenge
from app.gateway.auth.scopes import Scope
from app.gateway.main import create_app
from app.services import Services
from tests.identity_provider import run_provider
from tests.integration.harness import key_for

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
ISSUER, PUBLIC = "https://id.example", "https://lethe.example"
GROUPS = {
    "dpo": {"tenant": "acme", "scopes": ["erasures:read"]},
    "ops": {"tenant": "acme", "scopes": ["models:read", "audit:read"]},
    "strangers": {"tenant": "other", "scopes": ["admin"]},
}
HMAC_KEY = "x" * 32


def with_provider(settings: Settings, issuer: str = ISSUER, public: str = PUBLIC, **more: Any) -> Settings:
    return settings.model_copy(
        update={
            "oidc_issuer": issuer,
            "oidc_client_id": "lethe",
            "oidc_groups": json.dumps(GROUPS),
            "oidc_name_claim": "name",
            "public_url": public,
        }
        | more
    )


@dataclass
class HostileProvider:
    """A provider in this process that can be told to answer wrongly."""

    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))
    claims: dict[str, Any] = field(default_factory=dict)
    """Changes to the claims of the ID token. None removes a claim, and a timedelta is relative to now."""
    metadata: dict[str, Any] = field(default_factory=dict)
    userinfo: dict[str, Any] = field(default_factory=dict)
    sign: Callable[[dict[str, Any]], str] | None = None
    key_id: str = "k1"
    now: float = field(default_factory=time.time)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def authorize(self, url: str) -> dict[str, str]:
        """Act as the provider's page: return the query with which the browser comes back."""
        query = dict(parse_qsl(urlsplit(url).query))
        assert query["redirect_uri"] == f"{PUBLIC}/login/callback"
        assert query["code_challenge_method"] == "S256"
        code = secrets.token_hex(8)
        self.codes[code] = query
        return {"code": code, "state": query["state"], "iss": ISSUER}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.requests.append(path)
        if path == "/.well-known/openid-configuration":
            endpoints = {
                name: f"{ISSUER}/{name}"
                for name in ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint")
            }
            return httpx.Response(200, json={"issuer": ISSUER, **endpoints} | self.metadata)
        if path == "/jwks_uri":
            public = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
            return httpx.Response(200, json={"keys": [public | {"kid": self.key_id, "use": "sig"}]})
        if path == "/userinfo_endpoint":
            return httpx.Response(200, json=self.userinfo)
        assert path == "/token_endpoint"
        form = dict(parse_qsl(request.content.decode()))
        query = self.codes.pop(form["code"], None)
        if query is None or query["code_challenge"] != code_challenge(form["code_verifier"]):
            return httpx.Response(400, json={"error": "invalid_grant"})
        return httpx.Response(200, json={"id_token": self._id_token(query["nonce"]), "access_token": "at"})

    def _id_token(self, nonce: str) -> str:
        claims = {
            "iss": ISSUER,
            "aud": "lethe",
            "sub": "person-1",
            "nonce": nonce,
            "iat": int(self.now),
            "exp": int(self.now) + 300,
            "groups": ["dpo"],
            "name": "Ada Lovelace",
        } | self.claims
        claims = {
            name: int(self.now + value.total_seconds()) if isinstance(value, timedelta) else value
            for name, value in claims.items()
            if value is not None
        }
        if self.sign is not None:
            return self.sign(claims)
        return jwt.encode(claims, self.key, algorithm="RS256", headers={"kid": self.key_id})


class Browser:
    """A browser with cookies of its own."""

    def __init__(self, gateway: TestClient) -> None:
        self.client = httpx2.Client(transport=gateway._transport, base_url=PUBLIC, follow_redirects=False)

    def start(self, next_path: str = "/") -> str:
        answer = self.client.get("/login/start", params={"next": next_path})
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"])

    def come_back(self, **query: str) -> httpx2.Response:
        return self.client.get("/login/callback", params=query)

    def sign_in(self, provider: HostileProvider) -> httpx2.Response:
        return self.come_back(**provider.authorize(self.start()))


@pytest.fixture
def provider() -> HostileProvider:
    return HostileProvider()


@contextmanager
def gateway_with(settings: Settings, provider: HostileProvider) -> Iterator[TestClient]:
    configured = with_provider(settings)
    identity = IdentityProvider(
        configured, transport=httpx.MockTransport(provider), clock=lambda: provider.now
    )
    app = create_app(configured, provider=identity)
    with TestClient(app, base_url=PUBLIC, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def gateway(settings: Settings, services: Services, provider: HostileProvider) -> Iterator[TestClient]:
    key_for(services, "acme", Scope.ADMIN)
    with gateway_with(settings, provider) as client:
        yield client


def problem(answer: httpx2.Response) -> str:
    found = re.search(r'role="alert" id="problem">([^<]*)<', answer.text)
    assert found is not None, answer.text
    return found[1].replace("&#39;", "'")


# What works


def test_a_person_signs_in_sees_what_their_groups_allow_and_signs_out(
    gateway: TestClient, services: Services, provider: HostileProvider
) -> None:
    browser = Browser(gateway)
    provider.claims = {"groups": ["dpo", "ops", "unknown"]}
    url = browser.start("/erasures")
    answer = browser.come_back(**provider.authorize(url))
    assert answer.status_code == 200
    assert 'content="0; url=/erasures"' in answer.text
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert browser.client.get("/erasures").status_code == 200
    assert browser.client.get("/models").status_code == 200
    assert browser.client.get("/certificates").status_code == 403
    log = browser.client.get("/audit-log")
    assert "Ada Lovelace" in log.text
    token = re.search(r'name="form_token" value="([0-9a-f]{64})"', log.text)
    assert token is not None
    session = dict(browser.client.cookies)
    assert browser.client.post("/logout", data={"form_token": token[1]}).status_code == 303
    browser.client.cookies.update(session)  # a copy of the cookie is of no use
    assert browser.client.get("/erasures").headers["location"].startswith("/login")
    with services.database.reading() as reading:
        entries = [row.exported for row in reading.scalars(audit_log.entries(_acme(services)))]
    assert [e.action for e in entries][-2:] == [Action.SIGNED_IN, Action.SIGNED_OUT]
    assert entries[-1].actor == entries[-2].actor
    assert entries[-1].actor.kind == "person"
    assert re.fullmatch(r"p-[0-9a-f]{32}", entries[-1].actor.id)
    assert "person-1" not in json.dumps([e.model_dump(mode="json") for e in entries])


def test_what_a_person_does_on_the_dashboard_is_recorded_with_their_name(
    settings: Settings, services: Services, provider: HostileProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person has no API key, which the pages about requests and batches must not need."""
    monkeypatch.setitem(GROUPS, "dpo", {"tenant": "acme", "scopes": ["admin"]})
    key_for(services, "acme", Scope.ADMIN)
    with gateway_with(settings, provider) as gateway:
        browser = Browser(gateway)
        assert browser.sign_in(provider).status_code == 200
        page = browser.client.get("/erasures/new").text
        token = re.search(r'name="form_token" value="([0-9a-f]{64})"', page)
        assert token is not None
        form = {"form_token": token[1], "subjects": "a", "reason": "asked by letter"}
        answer = browser.client.post("/erasures/new", data=form, files={"file": ("", b"")})
        assert answer.status_code == 303, answer.text
        assert browser.client.get(f"/reports/{now():%Y-%m}").status_code == 200
        decided = browser.client.post(
            f"/batches/{new_id()}/approve", data={"form_token": token[1], "reason": "fine"}
        )
        assert decided.status_code == 404, "not refused for lack of a key"
    with services.database.reading() as session:
        entries = [row.exported for row in session.scalars(select(AuditEntry))]
    (entry,) = [entry for entry in entries if entry.action == "erasure.requested"]
    assert (entry.actor.kind, entry.actor.name) == ("person", "Ada Lovelace")
    assert "asked by letter" not in str(entries)


def test_groups_may_come_from_the_userinfo_endpoint(gateway: TestClient, provider: HostileProvider) -> None:
    provider.claims, provider.userinfo = {"groups": None}, {"sub": "person-1", "groups": ["dpo"]}
    assert Browser(gateway).sign_in(provider).status_code == 200
    provider.userinfo = {"sub": "person-2", "groups": ["dpo"]}
    assert Browser(gateway).sign_in(provider).status_code == 403


def test_a_new_key_of_the_provider_is_fetched(gateway: TestClient, provider: HostileProvider) -> None:
    assert Browser(gateway).sign_in(provider).status_code == 200
    provider.key, provider.key_id = rsa.generate_private_key(65537, 2048), "k2"
    assert Browser(gateway).sign_in(provider).status_code == 403, "keys are not fetched again at once"
    provider.now += 61
    assert Browser(gateway).sign_in(provider).status_code == 200


def test_a_session_ends_after_its_lifetime(gateway: TestClient, provider: HostileProvider) -> None:
    answer = Browser(gateway).sign_in(provider)
    ages = [int(age) for age in re.findall(r"Max-Age=(\d+)", answer.headers["set-cookie"])]
    assert 3590 <= max(ages) <= 3600


# Attacks: each is refused with a page, and no session is opened


def _none(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, "", algorithm="none")


def _shared_secret(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, HMAC_KEY, algorithm="HS256", headers={"kid": "k1"})


def _other_key(claims: dict[str, Any]) -> str:
    other = rsa.generate_private_key(65537, 2048)
    return jwt.encode(claims, other, algorithm="RS256", headers={"kid": "k1"})


def _in_words(change: dict[str, Any]) -> str:
    """Name a test case. Names must be the same in every process of the run."""
    return " ".join(f"{name}={getattr(value, '__name__', value)}" for name, value in change.items())


def _no_token(_: dict[str, Any]) -> str:
    return "not.a.token"


@pytest.mark.parametrize(
    "change",
    [
        {"claims": {"nonce": "another"}},
        {"claims": {"nonce": None}},
        {"claims": {"aud": "another-client"}},
        {"claims": {"aud": ["lethe", "another-client"]}},
        {"claims": {"aud": ["lethe", "another-client"], "azp": "another-client"}},
        {"claims": {"iss": "https://other.example"}},
        {"claims": {"exp": 1}},
        {"claims": {"exp": None}},
        {"claims": {"exp": timedelta(seconds=-61)}},
        {"claims": {"iat": timedelta(seconds=61)}},
        {"claims": {"nbf": timedelta(seconds=61)}},
        {"claims": {"sub": None}},
        {"claims": {"groups": []}},
        {"claims": {"groups": ["unknown"]}},
        {"claims": {"groups": {"dpo": True}}},
        {"claims": {"groups": ["strangers"]}},  # its tenant does not exist
        {"sign": _none},
        {"sign": _shared_secret},
        {"sign": _other_key},
        {"sign": _no_token},
        {"key_id": "k9", "sign": _other_key},
    ],
    ids=_in_words,
)
def test_a_wrong_answer_opens_no_session(
    gateway: TestClient, provider: HostileProvider, change: dict[str, Any]
) -> None:
    for name, value in change.items():
        setattr(provider, name, value)
    browser = Browser(gateway)
    answer = browser.sign_in(provider)
    assert answer.status_code == 403
    assert problem(answer)
    assert browser.client.get("/").headers["location"].startswith("/login")


def test_an_expired_token_within_the_clock_skew_is_accepted(
    gateway: TestClient, provider: HostileProvider
) -> None:
    provider.claims = {"exp": int(provider.now) - 30, "iat": int(provider.now) + 30}
    assert Browser(gateway).sign_in(provider).status_code == 200


def test_a_wrong_state_is_refused_before_the_code_is_redeemed(
    gateway: TestClient, provider: HostileProvider
) -> None:
    browser = Browser(gateway)
    answer = provider.authorize(browser.start())
    for wrong in ({"state": "x"}, {"state": ""}, {"iss": "https://other.example"}):
        refused = browser.come_back(**(answer | wrong))
        assert refused.status_code == 403
        answer = provider.authorize(browser.start())
    assert "/token_endpoint" not in provider.requests


def test_an_answer_for_another_browser_is_refused(gateway: TestClient, provider: HostileProvider) -> None:
    """Otherwise someone could sign a victim in to the attacker's account."""
    attacker, victim = Browser(gateway), Browser(gateway)
    answer = provider.authorize(attacker.start())
    assert victim.come_back(**answer).status_code == 403
    victim.start()
    assert victim.come_back(**answer).status_code == 403


def test_a_code_serves_once(gateway: TestClient, provider: HostileProvider) -> None:
    browser = Browser(gateway)
    answer = provider.authorize(browser.start())
    kept = dict(browser.client.cookies)
    assert browser.come_back(**answer).status_code == 200
    assert browser.come_back(**answer).status_code == 403, "the browser has forgotten the sign-in"
    thief = Browser(gateway)
    thief.client.cookies.update(kept)
    assert thief.come_back(**answer).status_code == 403, "the provider has forgotten the code"


def test_a_code_that_was_intercepted_is_useless_without_the_verifier(
    gateway: TestClient, provider: HostileProvider
) -> None:
    intercepted = provider.authorize(Browser(gateway).start())
    attacker = Browser(gateway)
    own = provider.authorize(attacker.start())
    assert attacker.come_back(**(own | {"code": intercepted["code"]})).status_code == 403


def test_a_sign_in_that_took_too_long_is_refused(gateway: TestClient, provider: HostileProvider) -> None:
    browser = Browser(gateway)
    answer = provider.authorize(browser.start())
    provider.now += 601
    assert "expired" in problem(browser.come_back(**answer))


def test_a_forged_cookie_opens_nothing(gateway: TestClient, provider: HostileProvider) -> None:
    browser = Browser(gateway)
    answer = provider.authorize(browser.start())
    for value in ("", "AAAA", "%%%", "A" * 200):
        browser.client.cookies.clear()
        browser.client.cookies.set("__Host-lethe-sign-in", value)
        assert browser.come_back(**answer).status_code == 403
    for session in ("person.9999999999.abc", "person.9999999999.abc." + "0" * 64):
        browser.client.cookies.set("__Host-lethe-session", session)
        assert browser.client.get("/").headers["location"].startswith("/login")


def test_the_person_is_sent_nowhere_else_afterwards(gateway: TestClient, provider: HostileProvider) -> None:
    browser = Browser(gateway)
    for target in ("https://evil.example", "//evil.example", "/\\evil.example"):
        answer = browser.come_back(**provider.authorize(browser.start(target)))
        assert "evil.example" not in answer.text
        assert 'content="0; url=/"' in answer.text


def test_removing_a_group_from_the_settings_ends_its_sessions(
    gateway: TestClient, settings: Settings, provider: HostileProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = Browser(gateway)
    assert browser.sign_in(provider).status_code == 200
    assert browser.client.get("/erasures").status_code == 200
    monkeypatch.delitem(GROUPS, "dpo")
    with gateway_with(settings, provider) as restarted:
        later = Browser(restarted)
        later.client.cookies.update(dict(browser.client.cookies))
        assert later.client.get("/erasures").headers["location"].startswith("/login")
    provider.claims = {"groups": []}  # removed at the provider: refused at the next sign-in
    assert Browser(gateway).sign_in(provider).status_code == 403


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://other.example"},
        {"authorization_endpoint": "http://id.example/authorize"},
        {"authorization_endpoint": None},
    ],
    ids=str,
)
def test_a_provider_with_wrong_metadata_is_not_used(
    gateway: TestClient, provider: HostileProvider, metadata: dict[str, Any]
) -> None:
    provider.metadata = metadata
    answer = Browser(gateway).client.get("/login/start")
    assert (answer.status_code, "cannot be reached" in problem(answer)) == (503, True)


# Throttling


def test_failed_sign_ins_are_throttled(
    gateway: TestClient, provider: HostileProvider, settings: Settings
) -> None:
    browser = Browser(gateway)
    for _ in range(settings.failed_sign_ins_per_minute):
        assert browser.come_back(code="c", state="s").status_code == 403
    for answer in (browser.come_back(code="c", state="s"), browser.client.get("/login/start")):
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 60


# Settings


def test_without_settings_there_is_no_provider(settings: Settings) -> None:
    with TestClient(create_app(settings)) as plain:
        assert plain.get("/login/start").status_code == 404
        assert plain.get("/login/callback").status_code == 404
        assert "organisation" not in plain.get("/login").text


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"oidc_client_id": ""}, "LETHE_OIDC_CLIENT_ID"),
        ({"oidc_groups": ""}, "LETHE_OIDC_GROUPS"),
        ({"oidc_groups": "[1]"}, "LETHE_OIDC_GROUPS"),
        ({"oidc_groups": '{"g": {"tenant": "t", "scopes": ["everything"]}}'}, "LETHE_OIDC_GROUPS"),
        ({"public_url": ""}, "LETHE_PUBLIC_URL"),
        ({"public_url": "http://lethe.example"}, "LETHE_PUBLIC_URL"),
        ({"oidc_issuer": "http://id.example"}, "LETHE_OIDC_ISSUER"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_together_are_named(
    settings: Settings, change: dict[str, str], name: str
) -> None:
    with pytest.raises(SettingsError, match=name):
        create_app(with_provider(settings, **change))


# A real provider, in a process of its own


@pytest.fixture
def real_provider() -> Iterator[str]:
    people = [{"sub": "ada", "groups": ["dpo"], "name": "Ada"}, {"sub": "eve", "groups": ["none"]}]
    with run_provider(people) as issuer:
        yield issuer


def test_people_of_a_real_provider_sign_in(
    settings: Settings, services: Services, real_provider: str
) -> None:
    key_for(services, "acme", Scope.ADMIN)
    secret = SecretStr("client secret")
    configured = with_provider(settings, real_provider, "http://127.0.0.1:9", oidc_client_secret=secret)
    with TestClient(create_app(configured), base_url="http://127.0.0.1:9") as gateway:

        def come_back(person: str) -> tuple[Browser, str]:
            browser = Browser(gateway)
            browser.client.base_url = "http://127.0.0.1:9"
            url = browser.start()
            answer = httpx.post(url, data={"sub": person}, trust_env=False)
            assert answer.status_code == 302, answer.text
            return browser, answer.headers["location"]

        browser, address = come_back("ada")
        kept = dict(browser.client.cookies)
        assert parse_qs(urlsplit(address).query).keys() >= {"code", "state"}
        assert browser.client.get(address).status_code == 200
        assert browser.client.get("/erasures").status_code == 200
        assert "end_session" in browser.client.get("/login").text
        replaying = Browser(gateway)
        replaying.client.cookies.update(kept)
        assert replaying.client.get(address).status_code == 403, "the code was used before"
        eve, address = come_back("eve")
        assert "not in a group" in problem(eve.client.get(address))
        denied = Browser(gateway)
        url = denied.start()
        refusal = httpx.post(url, data={"action": "deny"}, trust_env=False)
        assert denied.client.get(refusal.headers["location"]).status_code == 403


def _acme(services: Services) -> Any:
    from sqlalchemy import select

    from app.db.tables import Tenant

    with services.database.reading() as session:
        return session.scalars(select(Tenant.id).where(Tenant.name == "acme")).one()
