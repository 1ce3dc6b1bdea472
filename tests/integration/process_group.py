"""What tests of torchrun share: its command as docs/scaling.md has it, and the processes it brings about."""

import contextlib
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from app import process
from app.settings import Settings
from app.supervisor import environment
from tests import eventually
from tests.faults.live import JOB_SECONDS

FOLLOWER = "worker.distributed.following"
MASTER_PORT = 29500


def command(*, nnodes: int, nproc: int, node_rank: int, address: str, port: int = MASTER_PORT) -> list[str]:
    """Torchrun and `lethe` are those beside this Python."""
    found = {
        name: shutil.which(name, path=str(Path(sys.executable).parent)) for name in ("torchrun", "lethe")
    }
    assert all(found.values()), found
    return [
        str(found["torchrun"]),
        *("--nnodes", str(nnodes)),
        *("--nproc-per-node", str(nproc)),
        *("--node-rank", str(node_rank)),
        *("--master-addr", address),
        *("--master-port", str(port)),
        "--no-python",
        str(found["lethe"]),
        "worker",
    ]


def free_ports() -> int:
    """A port that is free together with the next one, where the ranks meet beside torchrun."""

    def look() -> int:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port
        return 0

    return eventually(look)


class ProcessGroup:
    """Two ranks on this machine, by torchrun."""

    def __init__(self, settings: Settings, log: Path) -> None:
        self._log, self._queue = log, settings.queue_name
        with log.open("wb") as out:
            self.torchrun = process.spawn(
                command(nnodes=1, nproc=2, node_rank=0, address="127.0.0.1", port=free_ports()),
                env=environment(settings, "worker"),
                stdout=out,
                stderr=out,
            )

    def followers(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.torchrun.pid).children(recursive=True)
            return [it for it in children if FOLLOWER in words_of(it)]
        return []

    def follower(self) -> psutil.Process:
        """Rank 1's process that waits for the next attempt; one of the last attempt may be about to end."""

        def look() -> psutil.Process | None:
            found = self.followers()
            return found[0] if len(found) == 1 and not has_joined(found[0]) else None

        found = eventually(look, within=JOB_SECONDS)
        assert found is not None
        return found

    def joined(self) -> psutil.Process:
        """Rank 1's process in an attempt under way."""

        def look() -> psutil.Process | None:
            return next(filter(has_joined, self.followers()), None)

        found = eventually(look, within=JOB_SECONDS, every=0.001)
        assert found is not None
        return found

    def left(self) -> list[psutil.Process]:
        """Every rank on this machine, torchrun itself apart, whoever has adopted it."""
        return [it for it in psutil.process_iter() if _is_rank(it, self._queue)]

    def end(self, within: float) -> list[psutil.Process]:
        """Who is left when torchrun, which was told to, has ended."""
        self.torchrun.wait(within)
        with contextlib.suppress(AssertionError):
            eventually(lambda: not self.left(), within=within)
        return self.left()

    def said(self, *words: str) -> bool:
        """Whether one line of their log has all these words."""
        lines = self._log.read_text(errors="replace").splitlines()
        return any(all(word in line for word in words) for line in lines)

    def close(self) -> None:
        """However the test went: nothing stays."""
        process.kill(self.torchrun)
        for it in self.left():
            with contextlib.suppress(psutil.NoSuchProcess):
                it.kill()


def _is_rank(it: psutil.Process, queue: str) -> bool:
    """By its environment; that of one that is dead, and not buried yet, is empty."""
    try:
        found = it.environ()
    except psutil.Error:
        return False
    return "RANK" in found and found.get("LETHE_QUEUE_NAME") == queue


def words_of(it: psutil.Process) -> list[str]:
    try:
        return list(it.cmdline())
    except psutil.Error:  # it ended meanwhile
        return []


def has_joined(it: psutil.Process) -> bool:
    """A following rank makes its working folder when all ranks have found each other."""
    try:
        return any("/scratch/" in file.path for file in it.open_files())
    except psutil.Error:
        return False


@contextlib.contextmanager
def process_group(settings: Settings, log: Path) -> Iterator[ProcessGroup]:
    group = ProcessGroup(settings, log)
    try:
        yield group
    finally:
        group.close()
