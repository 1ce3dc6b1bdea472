"""Keep an MLflow registry in step with Lethe: promote every newly certified version, archive the one before.

This is a receiver of webhooks. It checks the signature of each message, and then makes the registered model
follow the model in Lethe: the alias `certified` points at the current release, and the model file of every
earlier release is deleted. Run it with

    LETHE_WEBHOOK_SECRET=whsec_… uvicorn --factory examples.mlflow_promotion:create_app

It also reads LETHE_URL, LETHE_API_KEY (with the scopes `models:read`, `checkpoints:read` and
`certificates:read`) and MLFLOW_TRACKING_URI.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lethe import Lethe
from lethe.integrations.mlflow import sync_registry

if TYPE_CHECKING:
    from mlflow import MlflowClient

EVENTS = {"certificate.published", "version.superseded", "model.retired"}
FRESH_SECONDS = 300
ANSWER_SECONDS = 10  # Lethe waits 15 seconds for an answer
log = logging.getLogger(__name__)


def is_genuine(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether Lethe signed exactly these bytes, less than five minutes ago."""
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        sent_at = int(headers["webhook-timestamp"])
        signed = f"{headers['webhook-id']}.{sent_at}.".encode() + body
        signatures = headers["webhook-signature"].split()
    except (KeyError, ValueError, binascii.Error):
        return False
    expected = b"v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256))
    is_fresh = abs(time.time() - sent_at) < FRESH_SECONDS
    return is_fresh and any(hmac.compare_digest(expected, sent.encode()) for sent in signatures)


class Promoter:
    """Receives messages and runs `sync_registry` for the model that a message names."""

    def __init__(self, secret: str, lethe: Lethe, registry: "MlflowClient | None" = None) -> None:
        self.secret, self.lethe, self.registry = secret, lethe, registry
        self.tasks = set[asyncio.Task[None]]()
        self._one_at_a_time = threading.Lock()

    async def receive(self, request: Request) -> Response:
        """Handle one message. The order of messages does not matter, and neither do repetitions."""
        body = await request.body()
        if not is_genuine(self.secret, request.headers, body):
            return Response(status_code=401)
        message = json.loads(body)
        if message["type"] not in EVENTS:
            return Response(status_code=204)
        task = asyncio.create_task(run_in_threadpool(self.follow, message["data"]["model"]))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        done, _ = await asyncio.wait({task}, timeout=ANSWER_SECONDS)
        if not done:
            return Response(status_code=202)  # a large model takes longer: the work goes on
        if task.exception() is not None:
            return Response(status_code=503)  # Lethe sends the message again later
        return Response(status_code=204)

    def follow(self, model: str) -> None:
        """Make the registered model follow its model in Lethe."""
        with self._one_at_a_time:
            try:
                release = sync_registry(self.lethe, model, registry=self.registry)
            except Exception:
                log.exception("%s could not be promoted", model)
                raise
        log.info("%s: %s", model, "nothing is certified" if release is None else f"version {release.version}")


def create_app(promoter: Promoter | None = None) -> Starlette:
    """Build the application. Without a promoter, everything is read from the environment."""
    promoter = promoter or Promoter(os.environ["LETHE_WEBHOOK_SECRET"], Lethe())
    return Starlette(routes=[Route("/hook", promoter.receive, methods=["POST"])])
