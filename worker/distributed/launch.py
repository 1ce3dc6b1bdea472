"""Starting and supervising follower processes, beside an attempt or as ranks of a torchrun group."""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from app.core import logging, process
from app.core.clock import new_id
from app.core.settings import Settings
from worker.data.scratch import sweep, working_folder
from worker.distributed.rendezvous import Rendezvous, process_group, watch_rank_0
from worker.fork_server import ChildProcess, ForkServer

log = logging.get_logger("ranks")
FOLLOWER_MODULE = "worker.distributed.follower"
GRACE_SECONDS = 2.0
# A follower sums over rows. It needs no database, no queue and no signing key.
_WITHHELD = frozenset({"LETHE_DATABASE_URL", "LETHE_REDIS_URL", "LETHE_SIGNING_KEY"})
POLL_SECONDS = 1.0
DRAIN_GRACE_SECONDS = 5.0  # longer than rank 0 waits, so that rank 0 can hand its job back first


class Followers:
    """The follower processes of one machine, forked by a server that never had the secrets they do not need.

    The server starts with the first follower, or earlier if `start` is called.
    """

    def __init__(self, module: str = FOLLOWER_MODULE) -> None:
        self._module = module
        self._server: ForkServer | None = None

    def start(self) -> None:
        """Start the server, which then imports what followers need."""
        if self._server is None:
            self._server = ForkServer(self._module, env=_environment())
        self._server.start()

    def run(self, place: Rendezvous | None = None) -> ChildProcess:
        """Start the follower of one rank. Without a place, the environment names it, as under torchrun."""
        self.start()
        assert self._server is not None
        return self._server.run(env=_environment() | ({} if place is None else place.environment()))

    def close(self) -> None:
        """End the server and its followers."""
        if self._server is not None:
            self._server.close()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _WITHHELD}


@contextmanager
def open_rendezvous(settings: Settings, followers: Followers) -> Iterator[Rendezvous | None]:
    """Yield where rank 0 meets its followers, or None if it works alone.

    With `nproc` above 1, followers are started on this machine and end with the block. In a torchrun group
    they run already.
    """
    group = process_group(os.environ)
    if group is not None or settings.nproc == 1:
        yield group
        return
    with working_folder(settings, new_id()) as folder:
        rank_0 = Rendezvous(0, settings.nproc, 0, settings.nproc, file=str(folder.absolute() / "rendezvous"))
        started = [
            followers.run(replace(rank_0, rank=rank, local_rank=rank)) for rank in range(1, settings.nproc)
        ]
        try:
            yield rank_0
        finally:
            _end_followers(started)
    sweep(settings)  # a killed follower leaves its folder behind


def _end_followers(followers: Sequence[ChildProcess]) -> None:
    """Wait briefly for the followers, whose attempt is over, and kill those still computing.

    One that rank 0 never met has not joined an attempt and ends when asked to.
    """
    for follower in followers:
        follower.terminate()
    for follower in followers:
        if not follower.wait(GRACE_SECONDS):
            follower.kill()


def follow(settings: Settings) -> None:
    """Serve attempt after attempt as a following rank of a torchrun group, each in a fresh process.

    Ends when asked to stop. If rank 0 is gone, exits with status 1 so that a supervisor starts a new group.
    """
    stopping, rank_0_lost = threading.Event(), threading.Event()

    def request_stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, request_stop)
    watch_rank_0(os.environ, settings.rank_timeout_seconds, rank_0_lost.set)
    sweep(settings)
    followers = Followers()
    while not stopping.is_set() and not rank_0_lost.is_set():
        child = followers.run()
        while not child.wait(POLL_SECONDS):
            if rank_0_lost.is_set():
                child.kill()
            elif stopping.is_set():
                _let_finish(child, settings.drain_seconds)
        assert child.returncode is not None
        if child.returncode != 0 and not stopping.is_set():
            log.warning("rank ended", end=process.describe_end(child.returncode))
            stopping.wait(POLL_SECONDS)  # the next one may fail for the same reason
        sweep(settings)
    followers.close()
    if rank_0_lost.is_set():
        log.warning("rank 0 is gone")
        raise SystemExit(1)


def _let_finish(child: ChildProcess, drain_seconds: float) -> None:
    """Ask a follower to stop. One without an attempt ends at once; one with an attempt may finish it."""
    log.info("asked to stop, the attempt may finish")
    child.terminate()
    if not child.wait(drain_seconds + DRAIN_GRACE_SECONDS):
        child.kill()
