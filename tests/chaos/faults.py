"""Faults, drawn from a seed: which part they hit, and for how long. Each is undone before the next begins."""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import psutil
import psycopg
import redis

from tests.chaos.service import WORKERS, Service

LOOK_SECONDS = 5.0  # how long a fault waits for something to hit
EVERY_SECONDS = 0.005


class FaultKind(StrEnum):
    """What can happen to the service."""

    KILL_ATTEMPT = "attempt killed"
    KILL_WORKER = "worker killed"
    KILL_GATEWAY = "gateway killed"
    KILL_DISPATCHER = "dispatcher killed"
    KILL_QUEUE = "Valkey killed"
    SUSPEND_ATTEMPT = "attempt suspended"
    SUSPEND_WORKER = "worker suspended"
    SUSPEND_GATEWAY = "gateway suspended"
    SUSPEND_DISPATCHER = "dispatcher suspended"
    SUSPEND_QUEUE = "Valkey suspended"
    FLUSH_QUEUE = "queue flushed"
    CUT_LINK = "connections reset and refused"
    STALL_LINK = "connections stalled"
    FULL_DISK = "disk full"
    END_BACKENDS = "PostgreSQL connections ended"
    CRASH_DATABASE = "PostgreSQL crashed"


# How often each kind occurs in 40 faults. A worker takes seconds to start again, an attempt milliseconds.
DECK = {
    FaultKind.KILL_ATTEMPT: 8,
    FaultKind.KILL_WORKER: 1,
    FaultKind.KILL_GATEWAY: 2,
    FaultKind.KILL_DISPATCHER: 2,
    FaultKind.KILL_QUEUE: 2,
    FaultKind.SUSPEND_ATTEMPT: 5,
    FaultKind.SUSPEND_WORKER: 2,
    FaultKind.SUSPEND_GATEWAY: 2,
    FaultKind.SUSPEND_DISPATCHER: 2,
    FaultKind.SUSPEND_QUEUE: 2,
    FaultKind.FLUSH_QUEUE: 4,
    FaultKind.CUT_LINK: 3,
    FaultKind.STALL_LINK: 3,
    FaultKind.FULL_DISK: 2,
}
ON_POSTGRESQL = {FaultKind.END_BACKENDS: 3, FaultKind.CRASH_DATABASE: 2}
LONG = (FaultKind.SUSPEND_ATTEMPT, FaultKind.SUSPEND_WORKER)  # sometimes past the end of their heartbeats


@dataclass(frozen=True)
class Fault:
    """One fault. `choice` selects the target among those there are."""

    kind: FaultKind
    choice: int
    seconds: float
    pause: float


def plan(seed: int, *, postgresql: bool) -> Iterator[Fault]:
    """Yield faults without end. The same seed yields the same faults, and each deck has every kind."""
    chance = random.Random(seed)
    deck = [
        kind for kind, count in (DECK | (ON_POSTGRESQL if postgresql else {})).items() for _ in range(count)
    ]
    while True:
        chance.shuffle(deck)
        for kind in deck:
            long = kind in LONG and chance.random() < 0.2
            seconds = chance.uniform(4.0, 7.0) if long else chance.uniform(0.05, 1.0)
            yield Fault(kind, chance.randrange(1 << 16), seconds, chance.uniform(0.0, 0.4))


