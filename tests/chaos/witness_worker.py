"""Run `lethe worker` with attempts that leave their weights without noise in a folder for the checks."""

import sys

from lethe.cli.main import main
from worker import main as worker_main

if __name__ == "__main__":
    worker_main.ATTEMPT_MODULE = "tests.chaos.witness_attempt"
    sys.argv[1:1] = ["worker"]
    main()
