"""Helpers of the webhook tests: an endpoint, and a courier whose clock can be moved."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from fastapi.testclient import TestClient
from sqlalchemy import func, select

from app.core.clock import now
from app.core.webhooks import targets
from app.core.webhooks.sender import Answer, Sender
from app.db import transitions
from app.db.tables import Model, Task
from app.db.webhooks import WebhookEndpoint
from app.dispatcher.webhook_delivery import Courier
from app.services import Services
from tests.integration.job_world import Attempt, World

EXAMPLE = "https://hooks.example.com/lethe"


class Killed(BaseException):
    """Raised where the courier's process is killed."""


@dataclass
class Hook:
    """A registered endpoint, as its tenant sees it."""

    gateway: TestClient
    headers: dict[str, str]
    shown: dict[str, Any]

    @property
    def secret(self) -> str:
        return str(self.shown["secret"])

    @property
    def path(self) -> str:
        return f"/v1/webhooks/{self.shown['id']}"

    def post(self, end: str, body: object = None, expect: int = 202) -> dict[str, Any]:
        answer = self.gateway.post(self.path + end, json=body, headers=self.headers)
        assert answer.status_code == expect, answer.text
        said: dict[str, Any] = answer.json()
        return said

    def patch(self, **change: object) -> dict[str, Any]:
        answer = self.gateway.patch(self.path, json=change, headers=self.headers)
        assert answer.status_code == 200, answer.text
        said: dict[str, Any] = answer.json()
        return said

    def look(self) -> dict[str, Any]:
        said: dict[str, Any] = self.gateway.get(self.path, headers=self.headers).json()
        return said

    def deliveries(self, state: str | None = None) -> list[dict[str, Any]]:
        query = {"state": state} if state else {}
        answer = self.gateway.get(f"{self.path}/deliveries", params=query, headers=self.headers)
        assert answer.status_code == 200, answer.text
        items: list[dict[str, Any]] = answer.json()["items"]
        return items


def register(
    gateway: TestClient, headers: dict[str, str], url: str = EXAMPLE, *event_types: str, **more: object
) -> Hook:
    body = {"url": url, "event_types": list(event_types)} | more
    answer = gateway.post("/v1/webhooks", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return Hook(gateway, headers, answer.json())


@dataclass
class Clock:
    moved: timedelta = field(default_factory=timedelta)

    def __call__(self) -> datetime:
        return now() + self.moved

    def passes(self, **time: float) -> None:
        self.moved += timedelta(**time)


@functools.cache
def _real(intranet: bool) -> Sender:
    return Sender(intranet=intranet, resolve=targets.system_resolver)


@dataclass
class KillableSender:
    """Sends for real. Afterwards the process may be killed before anything is recorded."""

    intranet: bool = True
    kills_after_sending: bool = False
    meanwhile: Callable[[], object] = lambda: None

    def send(self, url: str, *, body: bytes, headers: dict[str, str]) -> Answer:
        answer = _real(self.intranet).send(url, body=body, headers=headers)
        self.meanwhile()
        if self.kills_after_sending:
            raise Killed
        return answer


class Post:
    """A courier with its clock and sender. Its waits are exactly those of the schedule."""

    def __init__(self, services: Services) -> None:
        self.services, self.clock, self.sender = services, Clock(), KillableSender()
        self.courier = self.another()

    def another(self) -> Courier:
        return Courier(self.services, sender=self.sender, clock=self.clock, chance=lambda: 0.5)

    def deliver(self) -> int:
        """Deliver everything that is due now, and return the number of attempts."""
        began = 0
        while more := self.courier.round():
            began += more
            self.courier.settle()
        return began


def run_to_claim(world: World, model: int = 0) -> Attempt:
    """Seal the waiting requests of a model and claim the job."""
    world.flush(model)
    world.dispatchers[0].seal_due()
    world.dispatchers[0].queue_waiting_jobs()
    world.dispatchers[0].send_outbox()
    attempt = world.claim(world.queue.messages.pop())
    assert attempt is not None
    return attempt


def ask_both(world: World) -> UUID:
    """Request one erasure on both models."""
    task_id, moment = world.ask(0, subjects=1), world.clock.wall
    with world.services.database.writing() as session:
        erasure_id = session.get_one(Task, task_id).erasure_id
        other = {"model_id": world.models[1], "subjects": 1, "due_at": moment + timedelta(days=31)}
        session.add(Task(erasure_id=erasure_id, created_at=moment, **other))
    return erasure_id


def count(services: Services, table: type) -> int:
    with services.database.reading() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def exhaust(post: Post) -> None:
    """Let time pass until no delivery is retried any more."""
    while post.deliver():
        post.clock.passes(hours=11)


def ready(services: Services, hook: Hook) -> None:
    """Add a notice for the tenant of this endpoint."""
    with services.database.writing() as session:
        tenant_id = session.get_one(WebhookEndpoint, UUID(hook.shown["id"])).tenant_id
        model = session.scalars(select(Model).where(Model.tenant_id == tenant_id).limit(1)).one()
        transitions.accept_model(session, model, {})
