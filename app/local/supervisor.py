"""`lethe up`: the embedded server, gateway, dispatcher and worker as children of one process."""

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

from app import embedded, logs, migrate, process
from app.access import service as access
from app.access.scopes import Scope
from app.bootstrap import Services
from app.db.tables import ApiKey
from app.settings import PREFIX, Settings
from app.vault import KeyProblem

TICK_SECONDS = 0.1
READY_SECONDS = 60.0
GRACE_SECONDS = 20.0
FIRST_BACKOFF = 0.2
LONGEST_BACKOFF = 10.0
STEADY_SECONDS = 60.0

log = logs.get("supervisor")


class StartError(Exception):
    """`lethe up` cannot start; the message is one line a user can act on."""


class AlreadyRunning(StartError):
    """Another process serves this data folder."""


class Child:
    """One part of the system, started again when it ends, after a wait that doubles while it keeps ending."""

    def __init__(self, name: str, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self.name = name
        self._start = start
        self._started_at = 0.0
        self._due_at = 0.0
        self._backoff = FIRST_BACKOFF
        self.running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._started_at = time.monotonic()
        self.running = self._start()
        log.info("started", child=self.name, pid=self.running.pid)

    def tend(self) -> None:
        """Notice its end; start it again when its wait is over."""
        now = time.monotonic()
        if self.running is not None:
            code = self.running.poll()
            if code is not None:
                self.running = None
                self._wait_before_restart(now, process.describe_end(code))
        elif now >= self._due_at:
            try:
                self.start()
            except (OSError, embedded.EmbeddedServerError) as problem:
                self._wait_before_restart(now, str(problem))

    def _wait_before_restart(self, now: float, reason: str) -> None:
        if now - self._started_at >= STEADY_SECONDS:
            self._backoff = FIRST_BACKOFF
        self._due_at = now + self._backoff
        log.warning("ended, starting again", child=self.name, reason=reason, wait_seconds=self._backoff)
        self._backoff = min(2 * self._backoff, LONGEST_BACKOFF)


class Supervisor:
    def __init__(self, settings: Settings, console: Console | None = None) -> None:
        self._settings = settings.model_copy(update={"data_dir": settings.data_dir.absolute()})
        self._console = console or Console()
        self._stopping = False
        self._stages: list[list[Child]] = []  # in the order in which they stop

    def run(self) -> int:
        """Serve until SIGINT, SIGTERM or the terminal goes; whatever happens, leave no child behind."""
        os.umask(0o077)  # the children's too: what the folder holds is its owner's alone
        _make_folder(self._settings.data_dir)
        with _only_one(self._settings.data_dir):
            self._listen_for_signals()
            try:
                self._start()
                self._supervise()
            finally:
                self._stop()
        return 0

    def _listen_for_signals(self) -> None:
        def note(_number: int, _frame: FrameType | None) -> None:
            self._stopping = True

        signal.signal(signal.SIGINT, note)
        signal.signal(signal.SIGTERM, note)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup means: stay
            signal.signal(signal.SIGHUP, note)

    def _start(self) -> None:
        port = free_port(self._settings.host, self._settings.port)
        self._settings = self._settings.model_copy(update={"port": port})
        if not self._settings.redis_url:
            self._start_queue()
        services = Services(self._settings)
        try:
            migrate.upgrade(services)
            _ = services.vault  # here, where a missing or wrong key is one line, and not in every child
            secret = _first_key(services)
        except KeyProblem as problem:
            raise StartError(str(problem)) from None
        finally:
            services.close()
        self._say(f"Data folder   {self._settings.data_dir}")
        if secret:
            self._say(f"API key       {secret}   (shown only now)")
        gateway, dispatcher, worker = (self._part(name) for name in ("gateway", "dispatcher", "worker"))
        self._stages[:0] = [[gateway], [dispatcher, worker]]
        for child in (dispatcher, worker, gateway):
            child.start()

    def _start_queue(self) -> None:
        queue = Child("queue", lambda: embedded.spawn_server(self._settings))
        self._stages.append([queue])
        try:
            queue.start()
            assert queue.running is not None
            embedded.wait_until_it_answers(self._settings, queue.running)
        except embedded.EmbeddedServerError as problem:
            raise StartError(str(problem)) from None

    def _part(self, name: str) -> Child:
        # -P: a folder named `app` where the user happens to stand must not take the place of ours.
        command = [sys.executable, "-P", "-m", "client.cli", name]
        # Their logs, and anything a library prints, go to standard error: standard output is for the user.
        return Child(
            name,
            lambda: process.spawn(command, env=environment(self._settings, name), stdout=sys.stderr.fileno()),
        )

    def _supervise(self) -> None:
        ready = Readiness(self._settings)
        while not self._stopping:
            for stage in self._stages:
                for child in stage:
                    child.tend()
            if message := ready.news():
                self._say(message)
            time.sleep(TICK_SECONDS)

    def _stop(self) -> None:
        if not self._stages:
            return
        if self._stopping:
            self._say("Stopping …")
        for stage in self._stages:
            running = {child.running: child.name for child in stage if child.running is not None}
            for stubborn in process.stop(*running, grace=self._grace()):
                log.warning("killed, it did not stop in time", child=running[stubborn])
        if not self._settings.redis_url:
            embedded.tidy(self._settings)
        log.info("stopped")

    def _grace(self) -> float:
        """Longer than any part takes that stops in order."""
        return max(GRACE_SECONDS, self._settings.drain_seconds + 5, self._settings.linger_seconds + 15)

    def _say(self, text: str) -> None:
        with suppress(OSError):  # a terminal that went away must not keep the children from being stopped
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class Readiness:
    """Looks at /readyz, and has news for the user when it first answers, or has not for long."""

    def __init__(self, settings: Settings) -> None:
        self._address = address(settings)
        self._late_at = time.monotonic() + READY_SECONDS
        self._next_look = 0.0
        self._ready = False
        self._late = False

    def news(self) -> str:
        now = time.monotonic()
        if self._ready or now < self._next_look:
            return ""
        self._next_look = now + (5 * TICK_SECONDS if not self._late else 5.0)
        problem = self._problem()
        if not problem:
            self._ready = True
            return f"Lethe answers at {self._address}\nPress Ctrl-C to stop."
        if now >= self._late_at and not self._late:
            self._late = True
            return f"{self._address} is not ready after {READY_SECONDS:.0f} s ({problem}); still trying."
        return ""

    def _problem(self) -> str:
        try:
            with httpx.Client(trust_env=False, timeout=2) as client:  # never through a proxy
                answer = client.get(f"{self._address}/readyz")
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__
        return "" if answer.status_code == httpx.codes.OK else f"status {answer.status_code}"


def environment(settings: Settings, part: str) -> dict[str, str]:
    """The environment of one part: ours, with every setting as it stands here."""
    names = {PREFIX + name.upper() for name in Settings.model_fields}
    env = {name: value for name, value in os.environ.items() if name.upper() not in names}
    for name in Settings.model_fields:
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            value = value.get_secret_value() if part == "worker" else ""  # only the worker signs
        if value is not None:
            env[PREFIX + name.upper()] = str(value)
    return env | {"PYTHONSAFEPATH": "1"}


def free_port(host: str, port: int) -> int:
    """The port to listen on, known to be free; with 0, one the system picks."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            return int(probe.getsockname()[1])
    except OSError as problem:
        raise StartError(f"cannot listen on {host} port {port}: {problem.strerror or problem}") from None


def address(settings: Settings) -> str:
    """Where this machine reaches the gateway."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - not a bind
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise StartError(f"cannot use the data folder {folder}: {problem.strerror}") from None


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. The kernel drops it with us, so no stale lock ever needs removing."""
    try:
        lock = (folder / "lethe.lock").open("a+")
    except OSError as problem:
        raise StartError(f"cannot use the data folder {folder}: {problem.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise AlreadyRunning(f"already running on data folder {folder} (process {holder})") from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _first_key(services: Services) -> str:
    """An administrator's key for an installation that has none yet, else nothing."""
    with services.database.writing() as session:
        if session.scalar(select(ApiKey.id).limit(1)) is not None:
            return ""
        return access.create_key(session, tenant="default", name="first key", scopes=[Scope.ADMIN]).secret
