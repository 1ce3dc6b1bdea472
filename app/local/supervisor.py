"""The supervisor of `lethe up`: runs queue server, gateway, dispatcher and worker as child processes."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import httpx
from pydantic import SecretStr
from rich.console import Console
from sqlalchemy import select

from app.core import logging, process
from app.core.settings import PREFIX, Settings
from app.core.vault import KeyProblem
from app.db import schema
from app.db.tables import ApiKey
from app.gateway.auth import service as access
from app.gateway.auth.scopes import Scope
from app.local import valkey
from app.services import Services

TICK_SECONDS = 0.1
READY_SECONDS = 60.0
GRACE_SECONDS = 20.0
FIRST_BACKOFF = 0.2
LONGEST_BACKOFF = 10.0
STEADY_SECONDS = 60.0

log = logging.get_logger("supervisor")


class StartError(Exception):
    """`lethe up` cannot start. The message is one line that tells the user what to do."""


class AlreadyRunning(StartError):
    """Another process already uses this data folder."""


class Child:
    """A child process that is restarted when it ends.

    The wait before a restart doubles while the process keeps ending.
    """

    def __init__(self, name: str, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        """Prepare a child. `start` starts its process."""
        self.name = name
        self._start = start
        self._started_at = 0.0
        self._due_at = 0.0
        self._backoff = FIRST_BACKOFF
        self.running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process."""
        self._started_at = time.monotonic()
        self.running = self._start()
        log.info("started a process", child=self.name, pid=self.running.pid)

    def check(self) -> None:
        """Notice if the process has ended, and restart it once its wait is over."""
        now = time.monotonic()
        if self.running is not None:
            code = self.running.poll()
            if code is not None:
                self.running = None
                self._wait_before_restart(now, process.describe_end(code))
        elif now >= self._due_at:
            try:
                self.start()
            except (OSError, valkey.EmbeddedServerError) as problem:
                self._wait_before_restart(now, str(problem))

    def _wait_before_restart(self, now: float, reason: str) -> None:
        if now - self._started_at >= STEADY_SECONDS:
            self._backoff = FIRST_BACKOFF
        self._due_at = now + self._backoff
        log.warning(
            "a process ended and will be restarted",
            child=self.name,
            reason=reason,
            wait_seconds=self._backoff,
        )
        self._backoff = min(2 * self._backoff, LONGEST_BACKOFF)


