"""Run `lethe worker` with attempts that wait at a gate (`tests.faults.gated_attempt`)."""

import sys

from lethe.cli.main import main
from worker import main as worker_main

if __name__ == "__main__":
    worker_main.ATTEMPT_MODULE = "tests.faults.gated_attempt"
    sys.argv[1:1] = ["worker"]
    main()
