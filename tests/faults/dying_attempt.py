"""Run attempts that kill themselves at a named place: `before:module.function`, `after:…` or `at:seconds`.

A function may also be a method, and `#2` after it means its second call.

    python -m tests.faults.dying_attempt

Each line of standard input is `[PLACE, WITNESS, JOB, TOKEN]`. The answer is the exit code of the attempt's
process. Each attempt is forked from this process, so that torch is imported only once. The weights without
noise are also written to the file WITNESS, so that a test can search the data folder for them.
"""

import itertools
import json
import os
import pkgutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

from worker import attempt
from worker.batch import release
from worker.jobs import JOBS


def die(*_: object) -> None:
    """Kill this process with SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def arm(place: str) -> None:
    """Arrange for this process to die at a place."""
    when, _, where = place.partition(":")
    if when == "at":
        threading.Timer(float(where), die).start()
        return
    where, _, call = where.partition("#")
    owner_name, _, name = where.rpartition(".")
    owner = pkgutil.resolve_name(owner_name)
    original, calls = getattr(owner, name), itertools.count(1)

    def armed(*args: Any, **kwargs: Any) -> Any:
        doomed = next(calls) == int(call or 1)
        if doomed and when == "before":
            die()
        result = original(*args, **kwargs)
        if doomed:
            die()
        return result

    setattr(owner, name, armed)


def witness_noise(witness: Path) -> None:
    """Write the weights to a file before noise is added to them."""
    original = release.noised

    def witnessed(w: Any, sigma: float) -> Any:
        witness.write_bytes(w.numpy().tobytes())
        return original(w, sigma)

    release.noised = witnessed


def run_attempt(place: str, witness: str, job: str, token: str) -> int:
    """Run one attempt and return its exit code, if it survives."""
    os.dup2(2, 1)  # standard output is reserved for exit codes
    witness_noise(Path(witness))
    arm(place)
    try:
        attempt.main(UUID(job), UUID(token))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


if __name__ == "__main__":
    assert JOBS
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(run_attempt(*json.loads(line)))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
