"""One attempt that stays at a stage until it is told to end: `solve` asks whether to, `resolve` does not.

python -m tests.faults.slow_attempt STAGE JOB TOKEN
"""

import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from worker import attempt
from worker.engine import trust_region
from worker.pipeline import run
from worker.pipeline.context import Context


def slowly(*_: Any) -> None:
    """A solver's step that comes to nothing."""
    time.sleep(0.05)


def never(context: Context, _: Path) -> None:
    """Rows are being rewritten, and nobody looks up."""
    context.services.storage.write(context.path("part.parquet"), [b"somebody's rows"])
    time.sleep(300)


if __name__ == "__main__":
    stage, job, token = sys.argv[1:]
    if stage == "solve":
        trust_region._Run.advance = slowly  # type: ignore[method-assign]
    else:
        run.resolve = never  # type: ignore[assignment]
    attempt.main(UUID(job), UUID(token))
