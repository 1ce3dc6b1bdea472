"""What all endpoints share: problem documents, request ids, limits, readiness, metrics."""

import json
import re
import threading
from collections.abc import Iterable
from typing import Any

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from app.core.clock import new_id, now
from app.core.settings import Settings
from app.core.storage import Storage, Stored
from app.db.tables import ApiKey, LogHead, Tenant, WorkerSeen
from app.gateway import json_body
from app.gateway.auth import guard
from app.gateway.auth.caller import LOOK_UP_THREADS
from app.gateway.auth.scopes import Scope
from app.gateway.main import ROUTERS, create_app
from app.gateway.middleware import body_limit
from app.services import Services
from tests.integration.harness import key_for


def test_it_is_ready_only_when_a_worker_was_seen(gateway: TestClient, services: Services) -> None:
    answer = gateway.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["parts"] == {
        "database": "ok",
        "redis": "ok",
        "storage": "ok",
        "worker": "no worker seen lately",
    }
    with services.database.writing() as session:
        session.add(WorkerSeen(name="w", seen_at=now()))
    assert gateway.get("/readyz").status_code == 200


def test_an_unreachable_part_is_named(settings: Settings) -> None:
    broken = settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})
    with TestClient(create_app(broken)) as gateway:
        answer = gateway.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["parts"]["redis"].startswith("unreachable")
        assert gateway.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/nowhere", 404, "not-found"),
        ("PUT", "/v1/erasures", 405, "method-not-allowed"),
        ("GET", "/v1/models", 401, "unauthenticated"),
    ],
)
def test_every_error_is_a_problem_document(
    gateway: TestClient, method: str, path: str, status: int, kind: str
) -> None:
    answer = gateway.request(method, path, headers={"X-Request-ID": "abc-1"})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["type"] == f"urn:lethe:problem:{kind}"
    assert document["status"] == status
    assert document["instance"] == "urn:lethe:request:abc-1"


def test_validation_problems_say_where_and_never_what(gateway: TestClient, admin: dict[str, str]) -> None:
    body = {"subjects": ["canary\u0000person"], "models": ["Not A Name"], "canary@example.com": "canary"}
    answer = gateway.post("/v1/erasures", json=body, headers=admin)
    assert answer.status_code == 422
    assert {error["at"] for error in answer.json()["errors"]} == {
        "body/subjects/0",
        "body/models/0",
        "body",
    }
    assert "body: unknown field" in answer.json()["detail"]
    assert "canary" not in answer.text


def test_a_problem_points_into_what_we_describe(gateway: TestClient, admin: dict[str, str]) -> None:
    manifest = {"family": "canary", "width": "canary", "policy": {"canary": 1, "batch_subjects": -1}}
    answer = gateway.post("/v1/models", json={"name": "m", "manifest": manifest}, headers=admin)
    places = {error["at"] for error in answer.json()["errors"]}
    assert {"body/manifest/width", "body/manifest/policy", "body/manifest/policy/batch_subjects"} <= places
    assert "canary" not in answer.text
    assert gateway.get("/v1/models?limit=x", headers=admin).json()["errors"][0]["at"] == "query/limit"


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        ("/v1/erasures", {}, "body/subjects: is required"),
        ("/v1/erasures", {"subjects": []}, "body/subjects: must have at least 1 item"),
        ("/v1/erasures", {"subjects": ["a" * 257]}, "body/subjects/0: must have at most 256 characters"),
        ("/v1/erasures", {"subjects": "a"}, "body/subjects: must be a list"),
        (
            "/v1/erasures",
            {"subjects": ["a"], "received_at": "2027-01-31T09:00:00"},
            "body/received_at: must include a time zone",
        ),
        ("/v1/erasures", [], "body: must be an object"),
        ("/v1/webhooks", {"url": 1}, "body/url: must be a string"),
        ("/v1/api-keys", {"name": "", "scopes": ["admin"]}, "body/name: must have at least 1 character"),
    ],
)
def test_validation_problems_are_in_plain_english(
    gateway: TestClient, admin: dict[str, str], path: str, body: Any, detail: str
) -> None:
    answer = gateway.post(path, json=body, headers=admin)
    assert (answer.status_code, answer.json()["detail"]) == (422, detail)


