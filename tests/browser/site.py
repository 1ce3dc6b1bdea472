"""A gateway on SQLite that listens on a port. Tests run its jobs in this process."""

import threading
from typing import Any
from uuid import UUID

import httpx
import numpy as np
import uvicorn

from app.core.settings import Settings
from app.gateway.auth import service as access
from app.gateway.auth.scopes import Scope
from app.gateway.main import create_app
from app.services import Services
from tests import eventually
from tests.integration.harness import MANIFEST, dataset, parquet
from tests.integration.model_api import work


class Site:
    def __init__(self, settings: Settings, port: int = 0) -> None:
        self.settings, self.services = settings, Services(settings)
        config = uvicorn.Config(create_app(settings), port=port, log_config=None, access_log=False)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        eventually(lambda: self._server.started)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.key_id, self.key = self.new_key("clinic", Scope.ADMIN)
        self.api = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {self.key}"}, timeout=120, trust_env=False
        )

    def close(self) -> None:
        self.api.close()
        self._server.should_exit = True
        self._thread.join(120)
        assert not self._thread.is_alive()
        self.services.close()

    def new_key(self, tenant: str, *scopes: Scope) -> tuple[UUID, str]:
        with self.services.database.writing() as session:
            made = access.create_key(session, tenant=tenant, name="test", scopes=scopes)
        return made.record.id, made.secret

    def call(self, method: str, path: str, **more: Any) -> Any:
        answer = self.api.request(method, path, **more)
        assert answer.is_success, answer.text
        return answer.json()

    def register(
        self, name: str = "toy", *, rows: int = 300, subjects: int = 60, lam: float = 0.05, **policy: Any
    ) -> None:
        manifest = MANIFEST | {"lambda": lam, "policy": MANIFEST["policy"] | policy}
        self.call("POST", "/v1/models", json={"name": name, "manifest": manifest})
        part = dataset(rows=rows, subjects=subjects)
        self.call("PUT", f"/v1/models/{name}/dataset/part0", content=part)
        self.call("PUT", f"/v1/models/{name}/holdout/h0", content=_holdout())
        self.call("POST", f"/v1/models/{name}/validate")
        self.work()
        shown = self.call("GET", f"/v1/models/{name}")
        assert shown["state"] == "ready", shown["reasons"]

    def erase(self, *subjects: str, **details: Any) -> str:
        answer = self.call("POST", "/v1/erasures", json={"subjects": subjects, **details})
        return str(answer["id"])

    def work(self) -> None:
        work(self.services)

    def hold(self, name: str, *subjects: str, **details: Any) -> tuple[str, str]:
        """Register a model whose gate no version passes, and erase people. Return the erasure and its batch.

        The mean loss of a softmax model is never 0, whatever the noise.
        """
        self.register(name, quality_gate={"max_loss": 0.0})
        erasure = self.erase(*subjects, models=[name], **details)
        self.work()
        (task,) = self.call("GET", f"/v1/erasures/{erasure}")["tasks"]
        assert task["on_hold"], task
        return erasure, str(task["batch_id"])


def _holdout() -> bytes:
    """Return holdout rows of people who are not in the training data."""
    generator = np.random.default_rng(8)
    labels = generator.integers(0, 3, 60)
    features = generator.normal(size=(60, 6)) / 4
    features[np.arange(60), labels] += 1
    return parquet([f"h{i}" for i in range(60)], labels, features)
