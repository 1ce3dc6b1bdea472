"""A service whose requests, batches and models are in every state that people can see. No worker runs."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import structlog
from fastapi.testclient import TestClient
from sqlalchemy import select, update
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from app.core.clock import new_id, now
from app.core.settings import Settings
from app.db import transitions
from app.db.manifest import Manifest
from app.db.states import (
    BatchStep,
    Decision,
    FailureCause,
    HeldReason,
    ModelState,
    SealReason,
    SubjectOutcome,
    VersionState,
)
from app.db.tables import Batch, DrawRecord, Erasure, Job, Model, Task, TaskSubject, Version
from app.gateway.batches import service as batches
from app.gateway.main import create_app
from app.services import Services
from lethe import Lethe, Retry
from lethe.cli.context import CommandContext
from lethe.cli.main import app
from tests.integration.dashboard import Visitor
from tests.integration.harness import MANIFEST

TENANT = "sentences"
RESNET: dict[str, Any] = {
    "family": "resnet18",
    "width": 4,
    "classes": 3,
    "network": {"image": [1, 2, 2], "base_width": 8, "groups": 2},
    "lambda": 0.05,
    "origins": {"features": "made up", "constants": "made up"},
    "policy": {"heuristic": True},
}


class States:
    """Puts things into states with the functions that the service itself uses."""

    def __init__(self, services: Services, tenant_id: UUID) -> None:
        self.services, self.tenant_id = services, tenant_id
        self.erasures: dict[str, UUID] = {}
        self.batches: dict[str, UUID] = {}

    def model(
        self, name: str, state: ModelState = ModelState.READY, manifest: dict[str, Any] | None = None
    ) -> UUID:
        document = Manifest.model_validate(manifest or MANIFEST).model_dump(mode="json", by_alias=True)
        with self.services.database.writing() as session:
            model = Model(id=new_id(), tenant_id=self.tenant_id, name=name, manifest=document, state=state)
            session.add(model)
        return model.id

    def ask(self, name: str, *models: UUID, due: datetime | None = None) -> None:
        """Record an erasure of one person from these models, with one task each."""
        due = due or now() + timedelta(days=20)
        received = due - timedelta(days=31)
        with self.services.database.writing() as session:
            erasure = Erasure(
                id=new_id(), tenant_id=self.tenant_id, subjects=1, received_at=received, due_at=due
            )
            session.add(erasure)
            session.flush()
            tasks = [
                Task(id=new_id(), erasure_id=erasure.id, model_id=model, subjects=1, due_at=due)
                for model in models
            ]
            session.add_all(tasks)
            session.flush()
            session.add_all(TaskSubject(task_id=t.id, ordinal=0, person=new_id().bytes) for t in tasks)
        self.erasures[name] = erasure.id

    def seal(self, name: str, model: UUID) -> None:
        with self.services.database.writing() as session:
            batch = transitions.seal(
                session, session.get_one(Model, model), because=SealReason.FLUSH, now=now()
            )
            assert batch is not None
            self.batches[name] = batch.id

    @contextmanager
    def at(self, name: str) -> Iterator[tuple[Session, Batch, Job]]:
        """Open a transaction on a batch and its job."""
        with self.services.database.writing() as session:
            batch = session.get_one(Batch, self.batches[name])
            yield session, batch, session.get_one(Job, batch.job_id)

    def queue(self, name: str) -> None:
        with self.at(name) as (session, _, job):
            transitions.dispatch(session, job, now())

    def run(self, name: str, step: BatchStep | None = None) -> None:
        self.queue(name)
        with self.at(name) as (session, batch, job):
            assert job.token is not None
            assert transitions.claim(session, job.id, job.token, now())
            session.refresh(batch)
            if step is not None:
                transitions.batch_step(session, batch, step, now())
            # A worker writes outcomes while it resolves the rows, long before they are true.
            tasks = select(Task.id).where(Task.batch_id == batch.id)
            people = update(TaskSubject).where(TaskSubject.task_id.in_(tasks))
            session.execute(people.values(outcome=SubjectOutcome.ERASED))

    def draw(self, name: str) -> None:
        with self.at(name) as (session, batch, _):
            session.add(DrawRecord(batch_id=batch.id, draft={}, evidence=b"", payload=b""))

    def hold(self, name: str, reason: HeldReason) -> None:
        with self.at(name) as (session, batch, job):
            assert job.token is not None
            transitions.hold_batch(session, batch, reason, "a detail", now())
            transitions.finish_job(session, job.id, job.token, now())

    def publish(self, name: str) -> None:
        with self.at(name) as (session, batch, _):
            version = Version(
                model_id=batch.model_id,
                number=1,
                state=VersionState.CURRENT,
                batch_id=batch.id,
                generation=1,
                path=f"versions/{name}",
                sha256="",
                size=1,
            )
            session.add(version)
            transitions.batch_purging(session, batch, now())

    def complete(self, name: str) -> None:
        self.publish(name)
        with self.at(name) as (session, batch, job):
            assert job.token is not None
            transitions.complete_batch(session, batch, now())
            transitions.finish_job(session, job.id, job.token, now())

    def fail(self, name: str, cause: FailureCause = FailureCause.UNEXPECTED) -> None:
        with self.at(name) as (session, _, job):
            transitions.attempt_failed(
                session,
                job,
                cause=cause,
                error="a reason",
                now=now(),
                max_attempts=1,
                backoff=1.0,
            )

    def decide(self, name: str, decision: Decision, why: str) -> None:
        decided = {"by": "Ana", "why": why}
        with self.services.database.writing() as session:
            batches.decide(session, self.tenant_id, self.batches[name], decision, decided)

    def cancel(self, name: str) -> None:
        with self.services.database.writing() as session:
            batches.cancel(session, self.tenant_id, self.batches[name], {"by": "Ana", "why": "too early"})


def put_into_every_state(states: States) -> None:
    """Create one request, with a model and a batch of its own, for each name in the table of sentences."""
    started = ("sealed", "queued", "solving", "drawing", "gated", "over_budget", "cancelled", "failed")
    published = ("discarded", "purging", "completed", "late", "to_approve", "to_discard")
    others = ("approved", "discarding", "delayed")
    overdue = now() - timedelta(hours=30)
    for name in ("waiting", "to_withdraw", "overdue", *started, *published, *others):
        due = overdue if name == "overdue" else now() - timedelta(hours=1) if name == "late" else None
        model = states.model(f"m-{name.replace('_', '-')}")
        states.ask(name, model, due=due)
        if name in (*started, *published, *others):
            states.seal(name, model)
    states.queue("queued")
    for name in ("solving", "gated", "over_budget", "failed", *published, *others):
        states.run(name, BatchStep.SOLVE)
    states.run("drawing", BatchStep.RELEASE)
    for name in ("gated", "discarded", "to_approve", "to_discard", "approved", "discarding"):
        states.draw(name)
        states.hold(name, HeldReason.QUALITY_GATE)
    states.hold("over_budget", HeldReason.BUDGET)
    states.cancel("cancelled")
    states.fail("failed")
    states.fail("delayed", FailureCause.STORAGE)
    states.decide("discarded", Decision.DISCARD, "the score is too low")
    states.decide("approved", Decision.APPROVE, "the score is fine")
    states.decide("discarding", Decision.DISCARD, "the score is too low")
    with states.at("discarded") as (session, batch, _):
        transitions.discarded(session, batch, now())
    states.publish("purging")
    states.complete("completed")
    states.complete("late")
    _six_models(states)
    states.model("rejected", ModelState.REJECTED)
    states.model("estimated", manifest=RESNET)
    states.model("proved")
    states.model("retrained", manifest=MANIFEST | {"policy": {"method": "retrain"}})


def _six_models(states: States) -> None:
    """A request over six models, of which the first is done and the second is being solved."""
    models = [states.model(f"six-{number}") for number in range(6)]
    states.ask("six", *models)
    for number in (0, 1):
        states.seal(f"six-{number}", models[number])
        states.run(f"six-{number}", BatchStep.SOLVE)
    states.complete("six-0")


class Observer:
    """Someone who reads the API, runs `lethe` and opens pages, all in this process."""

    def __init__(self, gateway: TestClient, visitor: Visitor, states: States) -> None:
        self.visitor, self.states = visitor, states

        def forward(request: httpx.Request) -> httpx.Response:
            answer = gateway.request(
                request.method, str(request.url), content=request.content, headers=dict(request.headers)
            )
            return httpx.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)

        self.lethe = Lethe(
            str(gateway.base_url), visitor.key, transport=httpx.MockTransport(forward), retry=Retry(times=0)
        )

    def get(self, path: str) -> Any:
        answer = self.visitor.client.get(path, headers=self.visitor.headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any) -> Any:
        return self.visitor.client.post(path, json=body, headers=self.visitor.headers)

    def page(self, path: str) -> str:
        answer = self.visitor.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    def command(self, *words: str) -> str:
        """Run `lethe` and return what it prints on both streams, with single spaces."""
        before = CommandContext.__dict__["api"]
        CommandContext.api = self.lethe  # type: ignore[assignment, method-assign]
        try:
            done = CliRunner(env={"COLUMNS": "400"}).invoke(app, words)
        finally:
            CommandContext.api = before  # type: ignore[method-assign]
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return " ".join((done.stdout + done.stderr).split())


@contextmanager
def observer(folder: Path, template: Path, redis_url: str) -> Iterator[Observer]:
    """Start a gateway in this process and put its database into every state."""
    shutil.copy(template, folder / "lethe.db")
    settings = Settings(
        data_dir=folder / "data",
        database_url=f"sqlite:///{folder / 'lethe.db'}",
        redis_url=redis_url,
        queue_name=f"test-{secrets.token_hex(8)}",
        create_keys=True,
    )
    services, before = Services(settings), structlog.get_config()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # the tests read standard output
    try:
        with TestClient(create_app(settings), raise_server_exceptions=False) as gateway:
            visitor = Visitor(gateway, services, TENANT).signed_in()
            states = States(services, visitor.tenant_id)
            put_into_every_state(states)
            yield Observer(gateway, visitor, states)
    finally:
        structlog.configure(**before)
        services.close()
