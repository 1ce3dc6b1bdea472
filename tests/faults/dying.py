"""Attempts that are killed at a named place, for tests that let another attempt continue."""

import json
import subprocess
import sys
from pathlib import Path

from sqlalchemy import select

from app.core import process
from app.core.clock import now
from app.db import transitions
from app.db.states import FailureCause, JobKind, JobState
from app.db.tables import Job
from app.dispatcher.loop import Dispatcher
from app.local.supervisor import environment
from app.services import Services


class Dying:
    """Runs attempts in separate processes, each of which is killed at a given place."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.running = process.spawn(
            [sys.executable, "-m", "tests.faults.dying_attempt"],
            env=environment(services.settings, "worker") | {"PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def kill_at(self, kind: JobKind, place: str, witness: Path) -> bool:
        """Run the waiting job until it dies at `place`, then do what the dispatcher does about it.

        Return whether it was killed, or else finished before that.
        """
        Dispatcher(self.services).seal_due()
        with self.services.database.writing() as session:
            job = session.scalars(select(Job).where(Job.state == JobState.WAITING, Job.kind == kind)).one()
            transitions.dispatch(session, job, now())
        died = self._run(job, place, witness)
        with self.services.database.writing() as session:
            left = session.get_one(Job, job.id)
            if (
                left.state == JobState.QUEUED
            ):  # killed before it claimed the job, so the message is sent again
                assert left.token is not None
                assert transitions.claim(session, left.id, left.token, now())
            if left.state == JobState.RUNNING:
                transitions.attempt_failed(
                    session,
                    left,
                    cause=FailureCause.UNEXPECTED,
                    error="killed",
                    now=now(),
                    max_attempts=9,
                    backoff=0.0,
                )
        return died

    def _run(self, job: Job, place: str, witness: Path) -> bool:
        """Run an attempt. Return whether it was killed, or else finished before that."""
        assert self.running.stdin
        assert self.running.stdout
        line = json.dumps([place, str(witness), str(job.id), str(job.token)])
        self.running.stdin.write(line.encode() + b"\n")
        self.running.stdin.flush()
        code = int(self.running.stdout.readline())
        assert code == -9 or (code == 0 and place.startswith("at:")), f"{place}: {code}"
        return code == -9

    def close(self) -> None:
        """End the process that the attempts are forked from."""
        process.kill(self.running)
        for pipe in (self.running.stdin, self.running.stdout):
            assert pipe
            pipe.close()
