"""The receiver that promotes models in MLflow trusts only signed messages. If it fails, Lethe sends again."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from standardwebhooks import Webhook
from starlette.testclient import TestClient

from app.core.webhooks.signature import new_secret
from examples import mlflow_promotion
from examples.mlflow_promotion import Promoter, create_app, is_genuine
from lethe import Lethe

SECRET = new_secret()
BODY = json.dumps({"type": "certificate.published", "data": {"model": "credit"}}).encode()


def signed(body: bytes = BODY, *, secret: str = SECRET, age: timedelta = timedelta()) -> dict[str, str]:
    """Sign a message with an independent implementation."""
    sent_at = datetime.now(UTC) - age
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(sent_at.timestamp())),
        "webhook-signature": Webhook(secret).sign("msg_1", sent_at, body.decode()),
    }


def test_a_signature_is_accepted_also_while_the_secret_is_rotated() -> None:
    headers = signed()
    assert is_genuine(SECRET, headers, BODY)
    two = f"{signed(secret=new_secret())['webhook-signature']} {headers['webhook-signature']}"
    assert is_genuine(SECRET, headers | {"webhook-signature": two}, BODY)


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-id": "msg_2"},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": "1893456000"},
        {"webhook-signature": ""},
        {"webhook-signature": "v1,é"},
        signed(age=timedelta(minutes=6)),
        signed(secret=new_secret()),
        signed(BODY + b" "),
    ],
)
def test_anything_else_is_refused(change: dict[str, str]) -> None:
    assert not is_genuine(SECRET, signed() | change, BODY)
    assert not is_genuine(SECRET, {}, BODY)


def test_only_events_that_matter_start_work_and_a_failure_asks_for_a_repetition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    followed: list[str] = []

    def sync(_: Lethe, model: str, **__: Any) -> None:
        followed.append(model)
        if len(followed) == 1:
            raise RuntimeError("the registry is down")

    monkeypatch.setattr(mlflow_promotion, "sync_registry", sync)
    with Lethe("http://x", "k") as lethe, TestClient(create_app(Promoter(SECRET, lethe))) as receiver:
        assert receiver.post("/hook", content=BODY).status_code == 401
        ping = b'{"type":"webhook.ping","data":{}}'
        assert receiver.post("/hook", content=ping, headers=signed(ping)).status_code == 204
        assert followed == []
        assert receiver.post("/hook", content=BODY, headers=signed()).status_code == 503
        assert receiver.post("/hook", content=BODY, headers=signed()).status_code == 204
        assert followed == ["credit", "credit"]
