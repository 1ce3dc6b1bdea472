"""The `lethe worker` command."""

import os
import signal
from importlib.util import find_spec
from typing import Annotated

import typer

from app.core import process
from app.startup import refuse, settings_or_exit
from worker.distributed import rendezvous

# The extra `worker` in pyproject.toml.
WORKER_PACKAGES = {
    "mpmath": ">=1.3",
    "numpy": ">=2",
    "onnx": ">=1.18",
    "onnxruntime": ">=1.22",
    "pillow": ">=11",
    "pyarrow": ">=20",
    "safetensors": ">=0.5",
    "scipy": ">=1.15",
    "tokenizers": ">=0.21",
    "torch": ">=2.7",
}
_IMPORT_NAMES = {"pillow": "PIL"}


def missing_packages() -> list[str]:
    """Return the packages that the worker needs and that are not installed."""
    return [name for name in WORKER_PACKAGES if find_spec(_IMPORT_NAMES.get(name, name)) is None]


def worker(
    rotate_signing_key: Annotated[
        bool,
        typer.Option(
            "--rotate-signing-key",
            help="Replace the signing key in use with the configured one, then exit.",
        ),
    ] = False,
    nproc: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            min=1,
            max=1024,
            help="Number of processes on this machine that share a job's rows.",
        ),
    ] = None,
) -> None:
    """Take jobs from the queue and run each one in a fresh process.

    Under torchrun, rank 0 takes the jobs and the other ranks compute their share of each.
    """
    group = rendezvous.process_group(os.environ)
    if group is not None:
        process.die_with_parent()  # a rank that outlived torchrun would join the next group's jobs
    if nproc is not None:
        os.environ["LETHE_NPROC"] = str(nproc)  # attempts read it from there
    settings = settings_or_exit()
    if missing := missing_packages():
        verb = "package is" if len(missing) == 1 else "packages are"
        raise refuse(
            f"the worker cannot start, because the following {verb} not installed: {', '.join(missing)}. "
            "To install what is missing, run: "
            f"pip install {' '.join(repr(name + WORKER_PACKAGES[name]) for name in missing)}"
        )
    from worker import main
    from worker.distributed import launch

    if group is not None and settings.nproc > 1:
        raise refuse(
            "LETHE_NPROC cannot be combined with torchrun. Unset it, and set the number of processes with "
            "torchrun's --nproc-per-node."
        )
    if group is not None and group.rank > 0:
        launch.follow(settings)
        return
    if group is not None:  # torchrun may have ended before `die_with_parent` took effect
        rendezvous.watch_rank_0(os.environ, settings.rank_timeout_seconds, _kill_this_process)
    (main.rotate_signing_key if rotate_signing_key else main.run)(settings)


def _kill_this_process() -> None:
    """End at once. The attempt under way dies too, and another worker will run its job again."""
    os.kill(os.getpid(), signal.SIGKILL)
