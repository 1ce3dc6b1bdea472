"""Starting ranks: beside an attempt on one machine, or as the following half of a process group."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from app import logs, process
from app.clock import new_id
from app.settings import Settings
from worker.distributed.meeting import Meeting, of_process_group
from worker.distributed.reaching import tell_when_gone
from worker.pipeline.scratch import sweep, working_folder

log = logs.get("ranks")
COMMAND = ["-P", "-m", "worker.distributed.following"]
GRACE_SECONDS = 2.0
# A follower reads rows and adds them up: it has no database, no queue and no key to sign with.
_WITHHELD = frozenset({"LETHE_DATABASE_URL", "LETHE_REDIS_URL", "LETHE_SIGNING_KEY"})
PAUSE_SECONDS = 1.0
DRAIN_GRACE_SECONDS = 5.0  # rank 0 gives up first, and hands its job back


@contextmanager
def meeting(settings: Settings) -> Iterator[Meeting | None]:
    """Rank 0's: None when it works alone. Its followers on this machine are started, and end with it."""
    group = of_process_group(os.environ)
    if group is not None:
        yield group
        return
    if settings.nproc == 1:
        yield None
        return
    with working_folder(settings, new_id()) as folder:
        mine = Meeting(0, settings.nproc, 0, settings.nproc, file=str(folder.absolute() / "meeting"))
        followers = [_start(replace(mine, rank=rank, local_rank=rank)) for rank in range(1, settings.nproc)]
        try:
            yield mine
        finally:
            _end(followers)
    sweep(settings)  # one that was killed leaves its folder


def _start(its: Meeting) -> subprocess.Popen[bytes]:
    ours = {name: value for name, value in os.environ.items() if name not in _WITHHELD}
    return process.spawn([sys.executable, *COMMAND], env={**ours, **its.environment()})


def _end(followers: list[subprocess.Popen[bytes]]) -> None:
    """Told to end they do; one that is lost in a computation is not waited for."""
    for follower in followers:
        if not process.wait(follower, GRACE_SECONDS):
            process.kill(follower)


def follow(settings: Settings) -> None:
    """A following rank of a process group: attempt after attempt, each in a fresh process."""
    stopping, alone = threading.Event(), threading.Event()

    def note(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    tell_when_gone(os.environ, settings.rank_timeout_seconds, alone.set)
    sweep(settings)
    while not stopping.is_set() and not alone.is_set():
        child = process.spawn([sys.executable, *COMMAND])
        while not process.wait(child, PAUSE_SECONDS):
            if alone.is_set():
                process.kill(child)
            elif stopping.is_set():
                _let_finish(child, settings.drain_seconds)
        if child.returncode != 0 and not stopping.is_set():
            log.warning("rank ended", end=process.describe_end(child.returncode))
            stopping.wait(PAUSE_SECONDS)  # whatever it was may be so for the next one too
        sweep(settings)
    if alone.is_set():  # whoever keeps us running starts a group with the rank 0 that comes
        log.warning("rank 0 is gone")
        raise SystemExit(1)


def _let_finish(child: subprocess.Popen[bytes], drain_seconds: float) -> None:
    """One that waits for an attempt ends at once; in one, it is needed for as long as rank 0 is given."""
    log.info("asked to stop, the attempt may finish")
    child.terminate()
    if not process.wait(child, drain_seconds + DRAIN_GRACE_SECONDS):
        process.kill(child)
