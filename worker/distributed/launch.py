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
from worker.pipeline.scratch import sweep, working_folder

log = logs.get("ranks")
COMMAND = ["-P", "-m", "worker.distributed.following"]
GRACE_SECONDS = 2.0
PAUSE_SECONDS = 1.0


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
    return process.spawn([sys.executable, *COMMAND], env={**os.environ, **its.environment()})


def _end(followers: list[subprocess.Popen[bytes]]) -> None:
    """Told to end they do; one that is lost in a computation is not waited for."""
    for follower in followers:
        if not process.wait(follower, GRACE_SECONDS):
            process.kill(follower)


def follow(settings: Settings) -> None:
    """A following rank of a process group: attempt after attempt, each in a fresh process."""
    stopping = threading.Event()

    def note(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    sweep(settings)
    while not stopping.is_set():
        child = process.spawn([sys.executable, *COMMAND])
        while not process.wait(child, PAUSE_SECONDS):
            if stopping.is_set():
                process.kill(child)
        if child.returncode != 0:
            log.warning("rank ended", end=process.describe_end(child.returncode))
        sweep(settings)
