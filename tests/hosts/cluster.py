"""The whole service on separate hosts: two gateways, two dispatchers, three workers, PostgreSQL, Valkey.

They share keys and a storage folder, as machines share a mounted secret and an object store. The folder does
not need the network, so a worker that is cut off can still write to it. This is the harder case to get right.
"""

import secrets
import subprocess
import sys
from pathlib import Path
from typing import TypeVar

import httpx
import psycopg
from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy import Select, select
from sqlalchemy.exc import OperationalError

from app.core import vault
from app.core.settings import Settings
from app.db import schema
from app.db.tables import Lease
from app.gateway.auth.scopes import Scope
from app.local import valkey
from app.local.supervisor import environment
from app.services import Services
from lethe import Lethe, Retry
from lethe.certificate.keys import SigningKey
from tests import eventually
from tests.faults.gated_attempt import GATE, PYTHONPATH
from tests.hosts.host import Attempt, Host, program
from tests.hosts.network import Network
from tests.integration.harness import key_for

T = TypeVar("T")
WITHIN = 300.0  # a loaded machine starts processes slowly
PORT = 8420
PARTS = {
    "gateway1": 11,
    "gateway2": 12,
    "dispatcher1": 21,
    "dispatcher2": 22,
    "worker1": 31,
    "worker2": 32,
    "worker3": 33,
}
LATER = ("worker2", "worker3")  # started after a test has measured a single worker


class Cluster:
    """All hosts of the service, with methods for an operator."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder = network, folder
        self.folder.chmod(0o711)  # PostgreSQL runs as another user and must reach its data
        self.password = secrets.token_hex(16)
        self.database = self._database()
        self.queue = self._queue()
        self.settings = self._settings()
        self.services = Services(self.settings)
        self.hosts = {name: self._part(name, number) for name, number in PARTS.items()}
        self.api_key = ""
        self.gate = folder / "gate"
        self.gate.touch()

    # Start and stop

    def start_servers(self) -> None:
        """Start PostgreSQL and Valkey, and create the tables."""
        self._make_keys()
        self.database.boot({"LC_ALL": "C"})
        self.queue.boot({})
        eventually(self._database_answers, within=WITHIN)
        eventually(self._queue_answers, within=WITHIN)
        schema.upgrade(self.services.database)

    def start_parts(self) -> None:
        """Start gateways, dispatchers and one worker."""
        admin = key_for(self.services, "hosts", Scope.ADMIN)
        self.api_key = admin["Authorization"].removeprefix("Bearer ")
        self.boot("dispatcher1")
        eventually(self.lease_holder, within=WITHIN)  # so that the second one stands by
        for name in PARTS:
            if name not in ("dispatcher1", *LATER):
                self.boot(name)
        for gateway in self.named("gateway"):
            self.wait_for_gateway(gateway)

    def close(self) -> None:
        """Kill every process. The network removes the namespaces."""
        for host in (*self.hosts.values(), self.queue, self.database):
            host.close()
        self.services.close()

    def boot(self, name: str) -> None:
        """Switch a host on."""
        host = self.hosts[name]
        own = self.settings.model_copy(
            update={"data_dir": host.folder, "host": host.address, "port": PORT, "create_keys": False}
        )
        test = {"OMP_NUM_THREADS": "1", GATE: str(self.gate), "PYTHONPATH": PYTHONPATH}
        host.boot(environment(own, name.rstrip("123")) | test)

    # An operator's view

    def named(self, part: str) -> list[Host]:
        return [host for name, host in self.hosts.items() if name.startswith(part)]

    def client(self, gateway: Host, *, timeout: float = 30.0) -> Lethe:
        return Lethe(f"http://{gateway.address}:{PORT}", self.api_key, retry=Retry(times=1), timeout=timeout)

    def wait_for_gateway(self, gateway: Host) -> None:
        def answers() -> bool:
            try:
                with self.client(gateway, timeout=2) as lethe:
                    return lethe.http.get("/healthz").is_success
            except httpx.TransportError:
                return False

        eventually(answers, within=WITHIN)

    def look(self, statement: Select[T]) -> T | None:
        """Read one value from SQL, waiting while the database is unreachable."""

        def once() -> list[T | None]:
            try:
                with self.services.database.reading() as session:
                    return [session.scalar(statement)]
            except OperationalError:
                return []

        return eventually(once, within=WITHIN)[0]

    def lease_holder(self) -> str:
        """Return which dispatcher holds the lease."""
        return str(self.look(select(Lease.holder)) or "")

    def at_work(self) -> list[tuple[Host, Attempt]]:
        """Return all running attempts with their hosts."""
        return [(host, attempt) for host in self.named("worker") for attempt in host.attempts()]

    # The hosts

    def _part(self, name: str, number: int) -> Host:
        part = name.rstrip("123")
        module = ("tests.faults.gated_worker",) if part == "worker" else ("lethe.cli", part)
        command = [sys.executable, "-m", *module]
        return Host(self.network, name, number, self.folder, command)

    def _settings(self) -> Settings:
        return Settings(
            data_dir=self.folder / "operator",
            database_url=f"postgresql+psycopg://postgres@{self.database.address}:5432/postgres",
            redis_url=f"redis://:{self.password}@{self.queue.address}:6379/0",
            storage_url=f"file://{self.folder / 'storage'}",
            deployment_key_file=self.folder / "keys" / "deployment.key",
            signing_key_file=self.folder / "keys" / "signing.pem",
            create_keys=False,
            heartbeat_seconds=1,
            dead_after_seconds=6,
            max_attempts=50,
            retry_backoff_seconds=0.1,
            dispatch_interval_seconds=0.5,
            lease_seconds=4,
            requeue_after_seconds=20,
        )

    def _make_keys(self) -> None:
        vault.create(self.settings.deployment_key_path)
        vault.write_private(self.settings.signing_key_path, SigningKey.generate().to_pem().encode())

    def _database(self) -> Host:
        data = self.folder / "postgresql"
        data.mkdir()
        created = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.hosts.new_database", data],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        user, server = created.stdout.splitlines()[-2:]
        with (data / "pg_hba.conf").open("a") as access:
            access.write(f"host all all {self.network.subnet}.0/24 trust\n")
        number = 51
        command = [program("setpriv"), f"--reuid={user}", f"--regid={user}"]
        command += ["--clear-groups", server, "-D", str(data), "-k", ""]
        command += ["-h", self.network.address(number), "-c", "max_connections=300"]
        return Host(self.network, "database", number, self.folder, command)

    def _queue(self) -> Host:
        number, home = 52, self.folder / "valkey"
        home.mkdir()
        lines = [f"bind {self.network.address(number)}", f"requirepass {self.password}", f"dir {home}"]
        lines += ["port 6379", "appendonly yes", 'save ""', "loglevel warning"]
        vault.write_private(home / "valkey.conf", "\n".join(lines).encode())
        command = [valkey.find_server(), home / "valkey.conf"]
        return Host(self.network, "queue", number, self.folder, command)

    def _database_answers(self) -> bool:
        try:
            psycopg.connect(self.settings.database_url.replace("+psycopg", ""), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _queue_answers(self) -> bool:
        try:
            with Redis.from_url(self.settings.redis_url, socket_timeout=5) as client:
                return bool(client.ping())
        except RedisError:
            return False
