"""`lethe up` as a user runs it: with real processes and signals."""

import itertools
import os
import re
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from pydantic import SecretStr

from app.core.settings import Settings, load_settings
from app.local.supervisor import Child, environment
from tests import eventually

pytestmark = pytest.mark.slow

LETHE = str(Path(sysconfig.get_path("scripts"), "lethe"))
PARTS = ("gateway", "dispatcher", "worker")
START_SECONDS = 180.0  # imports are slow on a busy machine


class Up:
    """One `lethe up` on a data folder, with its output in files."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.data = folder / "data"
        self._out = folder / f"out-{time.monotonic_ns()}"
        self._err = self._out.with_suffix(".err")
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [LETHE, "up", "--data-dir", str(self.data), "--port", str(port)],
                cwd=folder,
                env={name: value for name, value in os.environ.items() if not name.startswith("LETHE_")},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # its own process group, as in a terminal
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def address(self) -> str:
        """Return the URL, once it is printed."""

        def look() -> str:
            assert self.process.poll() is None, f"it ended: {self.out}{self.err}"
            line = re.search(r"Lethe is running at (http://\S+)", self.out)
            return line[1] if line else ""

        return eventually(look, within=START_SECONDS)

    def key(self) -> str | None:
        shown = re.findall(r"API key\s+(lethe_\S+)", self.out)
        assert len(shown) <= 1
        return shown[0] if shown else None

    def children(self) -> dict[str, psutil.Process]:
        """Return the running child processes by part."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            try:
                words = child.cmdline()
            except psutil.Error:
                continue
            if words and child.status() != psutil.STATUS_ZOMBIE:
                found["queue" if "unixsocket" in words[-1] else words[-1]] = child
        return found

    def descendants(self) -> list[psutil.Process]:
        return list(psutil.Process(self.process.pid).children(recursive=True))

    def end(self) -> None:
        """Kill the process if it still runs. Its children die with it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    # A file in the current directory with the name of our package must not be imported instead of it.
    (tmp_path / "app.py").write_text("raise SystemExit('the wrong app was imported')")
    return tmp_path


@pytest.fixture
def up(home: Path) -> Iterator[Up]:
    running = Up(home)
    yield running
    running.end()


def gone(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


def status(url: str, key: str | None = None) -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        return httpx.get(url, headers=headers, timeout=60, trust_env=False).status_code
    except httpx.HTTPError:
        return 0


def test_it_serves_and_shows_a_working_key_on_the_first_start_only(up: Up, home: Path) -> None:
    address = up.address()
    assert status(f"{address}/readyz") == 200
    assert set(up.children()) == {"queue", *PARTS}
    key = up.key()
    assert key is not None
    assert status(f"{address}/v1/api-keys") == 401
    assert status(f"{address}/v1/api-keys", key) == 200
    assert str(up.data) in up.out
    assert key not in up.err

    up.process.terminate()
    assert up.process.wait(START_SECONDS) == 0
    again = Up(home)
    try:
        address = again.address()
        assert again.key() is None
        assert status(f"{address}/v1/api-keys", key) == 200
    finally:
        again.end()


def test_what_it_keeps_is_its_owners_alone(up: Up) -> None:
    up.address()
    assert up.data.stat().st_mode & 0o777 == 0o700
    readable = [path for path in up.data.rglob("*") if path.lstat().st_mode & 0o077]
    assert readable == []


def test_a_second_one_on_the_same_folder_is_refused_in_one_line(up: Up, home: Path) -> None:
    address = up.address()
    second = Up(home)
    try:
        assert second.process.wait(START_SECONDS) == 2
    finally:
        second.end()
    assert second.out == ""
    assert second.err.count("\n") == 1
    assert str(up.data) in second.err
    assert str(up.process.pid) in second.err
    assert status(f"{address}/readyz") == 200


def test_every_killed_child_is_started_again(up: Up) -> None:
    address = up.address()
    before = up.children()
    for part in ("worker", "dispatcher", "gateway", "queue"):
        before[part].kill()

    def all_new() -> bool:
        now = up.children()
        return set(now) == set(before) and all(now[part].pid != before[part].pid for part in before)

    eventually(all_new, within=START_SECONDS)
    eventually(lambda: status(f"{address}/readyz") == 200, within=START_SECONDS)
    assert "killed by SIGKILL" in up.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_everything_in_order(up: Up, number: signal.Signals) -> None:
    up.address()
    family = up.descendants()
    os.killpg(up.process.pid, number)  # to the whole group, as a terminal does
    assert up.process.wait(START_SECONDS) == 0
    eventually(lambda: gone(family))
    assert "did not stop in time" not in up.err
    assert "will be restarted" not in up.err
    assert not (up.data / "redis" / "redis.sock").exists()


def test_a_signal_during_the_start_stops_it_too(up: Up) -> None:
    eventually(lambda: (up.data / "lethe.lock").exists(), within=START_SECONDS)
    eventually(lambda: "started" in up.err, within=START_SECONDS)
    family = up.descendants()
    up.process.terminate()
    assert up.process.wait(START_SECONDS) == 0
    eventually(lambda: gone(family))


def test_a_killed_supervisor_leaves_no_child_and_no_lock(up: Up, home: Path) -> None:
    up.address()
    family = up.descendants()
    up.process.kill()
    up.process.wait()
    eventually(lambda: gone(family))
    again = Up(home)
    try:
        assert status(f"{again.address()}/readyz") == 200
    finally:
        again.end()


def test_a_port_in_use_is_refused_in_one_line(home: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = Up(home, port=port)
        try:
            assert refused.process.wait(START_SECONDS) == 2
        finally:
            refused.end()
    assert refused.err.count("\n") == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in refused.err


def test_children_get_every_setting_and_only_the_worker_the_signing_key(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path,
        port=1234,
        public_certificates=True,
        heartbeat_seconds=1.5,
        signing_key=SecretStr("secret"),
        deployment_key_file=tmp_path / "key",
    )
    for part in PARTS:
        given = environment(settings, part)
        assert given["PATH"] == os.environ["PATH"]
        seen = load_settings({name: value for name, value in given.items() if name.startswith("LETHE_")})
        assert seen == settings.model_copy(
            update={} if part == "worker" else {"signing_key": SecretStr("")},
        )


def test_a_child_that_keeps_ending_waits_longer_until_it_is_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 1000.0}
    monkeypatch.setattr(time, "monotonic", lambda: clock["now"])
    starts: list[float] = []

    class Ended:
        pid, code = 1, 1

        def poll(self) -> int | None:
            return self.code

    def start() -> Ended:
        starts.append(clock["now"])
        return Ended()

    child = Child("part", start)  # type: ignore[arg-type]
    child.start()
    while len(starts) < 10:
        child.check()
        clock["now"] += 0.01
    waits = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10], abs=0.05)

    monkeypatch.setattr(Ended, "code", None)
    clock["now"] += 61
    child.check()
    monkeypatch.setattr(Ended, "code", 1)
    steady = clock["now"]
    while len(starts) < 11:
        child.check()
        clock["now"] += 0.01
    assert starts[-1] - steady == pytest.approx(0.2, abs=0.05)
