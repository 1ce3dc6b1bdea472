"""People who request erasures through both gateways, even while one of them is down."""

import itertools
import threading
from collections.abc import Sequence
from uuid import UUID, uuid4

from sqlalchemy import func, select

from app.db.states import TaskState
from app.db.tables import Model, Task
from lethe import Conflict, ServerError, Unreachable
from tests import eventually
from tests.hosts.cluster import WITHIN, Cluster
from tests.hosts.host import Host
from tests.integration.harness import MANIFEST, dataset

POLICY = MANIFEST["policy"] | {"epsilon": 0.1, "lifetime_epsilon": 900.0}


class People:
    """Sends requests. One without an answer is repeated at the other gateway, with the same key."""

    def __init__(self, cluster: Cluster, subjects: int) -> None:
        self.cluster, self.subjects = cluster, subjects
        self.models: list[str] = []
        self.acknowledged: list[UUID] = []
        self.repeated = 0
        self._next = itertools.count()
        self._turns = itertools.cycle(cluster.named("gateway"))
        self._lock = threading.Lock()

    def register(self, *names: str) -> None:
        """Register small models that all contain the same people."""
        rows = dataset(rows=2 * self.subjects, subjects=self.subjects)
        for name in names:
            with self.cluster.client(next(self._turns)) as lethe:
                lethe.models.create(name, MANIFEST | {"policy": POLICY})
                lethe.models.upload_part(name, "part0", rows)
                lethe.models.validate(name)
        for name in names:
            with self.cluster.client(next(self._turns)) as lethe:
                lethe.models.wait_ready(name, timeout=WITHIN)
        self.models += names

    def ask(self, models: Sequence[str], *, first: Host | None = None) -> UUID:
        """Request the erasure of two people, which fills a batch. Nobody is erased twice.

        `first` is the gateway to try first.
        """
        with self._lock:
            number = 2 * next(self._next)
        assert number + 1 < self.subjects
        key, tries = str(uuid4()), [first] if first else []

        def once() -> UUID | None:
            with self._lock:
                gateway = tries.pop() if tries else next(self._turns)
            try:
                with self.cluster.client(gateway, timeout=5) as lethe:
                    people = (f"s{number}", f"s{number + 1}")
                    return lethe.erasures.create(people, models=models, idempotency_key=key).id
            except (Unreachable, ServerError, Conflict):
                self.repeated += 1
                return None

        erasure = eventually(once, within=WITHIN)
        assert erasure is not None
        self.acknowledged.append(erasure)
        return erasure

    def keep_asking(self, rounds: int) -> None:
        """For each model, send a request as soon as the previous one is in a batch."""
        for _ in range(rounds):
            for model in self.models:
                eventually(lambda model=model: not self.waiting(model), within=WITHIN)  # type: ignore[misc]
                self.ask([model])

    def waiting(self, model: str) -> int:
        """Return how many requests wait for a batch of this model."""
        statement = (
            select(func.count(Task.id))
            .join(Model, Model.id == Task.model_id)
            .where(Model.name == model, Task.state == TaskState.RECEIVED)
        )
        return self.cluster.look(statement) or 0

    def open_tasks(self) -> int:
        """Return how many tasks are not completed."""
        return self.cluster.look(select(func.count(Task.id)).where(Task.state != TaskState.COMPLETED)) or 0

    def wait_until_all_is_done(self) -> None:
        """Wait until every task is completed."""
        eventually(lambda: self.open_tasks() == 0, within=4 * WITHIN, every=0.2)
