"""A fork server whose attempts also write the weights without noise to a folder outside the service.

    python -m tests.chaos.witness_attempt --serve COMMANDS REPLIES

The checks search the files of the service for them.
"""

import os
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

WITNESSES = "TEST_WITNESSES"


def witness_noise() -> None:
    """Write the weights of every draw to a file of their own before noise is added to them."""
    from worker.batch import release  # here, because it imports torch and the checks do not need it

    original = release.noised

    def witnessed(w: Any, sigma: float) -> Any:
        Path(os.environ[WITNESSES], uuid4().hex).write_bytes(w.numpy().tobytes())
        return original(w, sigma)

    release.noised = witnessed


if __name__ == "__main__":
    from worker import attempt

    witness_noise()
    attempt.serve(int(sys.argv[2]), int(sys.argv[3]))
