"""An independent implementation accepts our signatures, and retries last about a day."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from app.core.clock import new_id, now
from app.core.webhooks import signature
from app.db.webhooks import EventType
from app.dispatcher import webhook_delivery


@given(st.text())
def test_the_convention_s_own_library_accepts_every_signature(text: str) -> None:
    secrets = [signature.new_secret(), signature.new_secret()]
    body = text.encode("utf-8", "replace")
    headers = signature.signed_headers(secrets, new_id(), body=body, sent_at=now())
    for secret in secrets:
        Webhook(secret).verify(body, headers, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(signature.new_secret()).verify(body, headers, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(secrets[0]).verify(body + b" ", headers, json_parse=False)


def test_both_libraries_sign_alike() -> None:
    secret, event, moment = signature.new_secret(), new_id(), datetime(2030, 1, 1, tzinfo=UTC)
    ours = signature.signed_headers([secret], event, body=b'{"a":1}', sent_at=moment)
    assert ours["webhook-signature"] == Webhook(secret).sign(f"msg_{event.hex}", moment, '{"a":1}')
    assert ours["webhook-timestamp"] == "1893456000"


def test_a_secret_has_the_convention_s_form_and_is_never_the_same() -> None:
    made = {signature.new_secret() for _ in range(100)}
    assert len(made) == 100
    assert all(secret.startswith("whsec_") for secret in made)


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_retries_grow_and_end_after_about_a_day(chance: float) -> None:
    waits = list[timedelta]()
    while (later := webhook_delivery.wait_after(len(waits) + 1, chance)) is not None:
        waits.append(later)
    assert timedelta(hours=18) < sum(waits, timedelta()) < timedelta(hours=30)
    assert waits == sorted(waits)
    assert max(waits) <= webhook_delivery.LONGEST_WAIT


def test_chance_spreads_the_waits() -> None:
    found = {webhook_delivery.wait_after(4, webhook_delivery.random_chance()) for _ in range(50)}
    assert len(found) > 40
    assert all(wait is not None and timedelta(minutes=8) <= wait <= timedelta(minutes=12) for wait in found)


def test_the_guide_s_receiver_knows_a_genuine_message() -> None:
    page = (Path(__file__).parents[3] / "docs" / "webhooks.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    guide: dict[str, Any] = {}
    exec(code, guide)
    secret, body = signature.new_secret(), b'{"a":1}'
    other = signature.new_secret()
    headers = signature.signed_headers([other, secret], new_id(), body=body, sent_at=now())
    late = signature.signed_headers([secret], new_id(), body=body, sent_at=now() - timedelta(hours=1))
    assert guide["is_genuine"](secret, headers, body)
    assert not guide["is_genuine"](secret, headers, body + b" ")
    assert not guide["is_genuine"](signature.new_secret(), headers, body)
    assert not guide["is_genuine"](secret, late, body)


def test_the_guide_names_every_event_and_wait() -> None:
    page = (Path(__file__).parents[3] / "docs" / "webhooks.md").read_text()
    assert [kind for kind in EventType if f"`{kind}`" not in page] == []
    assert len(webhook_delivery.WAITS) == 10
