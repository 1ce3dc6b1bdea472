"""A fork server runs each job in a fresh process that dies with it and carries nothing over."""

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import eventually
from worker.fork_server import ForkServer

if sys.platform != "linux":
    pytest.skip("fork servers are used on Linux only", allow_module_level=True)

ROOT = Path(__file__).parents[3]
MODULE = "tests.unit.worker.forked_jobs"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    server = ForkServer(MODULE)
    yield server
    server.close()


def run(server: ForkServer, *arguments: str) -> int:
    """Run one child to its end and return its exit code."""
    child = server.run(*arguments)
    eventually(lambda: child.wait(1.0))
    assert child.returncode is not None
    return child.returncode


def server_of() -> psutil.Process:
    """Return the process of the fork server of these tests."""
    (server,) = [p for p in psutil.Process().children() if MODULE in p.cmdline()]
    return server


def start_sleeper(server: ForkServer, tmp_path: Path) -> psutil.Process:
    """Start a child that never ends, and return its process."""
    pid_file = tmp_path / "pid"
    server.run("sleep", str(pid_file))
    return psutil.Process(int(eventually(lambda: pid_file.exists() and pid_file.read_text())))


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_every_job_runs_in_a_process_of_its_own_from_one_server(server: ForkServer, tmp_path: Path) -> None:
    for name in ("first", "second"):
        assert run(server, "record", str(tmp_path / name)) == 0
    first, second = ((tmp_path / name).read_text().split() for name in ("first", "second"))
    assert first[0] != second[0], "the process ids are the same"
    assert first[1] == second[1] == str(server_of().pid)
    assert first[2] == second[2] == "1", "the second job saw a variable that the first one changed"


@pytest.mark.parametrize(("job", "code"), [("exit", 75), ("raise", 1), ("die", -signal.SIGKILL)])
def test_the_exit_code_of_a_child_arrives(server: ForkServer, job: str, code: int) -> None:
    assert run(server, job) == code
    assert run(server, "pass") == 0, "the server did not survive its child"


def test_a_child_gets_the_environment_of_the_moment(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.start()
    for value in ("before", "after"):
        monkeypatch.setenv("LETHE_SECRET", value)
        assert run(server, "environment", str(tmp_path / value)) == 0
        assert (tmp_path / value).read_text() == value


def test_files_that_the_children_had_locked_are_free_once_the_server_is_closed(
    server: ForkServer, tmp_path: Path
) -> None:
    locks = [tmp_path / str(number) for number in range(8)]
    for path in locks:
        server.run("lock", str(path))
    eventually(lambda: all(Path(f"{path}.taken").exists() for path in locks))
    server.close()
    for path in locks:
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_killed_child_ends_with_what_it_started(server: ForkServer, tmp_path: Path) -> None:
    child = server.run("family", str(tmp_path / "pid"))
    grandchild = psutil.Process(
        int(eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    )
    child.kill()
    assert child.returncode == -signal.SIGKILL
    eventually(lambda: has_ended(grandchild))
    assert run(server, "pass") == 0


def test_a_child_dies_with_its_server_and_the_next_job_gets_a_new_one(
    server: ForkServer, tmp_path: Path
) -> None:
    sleeper = start_sleeper(server, tmp_path)
    before = server_of()
    before.kill()
    eventually(lambda: has_ended(sleeper))
    assert run(server, "pass") == 0
    assert server_of().pid != before.pid


def test_closing_a_server_ends_its_child(server: ForkServer, tmp_path: Path) -> None:
    sleeper = start_sleeper(server, tmp_path)
    server.close()
    eventually(lambda: has_ended(sleeper))


def test_stop_signals_to_the_group_do_not_end_the_server(server: ForkServer) -> None:
    assert run(server, "pass") == 0
    before = server_of()
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(before.pid, number)
    assert run(server, "pass") == 0
    assert server_of().pid == before.pid


def test_an_idle_child_is_replaced_by_the_next_one(server: ForkServer, tmp_path: Path) -> None:
    """Also if the command to kill it arrives together with the one that starts it."""
    for round_ in range(20):
        server.run_idle("sleep", str(tmp_path / f"idle{round_}"))
        assert server.end_idle()
        assert not server.end_idle()
        server.run_idle("sleep", str(tmp_path / f"other{round_}"))
        child = server.run("exit")
        assert child.wait(30)
        assert child.returncode == 75


def test_an_idle_child_that_has_ended_is_not_killed(server: ForkServer, tmp_path: Path) -> None:
    server.run_idle("record", str(tmp_path / "ran"))
    eventually(lambda: (tmp_path / "ran").exists())
    child = server.run("exit")
    assert child.wait(30)
    assert child.returncode == 75
