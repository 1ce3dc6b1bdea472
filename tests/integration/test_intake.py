"""The short way of erasure requests gives the same answers as the endpoint behind it."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.core.settings import Settings
from app.gateway.auth.scopes import Scope
from app.gateway.erasures import intake
from app.gateway.main import create_app
from app.services import Services
from tests.integration.harness import key_for

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
OWN = ("id", "completed_at", "received_at", "due_at", "instance")  # differ from one request to the next
GOOD = b'{"subjects": ["a"], "reference": "case-1"}'


@pytest.fixture
def gateways(settings: Settings, services: Services) -> Iterator[tuple[TestClient, TestClient]]:
    """One gateway with the short way, and one without."""
    short, long = create_app(settings), create_app(settings)
    intake.remove(long)
    with TestClient(short) as with_it, TestClient(long) as without:
        yield with_it, without


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (GOOD, {}),
        (GOOD, {"Idempotency-Key": "k"}),
        (GOOD, {"Idempotency-Key": "a\x7fb"}),
        (GOOD, {"Idempotency-Key": "x" * 256}),
        (GOOD, {"Content-Type": "text/plain"}),
        (GOOD, {"Content-Type": "application/json; charset=utf-8"}),
        (GOOD, {"Authorization": "Bearer nobody"}),
        (GOOD, {"Authorization": ""}),
        (b"", {}),
        (b"{", {}),
        (b'{"subjects": []}', {}),
        (b'{"subjects": ["a"], "more": 1}', {}),
        (b'{"subjects": ["\\ud800"]}', {}),
        (b'{"subjects": ["a", "a", "b "]}', {}),
        (b'{"subjects": ["a"], "models": ["nowhere"]}', {}),
        (b'{"subjects": ["a"], "received_at": "2001-01-01T00:00:00Z"}', {}),
        (b'{"subjects": ["a"], "received_at": "2001-01-01"}', {}),
        (('{"subjects": [' + ",".join(f'"{n}"' for n in range(51)) + "]}").encode(), {}),
    ],
)
def test_both_ways_answer_alike(
    gateways: tuple[TestClient, TestClient], services: Services, content: bytes, headers: dict[str, str]
) -> None:
    usual = key_for(services, "tenant", Scope.ERASURES_WRITE) | {"Content-Type": "application/json"}
    answers = []
    for number, gateway in enumerate(gateways):
        gateway.post("/v1/erasures", content=GOOD, headers=usual)  # the key is known from now on
        own_key = {"Idempotency-Key": f"{number}"} if headers.get("Idempotency-Key") == "k" else {}
        answer = gateway.post("/v1/erasures", content=content, headers=usual | headers | own_key)
        answers.append((answer.status_code, answer.headers["content-type"], _without_own(answer.json())))
    assert answers[0] == answers[1]


def test_a_key_without_the_scope_is_refused_on_both_ways(
    gateways: tuple[TestClient, TestClient], services: Services
) -> None:
    reader = key_for(services, "tenant", Scope.ERASURES_READ)
    for gateway in gateways:
        gateway.get("/v1/erasures", headers=reader)  # the key is known from now on
        assert gateway.post("/v1/erasures", json={"subjects": ["a"]}, headers=reader).status_code == 403


def test_a_replay_and_the_metrics_name_the_endpoint(
    gateways: tuple[TestClient, TestClient], services: Services
) -> None:
    short, _ = gateways
    headers = key_for(services, "tenant", Scope.ADMIN) | {"Idempotency-Key": "k"}
    first, again = (short.post("/v1/erasures", json={"subjects": ["a"]}, headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code, first.text) == (202, 202, again.text)
    assert (first.headers.get("Idempotent-Replayed"), again.headers["Idempotent-Replayed"]) == (None, "true")
    assert first.headers["Location"] == f"/v1/erasures/{first.json()['id']}"
    counted = 'lethe_http_requests_total{method="POST",route="/v1/erasures",status="202"} 2.0'
    assert counted in short.get("/metrics").text


def _without_own(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in OWN}
