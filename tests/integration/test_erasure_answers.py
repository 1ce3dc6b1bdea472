"""What `POST /v1/erasures` accepts and refuses: bodies, content types, idempotency keys, scopes."""

import pytest
from fastapi.testclient import TestClient

from app.gateway.auth.scopes import Scope
from app.services import Services
from tests.integration.harness import key_for

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
GOOD = b'{"subjects": ["a"], "reference": "case-1"}'
FIFTY_ONE = ('{"subjects": [' + ",".join(f'"{n}"' for n in range(51)) + "]}").encode()


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (GOOD, {}, 202),
        (GOOD, {"Idempotency-Key": "k"}, 202),
        (GOOD, {"Idempotency-Key": "x" * 255}, 202),
        (GOOD, {"Idempotency-Key": ""}, 422),
        (GOOD, {"Idempotency-Key": "a\x7fb"}, 422),
        (GOOD, {"Idempotency-Key": "a\tb"}, 422),
        (GOOD, {"Idempotency-Key": "x" * 256}, 422),
        (GOOD, {"Content-Type": "text/plain"}, 422),
        (GOOD, {"Content-Type": "application/x-www-form-urlencoded"}, 422),
        (GOOD, {"Content-Type": "application/json; charset=utf-8"}, 202),
        (GOOD, {"Authorization": "Bearer nobody"}, 401),
        (GOOD, {"Authorization": ""}, 401),
        (b"", {}, 422),
        (b"{", {}, 422),
        (GOOD + b" more", {}, 422),
        (b'{"subjects": []}', {}, 422),
        (b'{"subjects": [1]}', {}, 422),
        (b'{"subjects": ["a"], "more": 1}', {}, 422),
        (b'{"subjects": ["a\\n"]}', {}, 422),
        (b'{"subjects": ["\\ud800"]}', {}, 422),
        (b'{"subjects": ["\xff"]}', {}, 422),
        (b'{"subjects": ["a", "a", "b "]}', {}, 202),
        (b'{"subjects": ["a"], "models": ["nowhere"]}', {}, 422),
        (b'{"subjects": ["a"], "received_at": "2001-01-01T00:00:00Z"}', {}, 422),
        (b'{"subjects": ["a"], "received_at": "2001-01-01"}', {}, 422),
        (FIFTY_ONE, {}, 202),
    ],
)
def test_a_request_is_accepted_or_refused_with_a_problem(
    gateway: TestClient, services: Services, content: bytes, headers: dict[str, str], status: int
) -> None:
    usual = key_for(services, "tenant", Scope.ERASURES_WRITE) | {"Content-Type": "application/json"}
    answer = gateway.post("/v1/erasures", content=content, headers=usual | headers)
    kind = "application/json" if status == 202 else "application/problem+json"
    assert (answer.status_code, answer.headers["content-type"]) == (status, kind)


def test_a_key_without_the_scope_is_refused(gateway: TestClient, services: Services) -> None:
    reader = key_for(services, "tenant", Scope.ERASURES_READ)
    gateway.get("/v1/erasures", headers=reader)  # the key is known from now on
    assert gateway.post("/v1/erasures", json={"subjects": ["a"]}, headers=reader).status_code == 403


def test_a_replay_and_the_metrics_name_the_endpoint(gateway: TestClient, services: Services) -> None:
    headers = key_for(services, "tenant", Scope.ADMIN) | {"Idempotency-Key": "k"}
    first, again = (gateway.post("/v1/erasures", json={"subjects": ["a"]}, headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code, first.text) == (202, 202, again.text)
    assert (first.headers.get("Idempotent-Replayed"), again.headers["Idempotent-Replayed"]) == (None, "true")
    assert first.headers["Location"] == f"/v1/erasures/{first.json()['id']}"
    counted = 'lethe_http_requests_total{method="POST",route="/v1/erasures",status="202"} 2.0'
    assert counted in gateway.get("/metrics").text
