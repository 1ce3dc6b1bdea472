"""The service under test: gateway, dispatcher, two workers, Valkey and perhaps PostgreSQL, each a process.

Every connection between two of them goes through a proxy (`tests.chaos.proxy`). A part that ends is started
again, as a supervisor would do.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import psycopg
import redis

from app.core import process, queue
from app.core.settings import Settings
from app.db import schema
from app.gateway.auth.scopes import Scope
from app.local import valkey
from app.local.supervisor import environment
from app.services import Services
from lethe import Lethe, Retry
from tests import eventually, reserved_port
from tests.chaos.proxy import Link, Proxies
from tests.chaos.witness_attempt import WITNESSES
from tests.integration.harness import key_for

ROOT = Path(__file__).parents[2]
START_SECONDS = 300.0
STOP_SECONDS = 60.0
WATCH_SECONDS = 0.05
TENANT = "chaos"
WORKERS = ("worker1", "worker2")
PARTS = ("gateway", "dispatcher", *WORKERS)


class Part:
    """One process of the service. It is started again whenever it ends, by the thread that started it."""

    def __init__(self, name: str, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self.name, self._start = name, start
        self.running: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self._lock = threading.Lock()

    def check(self) -> None:
        """Start the process if it is not running."""
        with self._lock:
            if self.running is None or self.running.poll() is not None:
                self.running = self._start()
                self.starts += 1

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to the process alone, not to its children. Return False if it is not running."""
        with self._lock:
            if self.running is None or self.running.poll() is not None:
                return False
            self.running.send_signal(number)
            if number == signal.SIGKILL:
                self.running.wait()
            return True

    def tree(self) -> list[psutil.Process]:
        """Return the process and its descendants, parents first."""
        if self.running is None:
            return []
        try:
            this = psutil.Process(self.running.pid)
            return [this, *this.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


class PostgreSQL:
    """A PostgreSQL server in a folder, reachable through a Unix socket only."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "postgresql"
        self.data.mkdir()
        folder.chmod(0o711)  # the server runs as another user if this process is root
        created = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.hosts.new_database", self.data],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        user, server = created.stdout.splitlines()[-2:]
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        self._command = [*(as_user if os.geteuid() == 0 else []), server, "-D", str(self.data)]
        self._command += ["-k", str(self.data), "-h", "", "-c", "max_connections=300"]
        self.socket = str(self.data / ".s.PGSQL.5432")

    def start(self, log: int) -> subprocess.Popen[bytes]:
        """Start the server. It recovers by itself if it was killed."""
        return process.spawn(self._command, env={**os.environ, "LC_ALL": "C"}, stdout=log, stderr=log)

    def connect(self) -> psycopg.Connection:
        """Connect as an administrator, past the proxies."""
        return psycopg.connect(host=str(self.data), user="postgres", connect_timeout=5, autocommit=True)

    def answers(self) -> bool:
        """Return whether the server accepts connections."""
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def end_connections(self) -> int:
        """Terminate all other connections, and return how many there were."""
        with self.connect() as connection:
            ended = connection.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            ).fetchone()
        return int(ended[0]) if ended else 0

    @property
    def url(self) -> str:
        """The URL of the database, past the proxies."""
        return f"postgresql+psycopg://postgres@/postgres?host={self.data}"


class Service:
    """All parts on one data folder, and the links between them."""

    def __init__(self, folder: Path, database: str, max_attempts: int) -> None:
        self.folder, self.proxies = folder, Proxies()
        self.witnesses = folder / "witnesses"
        self.witnesses.mkdir()
        self.postgresql = PostgreSQL(folder) if database == "postgresql" else None
        self.settings = Settings(
            data_dir=folder / "data",
            database_url=self.postgresql.url if self.postgresql else "",
            create_keys=True,
            heartbeat_seconds=1,
            dead_after_seconds=4,
            dispatch_interval_seconds=0.1,
            retry_backoff_seconds=0.05,
            requeue_after_seconds=1,
            lease_seconds=2,
            advice_seconds=0,
            max_attempts=max_attempts,
        )
        self.services = Services(self.settings)
        self.parts: dict[str, Part] = {}
        self._stop, self._thread = threading.Event(), threading.Thread(target=self._watch, name="parts")
        self._log, self._log_end = os.pipe()  # a pipe, so that a full disk does not stop the logging
        self._logger = threading.Thread(target=self._copy_log, name="log")
        self.address, self.api_key = "", ""
        self._reservation = ExitStack()
        self.port = self._reservation.enter_context(reserved_port())

    # Start and stop

    def start(self) -> None:
        """Start everything and wait until the gateway is ready."""
        self._logger.start()
        queue.queue_password(self.settings)  # created here, before two threads ask for it
        self._add("queue", lambda: valkey.spawn_server(self.settings))
        if self.postgresql:
            self._add("postgresql", lambda: self.postgresql.start(self._log_end))  # type: ignore[union-attr]
        self._thread.start()
        eventually(self._servers_answer, within=START_SECONDS)
        schema.upgrade(self.services.database)
        admin = key_for(self.services, TENANT, Scope.ADMIN)
        self.api_key = admin["Authorization"].removeprefix("Bearer ")
        link = self.proxies.link_to_port("client to gateway", self.port)
        self.address = f"http://127.0.0.1:{link.port}"
        for name in PARTS:
            self._add_part(name)
        with self.client() as lethe:
            eventually(lambda: _is_ready(lethe), within=START_SECONDS)

    def close(self) -> None:
        """Stop every process that was started, and close the connections."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self.services.close()
        self.proxies.close()
        self._reservation.close()
        os.close(self._log_end)
        if self._logger.is_alive():
            self._logger.join(STOP_SECONDS)
        valkey.tidy(self.settings)

    def client(self, *, timeout: float = 5.0) -> Lethe:
        """Return a client that goes through the proxy in front of the gateway."""
        return Lethe(self.address, self.api_key, retry=Retry(times=1), timeout=timeout)

    # What faults need

    def attempts(self, worker: str) -> list[psutil.Process]:
        """Return the running attempts of a worker."""
        return [running for running in self.parts[worker].tree() if _name(running).startswith("lethe ")]

    def trees(self) -> list[psutil.Process]:
        """Return the processes of all parts that write files of their own, parents first."""
        return [running for name in PARTS for running in self.parts[name].tree()]

    def links(self) -> list[Link]:
        """Return all links."""
        return self.proxies.links

    def flush_queue(self) -> None:
        """Delete everything in the queue's server."""
        with redis.Redis.from_url(queue.redis_url(self.settings), socket_timeout=5) as server:
            server.flushall()

    # Processes

    def _servers_answer(self) -> bool:
        try:
            with redis.Redis.from_url(queue.redis_url(self.settings), socket_timeout=5) as server:
                server.ping()
        except redis.RedisError:
            return False
        return self.postgresql is None or self.postgresql.answers()

    def _add_part(self, name: str) -> None:
        """Add a program, with links of its own to Valkey and PostgreSQL."""
        part = name.rstrip("12")
        to_queue = self.proxies.link_to_socket(f"{name} to queue", str(queue.socket_path(self.settings)))
        password = queue.queue_password(self.settings)
        own = {"redis_url": f"redis://:{password}@127.0.0.1:{to_queue.port}/0", "port": self.port}
        if self.postgresql:
            link = self.proxies.link_to_socket(f"{name} to database", self.postgresql.socket)
            own["database_url"] = f"postgresql+psycopg://postgres@127.0.0.1:{link.port}/postgres"
        env = environment(self.settings.model_copy(update=own), part)
        env |= {"OMP_NUM_THREADS": "1", WITNESSES: str(self.witnesses)}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        module = ("tests.chaos.witness_worker",) if part == "worker" else ("lethe.cli", part)
        command = [sys.executable, "-m", *module]
        self._add(name, lambda: process.spawn(command, env=env, stdout=self._log_end, stderr=self._log_end))

    def _add(self, name: str, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self.parts = {**self.parts, name: Part(name, start)}  # the watching thread reads it

    def _watch(self) -> None:
        """Start what is not running, until asked to stop, then kill all of it.

        The kernel kills a child when the thread that started it ends, so one thread starts and stops them.
        """
        while not self._stop.wait(WATCH_SECONDS):
            for part in self.parts.values():
                try:
                    part.check()
                except (OSError, valkey.EmbeddedServerError) as problem:  # the old one is still ending
                    os.write(self._log_end, f"{part.name}: {problem}\n".encode())
        if "postgresql" in self.parts:
            self.parts["postgresql"].signal(signal.SIGQUIT)  # so that it releases its shared memory
            process.wait(self._running("postgresql"), STOP_SECONDS)
        for name in self.parts:
            process.kill(self._running(name))

    def _running(self, name: str) -> subprocess.Popen[bytes]:
        running = self.parts[name].running
        assert running is not None
        return running

    def _copy_log(self) -> None:
        with os.fdopen(self._log, "rb") as lines, (self.folder / "log").open("wb") as log:
            for line in lines:
                log.write(line)
                log.flush()


def _name(running: psutil.Process) -> str:
    try:
        return str(running.name())
    except psutil.NoSuchProcess:
        return ""


def _is_ready(lethe: Lethe) -> bool:
    try:
        return lethe.http.get("/readyz").is_success
    except httpx.TransportError:
        return False
