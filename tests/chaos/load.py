"""Customers who request erasures all the time, and a person who helps batches that cannot continue."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID, uuid4

import numpy as np

from lethe import Conflict, Lethe, LetheError, RateLimited, ServerError, Unreachable
from tests import eventually
from tests.chaos.service import Service
from tests.integration.harness import MANIFEST, parquet

MODELS = ("first", "second", "third")
POLICY = MANIFEST["policy"] | {"epsilon": 0.1, "lifetime_epsilon": 900.0}
SUBJECTS = 3000
PAUSE_SECONDS = 0.2
MOST_OPEN = 8
READY_SECONDS = 300.0
TEMPORARY = (Unreachable, ServerError, Conflict, RateLimited)


def person(model: str, number: int) -> str:
    """Return the identifier of a person, who is in one model only."""
    return f"{model}-person-{number:06d}"


def rows(model: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the training rows of a model: subjects, labels and features. Each person has two rows."""
    generator = np.random.default_rng(MODELS.index(model))
    count = 2 * SUBJECTS
    labels = generator.integers(0, MANIFEST["classes"], count)
    features = generator.normal(size=(count, MANIFEST["width"])) / 4
    features[np.arange(count), labels] += 1
    return [person(model, i % SUBJECTS) for i in range(count)], labels, features


def register_models(service: Service) -> None:
    """Register the models and wait until they are ready."""
    with service.client(timeout=60) as lethe:
        for model in MODELS:
            lethe.models.create(model, MANIFEST | {"policy": POLICY})
            lethe.models.upload_part(model, "part0", parquet(*rows(model)))
            lethe.models.validate(model)
        for model in MODELS:
            lethe.models.wait_ready(model, timeout=READY_SECONDS)


class Customer:
    """Requests the erasure of two people after the other from one model, without waiting for completion.

    A request without an answer is repeated with its idempotency key until it is acknowledged.
    """

    def __init__(self, service: Service, model: str) -> None:
        self.model, self._service = model, service
        self.acknowledged: dict[UUID, tuple[str, ...]] = {}
        self.repeated = 0
        self._open: list[UUID] = []
        self._enough = threading.Event()
        self._numbers = iter(range(0, SUBJECTS - 1, 2))
        self._thread = threading.Thread(target=self._run, name=f"customer of {model}")
        self.problem: Exception | None = None

    def start(self) -> None:
        """Begin to send requests."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Send no new request, and wait until the last one is acknowledged."""
        self._enough.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self.problem = TimeoutError("a request was not acknowledged in time")

    def _run(self) -> None:
        try:
            with self._service.client() as lethe:
                for number in self._numbers:
                    if self._enough.is_set():
                        return
                    people = tuple(person(self.model, each) for each in (number, number + 1))
                    erasure = self._until_acknowledged(lethe, people)
                    self.acknowledged[erasure] = people
                    self._open.append(erasure)
                    self._wait_for_room(lethe)
        except Exception as problem:  # reported with the other findings
            self.problem = problem

    def _until_acknowledged(self, lethe: Lethe, people: tuple[str, ...]) -> UUID:
        key = str(uuid4())
        for _ in itertools.count():
            try:
                return lethe.erasures.create(people, models=[self.model], idempotency_key=key).id
            except TEMPORARY:
                self.repeated += 1
                threading.Event().wait(PAUSE_SECONDS / 3)
        raise AssertionError

    def _wait_for_room(self, lethe: Lethe) -> None:
        """Wait until few requests of this customer are open."""
        while not self._enough.wait(PAUSE_SECONDS) and len(self._open) >= MOST_OPEN:
            with suppress(*TEMPORARY):
                self._open = [each for each in self._open if lethe.erasures.get(each).state != "completed"]


class Person:
    """Retries or approves batches that failed or are on hold, and remembers which ones needed it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.helped: dict[UUID, str] = {}

    def help(self) -> None:
        """Look at all batches once. Without an answer from the gateway, do nothing."""
        try:
            with self._service.client() as lethe:
                for batch in lethe.batches.list():
                    if batch.state in ("failed", "held"):
                        self.helped.setdefault(batch.id, batch.error or str(batch.held_reason))
                        self._decide(lethe, batch.id)
        except LetheError:
            return

    def _decide(self, lethe: Lethe, batch: UUID) -> None:
        try:
            lethe.batches.retry(batch)
        except Conflict:  # it has a draw, or another batch of the model is under way
            lethe.batches.approve(batch)


def erasures(lethe: Lethe) -> Iterator[tuple[UUID, str]]:
    """Return the id and state of every request that the service knows."""
    for erasure in lethe.erasures.list():
        yield erasure.id, erasure.state


def wait_until_completed(service: Service, helper: Person, seconds: float) -> list[UUID]:
    """Wait until every request is completed, and return those that are not after `seconds`."""
    open_requests: list[UUID] = []

    def look() -> bool:
        helper.help()
        try:
            with service.client(timeout=60) as lethe:
                open_requests[:] = [each for each, state in erasures(lethe) if state != "completed"]
        except LetheError:
            return False
        return not open_requests

    try:
        eventually(look, within=seconds, every=0.5)
    except AssertionError:
        return open_requests
    return []
