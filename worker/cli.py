"""The worker's verb of the `lethe` command."""

import os
import signal
from importlib.util import find_spec
from typing import Annotated

import typer

from app import process
from app.startup import refuse, settings_or_exit
from worker.distributed import meeting, reaching


def worker(
    rotate_signing_key: Annotated[
        bool,
        typer.Option("--rotate-signing-key", help="Let the signing key given now replace the old one; end."),
    ] = False,
    nproc: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Processes of this machine that share one job's rows."),
    ] = None,
) -> None:
    """Take jobs from the queue, each in a fresh process of its own.

    Started by torchrun, rank 0 takes them and the other ranks do their share of each.
    """
    group = meeting.of_process_group(os.environ)
    if group is not None:
        process.die_with_parent()  # one that outlived torchrun would take part in the next group's jobs
    if nproc is not None:
        os.environ["LETHE_NPROC"] = str(nproc)  # its attempts read it there
    settings = settings_or_exit()
    if find_spec("torch") is None:
        raise refuse("the worker needs torch: pip install 'lethe[worker]'")
    from worker import main
    from worker.distributed import launch

    if group is not None and settings.nproc > 1:
        raise refuse("LETHE_NPROC is for one machine; in a process group let torchrun start all processes")
    if group is not None and group.rank > 0:
        launch.follow(settings)
        return
    if group is not None:  # torchrun may have ended before we asked to die with it
        reaching.tell_when_gone(os.environ, settings.rank_timeout_seconds, _end_at_once)
    (main.rotate_signing_key if rotate_signing_key else main.run)(settings)


def _end_at_once() -> None:
    """The attempt under way dies with us, and is tried again by whoever comes."""
    os.kill(os.getpid(), signal.SIGKILL)
