"""What integration tests share: keys, a small dataset, the dispatcher and a real worker on demand."""

import io
import os
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fastapi.testclient import TestClient

from app.access import service as access
from app.access.scopes import Scope
from app.bootstrap import Services
from app.dispatcher import Dispatcher
from app.settings import PREFIX, Settings
from worker import jobs
from worker.main import Worker

MANIFEST: dict[str, Any] = {
    "family": "softmax",
    "width": 6,
    "classes": 3,
    "lambda": 0.05,
    "origins": {"features": "made up", "constants": "made up"},
    "policy": {"target_distance": 1e-4, "batch_subjects": 2, "min_batch_subjects": 1},
}


def key_for(services: Services, tenant: str, *scopes: Scope) -> dict[str, str]:
    with services.database.writing() as session:
        made = access.create_key(session, tenant=tenant, name="test", scopes=scopes)
    return {"Authorization": f"Bearer {made.secret}"}


class System:
    """Dispatcher rounds and a real RQ worker, run until nothing is left to do."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.dispatcher = Dispatcher(services)
        jobs.use(services)

    def settle(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            assert self.dispatcher.round()
            self.work()

    def work(self) -> None:
        Worker.of(self.services).work(burst=True, logging_level="ERROR")


def environment(settings: Settings) -> dict[str, str]:
    """The settings as a child process gets them."""
    given = settings.model_dump(mode="json", exclude_unset=True)
    return {
        **{PREFIX + name.upper(): str(value) for name, value in given.items()},
        "PATH": os.environ["PATH"],
    }


def dataset(
    *, rows: int = 120, subjects: int = 30, width: int = 6, classes: int = 3, seed: int = 7, first: int = 0
) -> bytes:
    """A small Parquet part; subjects `s0` … hold several rows each. `first` is the first number."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, rows)
    features = generator.normal(size=(rows, width)) / 4
    features[np.arange(rows), labels] += 1
    return parquet([f"s{first + i % subjects}" for i in range(rows)], labels, features)


def parquet(subjects: list[str], labels: np.ndarray, features: np.ndarray) -> bytes:
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
    """Described, with data, validation asked for."""
    body = {"name": name, "manifest": manifest or MANIFEST}
    assert gateway.post("/v1/models", json=body, headers=admin).status_code == 201
    assert (
        gateway.put(f"/v1/models/{name}/dataset/part0", content=dataset(), headers=admin).status_code == 201
    )
    assert gateway.post(f"/v1/models/{name}/validate", headers=admin).status_code == 202
