"""Shared by tests of models: an API client that checks responses, and jobs run in the test's own process."""

from typing import Any

import torch
from fastapi.testclient import TestClient
from safetensors.torch import save
from sqlalchemy import select

from app.core.clock import now
from app.db import transitions
from app.db.states import JobKind, JobState
from app.db.tables import Certificate, DatasetPart, Job
from app.dispatcher.loop import Dispatcher
from app.services import Services
from lethe.certificate import envelope, statement
from tests.integration.harness import MANIFEST, dataset
from worker.data import datasets
from worker.jobs import JOBS

Headers = dict[str, str]


def work(services: Services) -> None:
    """Seal what is due and run all waiting jobs in this process, without a queue."""
    dispatcher = Dispatcher(services)
    dispatcher.seal_due()
    with services.database.reading() as session:
        waiting = session.scalars(select(Job).where(Job.state == JobState.WAITING)).all()
    for job in waiting:
        with services.database.writing() as session:
            mine = session.get_one(Job, job.id)
            transitions.dispatch(session, mine, now())
            assert mine.token is not None
            assert transitions.claim(session, mine.id, mine.token, now())
        JOBS[JobKind(mine.kind)](services, mine.id, mine.token)


def weights(value: float = 0.0, *, classes: int = 3, **more: torch.Tensor) -> bytes:
    """Return a weights file for the test manifest with every value equal."""
    return save({"weight": torch.full((classes, 6), value), "bias": torch.full((classes,), value)} | more)


class Api:
    """Calls the API under `/v1/models` and checks the status of every response."""

    def __init__(self, gateway: TestClient, headers: Headers) -> None:
        self.gateway, self.headers = gateway, headers

    def call(
        self, method: str, path: str, status: int = 200, headers: Headers | None = None, **body: Any
    ) -> Any:
        answer = self.gateway.request(
            method, f"/v1/models{path}", headers=self.headers | (headers or {}), **body
        )
        assert answer.status_code == status, answer.text
        if status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
        return answer.json() if answer.content else None

    def create(self, **change: Any) -> None:
        self.call("POST", "", 201, json={"name": "toy", "manifest": MANIFEST | change})

    def put(self, place: str, content: bytes, status: int = 201, headers: Headers | None = None) -> Any:
        return self.call("PUT", f"/toy/{place}", status, headers, content=content)

    def erase(self, *subjects: str) -> None:
        answer = self.gateway.post("/v1/erasures", json={"subjects": subjects}, headers=self.headers)
        assert answer.status_code == 202

    def ask(self, *subjects: str, **details: Any) -> Any:
        """Request an erasure and return the answer."""
        body = {"subjects": subjects, **details}
        answer = self.gateway.post("/v1/erasures", json=body, headers=self.headers)
        assert answer.status_code == 202, answer.text
        return answer.json()

    def batch(self, batch_id: str) -> Any:
        return self.gateway.get(f"/v1/batches/{batch_id}", headers=self.headers).json()


def subjects_held(services: Services) -> dict[str, set[str]]:
    """Return the subjects with rows in each part."""
    with services.database.reading() as session:
        parts = session.scalars(select(DatasetPart)).all()
    return {part.name: set(datasets.subjects(services.storage, part.path)) for part in parts}


def newest_statement(services: Services) -> statement.Statement:
    """Return the statement of the newest certificate."""
    with services.database.reading() as session:
        last = session.scalars(select(Certificate).order_by(Certificate.chain_index.desc())).first()
    assert last is not None
    parsed = statement.parse(envelope.parse(last.envelope).payload)
    assert isinstance(parsed, statement.Statement)
    return parsed


def registered(api: Api, services: Services) -> Api:
    """Register a model with a suppression list and a holdout, and wait until it is ready."""
    api.create(policy=MANIFEST["policy"] | {"suppression_list": True, "max_kl_alert": 1e-9})
    api.put("dataset/part0", dataset())
    api.put("holdout/h0", dataset(rows=30, subjects=40, seed=8))
    api.call("POST", "/toy/validate", 202)
    work(services)
    assert api.call("GET", "/toy")["state"] == "ready", api.call("GET", "/toy")["reasons"]
    return api
