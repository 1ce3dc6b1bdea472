"""Attempts are forked from a process that has imported everything, and find it as if they were the first."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests import eventually
from worker import preload
from worker.fork_server import ForkServer

if sys.platform != "linux":
    pytest.skip("fork servers are used on Linux only", allow_module_level=True)

ROOT = Path(__file__).parents[3]
MODULE = "tests.unit.worker.warm_jobs"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer(MODULE, env={**os.environ, "PYTHONPATH": str(ROOT)})
    yield server
    server.close()


def result_of(server: ForkServer, job: str, target: Path) -> Any:
    """Run one job and return what it wrote."""
    child = server.run(job, str(target))
    assert eventually(lambda: child.wait(1.0), within=120)
    assert child.returncode == 0
    return json.loads(target.read_text())


def test_a_job_leaves_nothing_for_the_next(server: ForkServer, tmp_path: Path) -> None:
    first = result_of(server, "leave", tmp_path / "first")
    second = result_of(server, "look", tmp_path / "second")
    assert second == first
    assert "LEFT_BEHIND" not in second["environment"]
    assert second["globals"] is None


def test_no_server_has_touched_cuda(server: ForkServer, tmp_path: Path) -> None:
    assert result_of(server, "look", tmp_path / "found")["cuda"] == [False, False]


_CUDA_CALLS = (
    "is_available",
    "device_count",
    "current_device",
    "init",
    "_lazy_init",
    "get_device_properties",
)


def test_the_imports_of_the_fork_servers_ask_nothing_of_cuda() -> None:
    """Even counting devices would make CUDA unusable in the children."""
    program = f"""
import sys, torch
calls = []
for name in {_CUDA_CALLS!r}:
    setattr(torch.cuda, name, lambda *_, name=name: calls.append(name))
from worker import attempt, fork_server
fork_server.serve = lambda *_, **__: None
attempt.serve(0, 0)
from worker.distributed import follower
follower.serve(0, 0)
sys.exit(f"called {{calls}}" if calls else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("where", "call", "answer"),
    [(torch.cuda, "is_initialized", True), (threading, "active_count", 2)],
)
def test_a_server_that_must_not_fork_ends(
    monkeypatch: pytest.MonkeyPatch, where: ModuleType, call: str, answer: int
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    preload.check_fork_is_safe()
    monkeypatch.setattr(where, call, lambda: answer)
    with pytest.raises(SystemExit, match="a fork server"):
        preload.check_fork_is_safe()


def test_children_compute_with_several_threads_and_agree(server: ForkServer, tmp_path: Path) -> None:
    """A child that waited for threads of the server, which a fork does not copy, would never end."""
    both = [result_of(server, "compute", tmp_path / name) for name in ("first", "second")]
    assert both[0]["sums"] == pytest.approx(both[1]["sums"], rel=1e-12)
    assert min(found["threads"] for found in both) > 1


def test_children_do_not_share_random_numbers(server: ForkServer, tmp_path: Path) -> None:
    both = [result_of(server, "random", tmp_path / name) for name in ("first", "second")]
    assert both[0]["random"] != both[1]["random"]
    assert both[0]["bytes"] != both[1]["bytes"]


def test_several_children_run_at_once_and_report_separately(server: ForkServer, tmp_path: Path) -> None:
    children = [server.run("look", str(tmp_path / str(number))) for number in range(3)]
    for child in reversed(children):
        assert eventually(partial(child.wait, 1.0), within=120)
    assert [child.returncode for child in children] == [0, 0, 0]