class Injector:
    """Injects faults in several threads, so that they overlap, and counts them."""

    def __init__(self, service: Service, seed: int, lanes: int = 2) -> None:
        self._service = service
        self._plan = plan(seed, postgresql=service.postgresql is not None)
        self._lanes = lanes
        self._lock = threading.Lock()
        self.struck: Counter[FaultKind] = Counter()
        self.missed = 0
        self.problems: list[str] = []

    def inject(self, count: int, until: float) -> None:
        """Inject `count` faults, or fewer if the monotonic clock reaches `until` before that."""
        left = threading.Semaphore(count)
        threads = [
            threading.Thread(target=self._run, args=(left, until), name=f"lane {lane}")
            for lane in range(self._lanes)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run(self, left: threading.Semaphore, until: float) -> None:
        while time.monotonic() < until and left.acquire(blocking=False):
            with self._lock:
                fault = next(self._plan)
            _wait(fault.pause)
            try:
                hit = STRIKES[fault.kind](self._service, fault)
            except Exception as problem:  # a fault of the tool, not of the service
                self.problems.append(f"{fault.kind}: {type(problem).__name__}: {problem}")
                return
            with self._lock:
                self.struck[fault.kind] += hit
                self.missed += not hit
            if not hit:
                left.release()


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


# -- how each fault strikes ---------------------------------------------------------------------------------
# Each returns whether there was anything to hit.

Strike = Callable[[Service, Fault], bool]


def _kill(*names: str) -> Strike:
    def strike(service: Service, fault: Fault) -> bool:
        return service.parts[names[fault.choice % len(names)]].signal(signal.SIGKILL)

    return strike


def _suspend(*names: str) -> Strike:
    def strike(service: Service, fault: Fault) -> bool:
        part = service.parts[names[fault.choice % len(names)]]
        if not part.signal(signal.SIGSTOP):
            return False
        try:
            _wait(fault.seconds)
        finally:
            part.signal(signal.SIGCONT)  # harmless if another fault has killed it
        return True

    return strike


def _find_attempt(service: Service) -> psutil.Process | None:
    deadline = time.monotonic() + LOOK_SECONDS
    while time.monotonic() < deadline:
        for worker in WORKERS:
            if attempts := service.attempts(worker):
                return attempts[0]
        _wait(EVERY_SECONDS)
    return None


def _kill_attempt(service: Service, fault: Fault) -> bool:
    attempt = _find_attempt(service)
    if attempt is None:
        return False
    _wait(fault.seconds / 4)  # at any moment of the attempt
    try:
        attempt.kill()
    except psutil.NoSuchProcess:
        return False
    return True


def _suspend_attempt(service: Service, fault: Fault) -> bool:
    attempt = _find_attempt(service)
    if attempt is None:
        return False
    try:
        attempt.suspend()
    except psutil.NoSuchProcess:
        return False
    _wait(fault.seconds)
    with suppress(psutil.NoSuchProcess):
        attempt.resume()
    return True


def _flush_queue(service: Service, _: Fault) -> bool:
    try:
        service.flush_queue()
    except redis.RedisError:  # another fault has just hit it
        return False
    return True


def _cut_link(service: Service, fault: Fault) -> bool:
    link = service.links()[fault.choice % len(service.links())]
    link.cut()
    _wait(fault.seconds)
    link.heal()
    return True


def _stall_link(service: Service, fault: Fault) -> bool:
    link = service.links()[fault.choice % len(service.links())]
    link.stall()
    _wait(fault.seconds)
    link.heal()
    return True


def _fill_disk(service: Service, fault: Fault) -> bool:
    """Let no file of gateway, dispatcher and workers grow for a while (RLIMIT_FSIZE)."""
    for running in service.trees():
        _limit_files(running, lambda _: 0)
    try:
        _wait(fault.seconds)
    finally:
        # A process that was forked in the meantime inherited the limit, so look until there is none.
        while sum(_limit_files(running, lambda hard: hard) for running in service.trees()):
            pass
    return True


def _limit_files(running: psutil.Process, choose: Callable[[int], int]) -> bool:
    """Set how long files may get that a process writes. Return whether that changed anything."""
    try:
        soft, hard = running.rlimit(psutil.RLIMIT_FSIZE)
        if soft == choose(hard):
            return False
        running.rlimit(psutil.RLIMIT_FSIZE, (choose(hard), hard))
    except (psutil.Error, ProcessLookupError):  # it has ended
        return False
    return True


def _end_backends(service: Service, _: Fault) -> bool:
    assert service.postgresql
    try:
        return service.postgresql.end_connections() > 0
    except psycopg.OperationalError:  # another fault has just hit it
        return False


def _crash_database(service: Service, _: Fault) -> bool:
    """Let PostgreSQL end without a checkpoint. It recovers from its write-ahead log when it starts."""
    return service.parts["postgresql"].signal(signal.SIGQUIT)


STRIKES: dict[FaultKind, Strike] = {
    FaultKind.KILL_ATTEMPT: _kill_attempt,
    FaultKind.KILL_WORKER: _kill(*WORKERS),
    FaultKind.KILL_GATEWAY: _kill("gateway"),
    FaultKind.KILL_DISPATCHER: _kill("dispatcher"),
    FaultKind.KILL_QUEUE: _kill("queue"),
    FaultKind.SUSPEND_ATTEMPT: _suspend_attempt,
    FaultKind.SUSPEND_WORKER: _suspend(*WORKERS),
    FaultKind.SUSPEND_GATEWAY: _suspend("gateway"),
    FaultKind.SUSPEND_DISPATCHER: _suspend("dispatcher"),
    FaultKind.SUSPEND_QUEUE: _suspend("queue"),
    FaultKind.FLUSH_QUEUE: _flush_queue,
    FaultKind.CUT_LINK: _cut_link,
    FaultKind.STALL_LINK: _stall_link,
    FaultKind.FULL_DISK: _fill_disk,
    FaultKind.END_BACKENDS: _end_backends,
    FaultKind.CRASH_DATABASE: _crash_database,
}