def test_malformed_json_is_a_problem(gateway: TestClient, admin: dict[str, str]) -> None:
    answer = gateway.post(
        "/v1/erasures", content=b"{nope", headers=admin | {"Content-Type": "application/json"}
    )
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_past_the_limit_is_refused(settings: Settings, admin: dict[str, str], chunked: bool) -> None:
    small = settings.model_copy(update={"max_body_bytes": 2000, "max_upload_bytes": 3000})
    payload = json.dumps({"subjects": ["a" * 200] * 40}).encode()
    with TestClient(create_app(small)) as gateway:
        content = iter([payload[:1000], payload[1000:]]) if chunked else payload
        headers = admin | {"Content-Type": "application/json"}
        answer = gateway.post("/v1/erasures", content=content, headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (413, "urn:lethe:problem:body-too-large")


def test_request_ids_are_given_and_kept(gateway: TestClient) -> None:
    assert gateway.get("/healthz", headers={"X-Request-ID": "mine"}).headers["X-Request-ID"] == "mine"
    made = gateway.get("/healthz", headers={"X-Request-ID": "bad id\t!"}).headers["X-Request-ID"]
    assert len(made) == 36


def test_metrics_count_routes_not_paths(gateway: TestClient, admin: dict[str, str]) -> None:
    gateway.get("/v1/models/canary-person", headers=admin)
    text = gateway.get("/metrics").text
    assert 'route="/v1/models/{name}"' in text
    assert "canary" not in text


def test_an_unexpected_error_tells_nothing(
    gateway: TestClient, admin: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def burst(*_: object) -> None:
        raise RuntimeError("canary-person")

    monkeypatch.setattr("app.gateway.models.service.describe_models", burst)
    body = {
        "name": "m",
        "manifest": {
            "family": "logistic",
            "width": 2,
            "lambda": 1,
            "origins": {"features": "x", "constants": "y"},
        },
    }
    answer = gateway.post("/v1/models", json=body, headers=admin)
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "canary" not in answer.text


def test_the_description_has_examples(gateway: TestClient) -> None:
    spec = gateway.get("/openapi.json").json()
    for name in ("ErasureRequest", "ModelRequest", "KeyRequest"):
        assert spec["components"]["schemas"][name]["examples"], name


@pytest.mark.parametrize(("method", "path"), [("PATCH", "/v1/models/bulk"), ("POST", "/v1/keys/bulk")])
def test_only_bulk_erasures_may_be_as_long_as_a_file(settings: Settings, method: str, path: str) -> None:
    small = settings.model_copy(update={"max_body_bytes": 2000, "max_upload_bytes": 5000})
    with TestClient(create_app(small)) as gateway:
        json_body = {"Content-Type": "application/json"}
        answer = gateway.request(method, path, content=iter([b"[" * 1500] * 2), headers=json_body)
        assert answer.status_code in (404, 413)
        sent = gateway.post("/v1/erasures/bulk", content=b"a" * 3000)
        assert sent.status_code == 401


def test_the_description_loads_nothing_from_elsewhere(gateway: TestClient) -> None:
    assert [gateway.get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")] == [200, 404, 200]
    page = gateway.get("/docs")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    loaded = re.findall(r'(?:src|href)="(/docs/[^"]+)"', page.text)
    assert len(loaded) == 4
    assert re.findall(r'(?:src|href)="(?!/)', page.text) == [], "no other site is named"
    for path in loaded:
        answer = gateway.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert gateway.get(path.partition("?")[0]).headers["cache-control"] == "no-cache"
    assert gateway.get("/docs/nothing.js").status_code == 404


def test_readiness_does_not_write_each_time(gateway: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[str] = []
    real = Storage.write

    def counted(self: Storage, path: str, chunks: Iterable[bytes]) -> Stored:
        writes.append(path)
        return real(self, path, chunks)

    monkeypatch.setattr(Storage, "write", counted)
    for _ in range(5):
        assert gateway.get("/readyz").json()["parts"]["storage"] == "ok"
    assert len(writes) == 1


def test_whoever_was_slower_gets_a_conflict(
    gateway: TestClient, admin: dict[str, str], services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*_: object) -> None:
        with services.database.writing() as session:
            session.add_all([Tenant(name="twice"), Tenant(name="twice")])

    def broken(*_: object) -> None:
        with services.database.writing() as session:
            session.add(ApiKey(tenant_id=new_id(), name="x", digest=b"x", scopes=[]))

    for failure, status in ((taken, 409), (broken, 500)):
        monkeypatch.setattr("app.gateway.certificates.service.get", failure)
        answer = gateway.get(f"/v1/certificates/{new_id()}", headers=admin)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


def test_the_checkpoint_of_an_empty_log_is_not_found(
    gateway: TestClient, admin: dict[str, str], services: Services
) -> None:
    assert gateway.get("/v1/log/checkpoint", headers=admin).status_code == 404
    with services.database.writing() as session:
        session.add(LogHead(id=1, size=0, tree_head=""))
    assert gateway.get("/v1/log/checkpoint", headers=admin).status_code == 404


def test_unknown_fields_are_refused_without_describing_each(
    gateway: TestClient, admin: dict[str, str]
) -> None:
    """Neither at the top nor inside a manifest does validation see an object with so many fields."""
    many = {f"field{n}": 1 for n in range(2 * json_body.MAX_FIELDS)}
    for path, body in (
        ("/v1/erasures", {"subjects": ["a"], **many}),
        ("/v1/erasures", [many]),
        ("/v1/models", {"name": "m", "manifest": {"policy": many}}),
        ("/v1/api-keys", many),
        ("/v1/webhooks", many),
    ):
        answer = gateway.post(path, json=body, headers=admin)
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:lethe:problem:invalid-request")
        assert "errors" not in answer.json()
        assert "field1" not in answer.text


def test_every_endpoint_with_a_json_body_counts_its_fields() -> None:
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    with_body = [route for route in routes if route.body_field is not None]
    assert len(with_body) > 10
    assert [route.path for route in with_body if not isinstance(route, json_body.JsonRoute)] == []


@pytest.mark.parametrize("chunked", [False, True])
def test_a_long_body_needs_a_key_before_it_is_read(gateway: TestClient, chunked: bool) -> None:
    payload = json.dumps({"subjects": ["a" * 200] * 200}).encode()
    for credentials in ({}, {"Authorization": "Bearer nobody"}):
        content = iter([payload[:20_000], b"not json"]) if chunked else payload
        headers = credentials | {"Content-Type": "application/json"}
        answer = gateway.post("/v1/erasures", content=content, headers=headers)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")


def test_most_endpoints_accept_short_bodies_only(
    settings: Settings, gateway: TestClient, admin: dict[str, str]
) -> None:
    long = {"name": "n" * 70_000, "scopes": ["admin"]}
    assert gateway.post("/v1/api-keys", json=long, headers=admin).status_code == 413
    assert (
        gateway.post("/v1/erasures", json={"subjects": ["a" * 200] * 500}, headers=admin).status_code == 202
    )
    paths = {"/v1/erasures": 4 << 20, "/v1/models": 4 << 20, "/v1/models/m": 4 << 20, "/login": 64 << 10}
    for path, limit in paths.items():
        assert body_limit({"method": "POST", "path": path}, settings) == limit


def test_a_key_that_sends_too_much_is_told_when_to_come_back(
    settings: Settings, services: Services, admin: dict[str, str]
) -> None:
    """The API, the short way of erasure requests and the dashboard count together."""
    other = key_for(services, "another tenant", Scope.ADMIN)
    few = settings.model_copy(update={"requests_per_minute_per_key": 3})
    with TestClient(create_app(few)) as gateway:
        statuses = [gateway.get("/v1/models", headers=admin).status_code]
        for _ in range(3):
            answer = gateway.post("/v1/erasures", json={"subjects": ["a"]}, headers=admin)
            statuses.append(answer.status_code)
        assert statuses == [200, 202, 202, 429]
        assert answer.json()["type"] == "urn:lethe:problem:too-many-requests"
        assert 1 <= int(answer.headers["Retry-After"]) <= 60
        assert answer.headers["RateLimit-Policy"] == '"key";q=3;w=60'
        assert gateway.get("/v1/models", headers=other).status_code == 200
        assert gateway.get("/healthz").status_code == 200


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_database_that_hangs_is_answered_with_503(
    settings: Settings, admin: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API key cannot be checked, and other requests do not wait for the threads that try."""
    resumed = threading.Event()
    look_up = guard._look_up
    monkeypatch.setattr(guard, "_look_up", lambda *parts: resumed.wait(120) and look_up(*parts))
    hasty = settings.model_copy(update={"database_seconds": 0.05})
    with TestClient(create_app(hasty)) as gateway:
        for _ in range(2 * LOOK_UP_THREADS):
            answer = gateway.post("/v1/erasures", json={"subjects": ["a"]}, headers=admin)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert gateway.get("/healthz").status_code == 200
        resumed.set()


@pytest.mark.parametrize("character", ["\u202e", "\u2066", "\u2028", "\x85", "\n"])
def test_free_text_cannot_change_its_direction_or_contain_control_characters(
    gateway: TestClient, admin: dict[str, str], character: str
) -> None:
    text = f"raw{character}pixels"
    origins = {"features": text, "constants": "y"}
    manifest = {"family": "logistic", "width": 2, "lambda": 1, "origins": origins}
    for path, body in (
        ("/v1/models", {"name": "m", "manifest": manifest}),
        ("/v1/erasures", {"subjects": ["a"], "reference": text}),
        ("/v1/erasures", {"subjects": ["a"], "reason": text}),
        ("/v1/api-keys", {"name": text, "scopes": ["admin"]}),
        ("/v1/webhooks", {"url": "https://example.com", "description": text}),
    ):
        answer = gateway.post(path, json=body, headers=admin)
        assert answer.status_code == 422, path
        assert "control characters" in answer.json()["detail"]
        assert character not in answer.text.replace("\\n", "")


def test_text_in_any_script_is_accepted(gateway: TestClient, admin: dict[str, str]) -> None:
    for text in ("Größe in cm", "العمر\u200f", "גיל", "身長", "नाम\u200d"):
        body = {"subjects": ["a"], "reason": text}
        assert gateway.post("/v1/erasures", json=body, headers=admin).status_code == 202
