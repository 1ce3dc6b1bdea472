"""Secrets and signatures of Standard Webhooks, version v1: HMAC-SHA256 over `id.timestamp.body`."""

import base64
import hashlib
import hmac
import os
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

PREFIX = "whsec_"


def new_secret() -> str:
    """Return a new secret of 256 random bits. The specification asks for 192 to 512."""
    return PREFIX + base64.b64encode(os.urandom(32)).decode()


def message_id(event_id: UUID) -> str:
    """Return the message id of an event. It never changes, so receivers can recognise duplicates."""
    return f"msg_{event_id.hex}"


def signed_headers(
    secrets: Sequence[str], event_id: UUID, *, body: bytes, sent_at: datetime
) -> dict[str, str]:
    """Return the headers of a message, with one signature per secret.

    While a secret is being replaced, a receiver may know the old one or the new one.
    """
    identifier, timestamp = message_id(event_id), str(int(sent_at.timestamp()))
    signed = f"{identifier}.{timestamp}.".encode() + body
    return {
        "webhook-id": identifier,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(_signature(secret, signed) for secret in secrets),
    }


def _signature(secret: str, signed: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(PREFIX))
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
