"""A fork server whose jobs are small, for the tests of `worker.fork_server`."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from worker import fork_server

jobs_seen: list[str] = []


def run(job: str, argument: str = "") -> None:
    """Do what the job's name says."""
    jobs_seen.append(job)
    if job == "record":
        Path(argument).write_text(f"{os.getpid()} {os.getppid()} {len(jobs_seen)}")
    elif job == "environment":
        Path(argument).write_text(os.environ["LETHE_SECRET"])
    elif job == "exit":
        sys.exit(75)
    elif job == "raise":
        raise ValueError("on purpose")
    elif job == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif job == "lock":
        with Path(argument).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            Path(f"{argument}.taken").touch()
            threading.Event().wait()
    elif job in ("sleep", "family"):
        sleeper = subprocess.Popen(["sleep", "600"]) if job == "family" else None
        partial = Path(f"{argument}.partial")
        partial.write_text(str(sleeper.pid if sleeper else os.getpid()))
        partial.rename(argument)
        threading.Event().wait()


if __name__ == "__main__":
    fork_server.serve(run, int(sys.argv[2]), int(sys.argv[3]), name=lambda job, _="": f"test {job}")