class Supervisor:
    """Runs all parts of the service on one data folder."""

    def __init__(self, settings: Settings, console: Console | None = None) -> None:
        """Prepare to run. Messages for the user go to `console`, standard output by default."""
        self._settings = settings.model_copy(update={"data_dir": settings.data_dir.absolute()})
        self._console = console or Console()
        self._stopping = False
        self._stages: list[list[Child]] = []  # in the order in which they are stopped

    def run(self) -> int:
        """Run until SIGINT, SIGTERM or SIGHUP, and return the exit code. No child process is left behind."""
        os.umask(0o077)  # children inherit it: the data folder is for its owner only
        _make_folder(self._settings.data_dir)
        with (
            _only_one(self._settings.data_dir),
            reserve_port(self._settings.host, self._settings.port) as port,
        ):
            self._settings = self._settings.model_copy(update={"port": port})
            self._listen_for_signals()
            try:
                self._start()
                self._supervise()
            finally:
                self._stop()
        return 0

    def _listen_for_signals(self) -> None:
        def stop(_number: int, _frame: FrameType | None) -> None:
            self._stopping = True

        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGTERM, stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup has it ignored
            signal.signal(signal.SIGHUP, stop)

    def _start(self) -> None:
        if not self._settings.redis_url:
            self._start_queue()
        services = Services(self._settings)
        try:
            schema.upgrade(services.database)
            _ = services.vault  # checked here, so that a missing or wrong key is reported once
            secret = _first_key(services)
        except KeyProblem as problem:
            raise StartError(str(problem)) from None
        finally:
            services.close()
        self._say(f"Data folder   {self._settings.data_dir}")
        if secret:
            self._say(f"API key       {secret}   (copy it now; it will not be shown again)")
        gateway, dispatcher, worker = (self._part(name) for name in ("gateway", "dispatcher", "worker"))
        self._stages[:0] = [[gateway], [dispatcher, worker]]
        for child in (dispatcher, worker, gateway):
            child.start()

    def _start_queue(self) -> None:
        queue = Child("queue", lambda: valkey.spawn_server(self._settings))
        self._stages.append([queue])
        try:
            queue.start()
            assert queue.running is not None
            valkey.wait_until_it_answers(self._settings, queue.running)
        except valkey.EmbeddedServerError as problem:
            raise StartError(str(problem)) from None

    def _part(self, name: str) -> Child:
        # `python -m` searches the current folder first. -P keeps a stranger's `app` or `worker` package there
        # from being imported instead of ours.
        command = [sys.executable, "-P", "-m", "lethe.cli", name]
        # Logs and anything that a library prints go to standard error. Standard output is for the user.
        return Child(
            name,
            lambda: process.spawn(command, env=environment(self._settings, name), stdout=sys.stderr.fileno()),
        )

    def _supervise(self) -> None:
        ready = Readiness(self._settings)
        while not self._stopping:
            for stage in self._stages:
                for child in stage:
                    child.check()
            if message := ready.check():
                self._say(message)
            time.sleep(TICK_SECONDS)

    def _stop(self) -> None:
        if not self._stages:
            return
        if self._stopping:
            self._say("Stopping…")
        for stage in self._stages:
            running = {child.running: child.name for child in stage if child.running is not None}
            for stubborn in process.stop(*running, grace=self._grace()):
                log.warning("killed a process that did not stop in time", child=running[stubborn])
        if not self._settings.redis_url:
            valkey.tidy(self._settings)
        log.info("all processes have stopped")

    def _grace(self) -> float:
        """Return how long to wait for a part to stop: longer than an orderly stop can take."""
        return max(GRACE_SECONDS, self._settings.drain_seconds + 5, self._settings.linger_seconds + 15)

    def _say(self, text: str) -> None:
        with suppress(OSError):  # a closed terminal must not prevent the children from being stopped
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class Readiness:
    """Watches /readyz and tells the user once it answers, or if it has not for a long time."""

    def __init__(self, settings: Settings) -> None:
        """Watch the gateway of these settings."""
        self._address = address(settings)
        self._late_at = time.monotonic() + READY_SECONDS
        self._next_look = 0.0
        self._ready = False
        self._late = False

    def check(self) -> str:
        """Return a message for the user, or an empty string if there is nothing new."""
        now = time.monotonic()
        if self._ready or now < self._next_look:
            return ""
        self._next_look = now + (5 * TICK_SECONDS if not self._late else 5.0)
        problem = self._problem()
        if not problem:
            self._ready = True
            return f"Lethe is running at {self._address}\nPress Ctrl-C to stop."
        if now >= self._late_at and not self._late:
            self._late = True
            return (
                f"Lethe is not ready after {READY_SECONDS:.0f} seconds ({problem}). "
                "Still trying; see the log lines above."
            )
        return ""

    def _problem(self) -> str:
        try:
            with httpx.Client(trust_env=False, timeout=2) as client:  # no proxy
                answer = client.get(f"{self._address}/readyz")
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__
        return "" if answer.status_code == httpx.codes.OK else f"/readyz answers {answer.status_code}"


def environment(settings: Settings, part: str) -> dict[str, str]:
    """Return the environment of one part: our own, with the settings of this process."""
    names = {PREFIX + name.upper() for name in Settings.model_fields}
    env = {name: value for name, value in os.environ.items() if name.upper() not in names}
    for name in Settings.model_fields:
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            value = value.get_secret_value() if part == "worker" else ""  # only the worker may sign
        if value is not None:
            env[PREFIX + name.upper()] = str(value)
    return env


@contextmanager
def reserve_port(host: str, port: int) -> Iterator[int]:
    """Reserve the port, or a free one if it is 0, and return it. Raise `StartError` if it is in use.

    Nobody else is given a reserved port before the gateway listens, or while it is restarted. On Linux the
    gateway can listen on a port that another socket has bound, if that one does not listen and both set
    SO_REUSEADDR. Elsewhere the port is only checked.
    """
    with _bound_socket(host, port) as reservation:
        number = int(reservation.getsockname()[1])
        if sys.platform != "linux":
            reservation.close()
        yield number


def _bound_socket(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(where)
        except OSError:
            bound.close()
            raise
    except OSError as problem:
        raise StartError(
            f"cannot listen on {host} port {port}: {problem.strerror or problem}; choose another with --port"
        ) from None
    return bound


def address(settings: Settings) -> str:
    """Return the URL of the gateway on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - not a bind
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise _unusable(folder, problem) from None


def _unusable(folder: Path, problem: OSError) -> StartError:
    return StartError(
        f"cannot use the data folder {folder}: {problem.strerror}; choose another with --data-dir"
    )


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold the data folder's lock. The kernel releases it when the process ends, so it is never stale."""
    try:
        lock = (folder / "lethe.lock").open("a+")
    except OSError as problem:
        raise _unusable(folder, problem) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise AlreadyRunning(
                f"Lethe is already running on the data folder {folder} (process {holder}); "
                "stop it, or choose another folder with --data-dir"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _first_key(services: Services) -> str:
    """Create an administrator's API key if there is no key yet, and return it, else an empty string."""
    with services.database.writing() as session:
        if session.scalar(select(ApiKey.id).limit(1)) is not None:
            return ""
        return access.create_key(session, tenant="default", name="first key", scopes=[Scope.ADMIN]).secret
