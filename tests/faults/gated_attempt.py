"""A fork server whose attempts wait at a gate: a file that must exist before they go on.

    python -m tests.faults.gated_attempt --serve COMMANDS REPLIES

An attempt takes a moment. A test that wants to disturb one removes the file, and puts it back afterwards.
"""

import os
import sys
import threading
from pathlib import Path
from typing import Any

from worker import attempt, jobs

GATE = "TEST_ATTEMPT_GATE"
# Attempts do not search the current folder for modules, so a worker that uses this one needs it on the path.
PYTHONPATH = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])


def wait_at_gate() -> None:
    """Wait until the gate is open."""
    while not Path(os.environ[GATE]).exists():
        threading.Event().wait(0.01)


def gated(function: Any) -> Any:
    """Return the function, behind the gate."""

    def behind_gate(*args: Any, **kwargs: Any) -> Any:
        wait_at_gate()
        return function(*args, **kwargs)

    return behind_gate


if __name__ == "__main__":
    vars(jobs)["JOBS"] = {kind: gated(function) for kind, function in jobs.JOBS.items()}
    attempt.serve(int(sys.argv[2]), int(sys.argv[3]))
