"""Attempts that die by SIGKILL at a named place: `before:module.function`, `after:…`, or `at:seconds`.

    python -m tests.faults.dying_attempt

Each line of standard input, `[PLACE, WITNESS, JOB, TOKEN]`, is answered by how the attempt's process ended.
It is forked from this one, so that torch is imported once for all of them. Un-noised weights are written to
WITNESS, outside the data folder, so that a test can look for them there.
"""

import importlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

from worker import attempt
from worker.pipeline import release, run


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def arm(place: str) -> None:
    when, _, where = place.partition(":")
    if when == "at":
        threading.Timer(float(where), die).start()
        return
    module_name, _, name = where.rpartition(".")
    module = importlib.import_module(module_name)
    original = getattr(module, name)

    def armed(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            die()
        original(*args, **kwargs)
        die()

    setattr(module, name, armed)


def witness_noise(witness: Path) -> None:
    original = release.noised

    def seen(w: Any, sigma: float) -> Any:
        witness.write_bytes(w.numpy().tobytes())
        return original(w, sigma)

    release.noised = seen


def one(place: str, witness: str, job: str, token: str) -> int:
    os.dup2(2, 1)  # standard output is for answers
    witness_noise(Path(witness))
    arm(place)
    try:
        attempt.main(UUID(job), UUID(token))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


if __name__ == "__main__":
    assert run.JOBS
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(one(*json.loads(line)))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
