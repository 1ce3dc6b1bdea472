"""Run an attempt that stays in one stage until it is stopped.

The stage `solve` checks for cancellation, `resolve` does not.

python -m tests.faults.slow_attempt STAGE JOB TOKEN
"""

import sys
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

from worker import attempt
from worker.batch import run
from worker.context import JobContext
from worker.engine import trust_region


def step_without_progress(*_: Any) -> None:
    """Stand in for a solver step that changes nothing."""
    threading.Event().wait(0.05)


def resolve_forever(context: JobContext, _: Path) -> None:
    """Stand in for a stage that never checks whether its batch was cancelled."""
    context.services.storage.write(context.path("part.parquet"), [b"somebody's rows"])
    threading.Event().wait()


if __name__ == "__main__":
    stage, job, token = sys.argv[1:]
    if stage == "solve":
        trust_region._Run.advance = step_without_progress  # type: ignore[method-assign, assignment]
    else:
        vars(run)["resolve"] = resolve_forever
    attempt.main(UUID(job), UUID(token))
