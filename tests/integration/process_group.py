"""Shared by tests of torchrun: the command from docs/scaling.md and the processes it starts."""

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from app.core import process
from app.core.settings import Settings
from app.local.supervisor import environment
from tests import eventually, reserved_port
from tests.faults.live import JOB_SECONDS
from worker.distributed.follower import PROCESS_NAME

MASTER_PORT = 29500


def command(*, nnodes: int, nproc: int, node_rank: int, address: str, port: int = MASTER_PORT) -> list[str]:
    """Return the torchrun command, with the programs that are installed beside this Python."""
    programs = {
        name: shutil.which(name, path=str(Path(sys.executable).parent)) for name in ("torchrun", "lethe")
    }
    assert all(programs.values()), programs
    return [
        str(programs["torchrun"]),
        *("--nnodes", str(nnodes)),
        *("--nproc-per-node", str(nproc)),
        *("--node-rank", str(node_rank)),
        *("--master-addr", address),
        *("--master-port", str(port)),
        "--no-python",
        str(programs["lethe"]),
        "worker",
    ]


def reserve_two_ports(reservations: contextlib.ExitStack) -> int:
    """Reserve a port and its successor, and return the first: torchrun uses it, and the ranks the second."""

    def look() -> int:
        with contextlib.ExitStack() as both:
            port = both.enter_context(reserved_port())
            with contextlib.suppress(OSError, OverflowError):
                both.enter_context(reserved_port(port + 1))
                reservations.push(both.pop_all())
                return port
        return 0

    return eventually(look)


class ProcessGroup:
    """Two ranks on this machine, started by torchrun."""

    def __init__(self, settings: Settings, log: Path) -> None:
        self._log, self._queue = log, settings.queue_name
        self._reservations = contextlib.ExitStack()
        port = reserve_two_ports(self._reservations)
        with log.open("wb") as out:
            self.torchrun = process.spawn(
                command(nnodes=1, nproc=2, node_rank=0, address="127.0.0.1", port=port),
                env=environment(settings, "worker"),
                stdout=out,
                stderr=out,
            )

    def followers(self) -> list[psutil.Process]:
        """Return the processes of ranks other than rank 0."""
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.torchrun.pid).children(recursive=True)
            return [it for it in children if name_of(it) == PROCESS_NAME]
        return []

    def follower(self) -> psutil.Process:
        """Wait until rank 1 has exactly one process, and that one waits for the next attempt."""

        def look() -> psutil.Process | None:
            found = self.followers()
            return found[0] if len(found) == 1 and not has_joined(found[0]) else None

        found = eventually(look, within=JOB_SECONDS)
        assert found is not None
        return found

    def joined(self, is_over: Callable[[], bool]) -> psutil.Process | None:
        """Wait until rank 1 has joined an attempt, and return its process. None: the job was over before."""

        def look() -> list[psutil.Process | None]:
            return list(filter(has_joined, self.followers()))[:1] or [None] * is_over()

        return eventually(look, within=JOB_SECONDS, every=0.001)[0]

    def left(self) -> list[psutil.Process]:
        """Return every process of a rank of this group, including orphans, but not torchrun itself."""
        return [it for it in psutil.process_iter() if _is_rank(it, self._queue)]

    def end(self, within: float) -> list[psutil.Process]:
        """Wait until torchrun has ended, and return the ranks that are still running."""
        self.torchrun.wait(within)
        with contextlib.suppress(AssertionError):
            eventually(lambda: not self.left(), within=within)
        return self.left()

    def said(self, *words: str) -> bool:
        """Say whether a line of the log contains all these words."""
        lines = self._log.read_text(errors="replace").splitlines()
        return any(all(word in line for word in words) for line in lines)

    def close(self) -> None:
        """Kill torchrun and every rank that is left."""
        process.kill(self.torchrun)
        for it in self.left():
            with contextlib.suppress(psutil.NoSuchProcess):
                it.kill()
        self._reservations.close()


def _is_rank(it: psutil.Process, queue: str) -> bool:
    """Recognise a rank by its environment. That of a zombie is empty."""
    try:
        variables = it.environ()
    except psutil.Error:
        return False
    return "RANK" in variables and variables.get("LETHE_QUEUE_NAME") == queue


def name_of(it: psutil.Process) -> str:
    """Return the name of a process, or nothing if it has ended."""
    try:
        return str(it.name())
    except psutil.Error:
        return ""


def has_joined(it: psutil.Process) -> bool:
    """Say whether a rank has joined an attempt: it then has files open in its scratch folder."""
    try:
        return any("/scratch/" in file.path for file in it.open_files())
    except psutil.Error:
        return False


@contextlib.contextmanager
def process_group(settings: Settings, log: Path) -> Iterator[ProcessGroup]:
    """Run a process group during the block."""
    group = ProcessGroup(settings, log)
    try:
        yield group
    finally:
        group.close()
