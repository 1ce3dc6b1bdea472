"""Shared by integration tests: API keys, a small dataset, a dispatcher and a real worker."""

import atexit
import io
import os
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fastapi.testclient import TestClient
from sqlalchemy import update

from app.core.clock import now
from app.core.settings import PREFIX, Settings
from app.db.states import ModelState
from app.db.tables import Model
from app.dispatcher.loop import Dispatcher
from app.gateway.auth import service as access
from app.gateway.auth.scopes import Scope
from app.services import Services
from worker.fork_server import ForkServer
from worker.main import Worker

# One fork server for all tests of this process, so that torch is imported once.
ATTEMPTS = ForkServer("worker.attempt")
atexit.register(ATTEMPTS.close)

MANIFEST: dict[str, Any] = {
    "family": "softmax",
    "width": 6,
    "classes": 3,
    "lambda": 0.05,
    "origins": {"features": "made up", "constants": "made up"},
    "policy": {"target_distance": 1e-4, "batch_subjects": 2, "min_batch_subjects": 1},
}


# No release meets this: the loss of a regularised classifier is never zero, whatever the noise.
UNREACHABLE: dict[str, Any] = {"max_loss": 0.0, "max_f1_drop": 0.0, "max_loss_rise": 0.0}


def key_for(services: Services, tenant: str, *scopes: Scope) -> dict[str, str]:
    """Create an API key and return the header that uses it."""
    with services.database.writing() as session:
        key = access.create_key(session, tenant=tenant, name="test", scopes=scopes)
    return {"Authorization": f"Bearer {key.secret}"}


def set_state(services: Services, state: ModelState) -> None:
    """Put every model into a state, without a worker. Requests look at the state of a model only."""
    with services.database.writing() as session:
        session.execute(update(Model).values(state=state))


class Clocks:
    """The three clocks of a dispatcher: this machine's, the database's and the monotonic one."""

    def __init__(self) -> None:
        self.wall = self.database = now()
        self.steady = 1000.0

    def pass_time(self, length: timedelta) -> None:
        """Let time pass on all clocks."""
        self.wall, self.database = self.wall + length, self.database + length
        self.steady += length.total_seconds()

    def dispatcher(self, services: Services) -> Dispatcher:
        """Return a dispatcher that reads these clocks."""
        return Dispatcher(
            services,
            clock=lambda: self.wall,
            steady=lambda: self.steady,
            database_clock=lambda _: self.database,
        )


class System:
    """A dispatcher and a real RQ worker, run step by step in the test's own process."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.dispatcher = Dispatcher(services)

    def settle(self, rounds: int = 1) -> None:
        """Run the dispatcher once and the worker until the queue is empty, as often as asked."""
        for _ in range(rounds):
            assert self.dispatcher.round()
            self.work()

    def work(self) -> None:
        """Run the worker until the queue is empty."""
        Worker.of(self.services, ATTEMPTS).work(burst=True, logging_level="ERROR")


def environment(settings: Settings) -> dict[str, str]:
    """Return the settings as environment variables for a child process."""
    values = settings.model_dump(mode="json", exclude_unset=True)
    return {
        **{PREFIX + name.upper(): str(value) for name, value in values.items()},
        "PATH": os.environ["PATH"],
    }


def dataset(
    *, rows: int = 120, subjects: int = 30, width: int = 6, classes: int = 3, seed: int = 7, first: int = 0
) -> bytes:
    """Return a small Parquet part. Its subjects are numbered from `s{first}` and have several rows each."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, rows)
    features = generator.normal(size=(rows, width)) / 4
    features[np.arange(rows), labels] += 1
    return parquet([f"s{first + i % subjects}" for i in range(rows)], labels, features)


def parquet(subjects: list[str], labels: np.ndarray, features: np.ndarray) -> bytes:
    """Return rows as a Parquet part."""
    width = features.shape[1]
    table = pa.table(
        {
            "subject_id": pa.array(subjects, pa.string()),
            "label": pa.array(labels),
            "features": pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), width),
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def create_model(
    gateway: TestClient, admin: dict[str, str], name: str = "toy", manifest: dict[str, Any] | None = None
) -> None:
    """Create a model, upload its data and ask for validation."""
    body = {"name": name, "manifest": manifest or MANIFEST}
    assert gateway.post("/v1/models", json=body, headers=admin).status_code == 201
    assert (
        gateway.put(f"/v1/models/{name}/dataset/part0", content=dataset(), headers=admin).status_code == 201
    )
    assert gateway.post(f"/v1/models/{name}/validate", headers=admin).status_code == 202
