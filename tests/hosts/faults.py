"""Faults of hosts. Each waits for the right moment, strikes, and waits until the service has recovered."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import String, cast, select

from app.db.states import JobKind, JobState
from app.db.tables import Job
from tests import eventually
from tests.hosts.cluster import WITHIN, Cluster
from tests.hosts.host import Attempt, Host
from tests.hosts.people import People


class Faults:
    """Kills hosts and cuts them off, and keeps a list of what it did."""

    def __init__(self, cluster: Cluster, people: People) -> None:
        self.cluster, self.people = cluster, people
        self.active, self.idle = cluster.hosts["dispatcher1"], cluster.hosts["dispatcher2"]
        self.done: list[str] = []

    def kill_a_worker(self) -> Host:
        """Kill a worker during a job, and wait until another takes the job over. The host stays off."""
        with self._somebody_at_work() as (host, attempt, number):
            host.power_off()
        self._taken_over(attempt, number)
        self.done.append(f"{host.name} killed at attempt {number}")
        return host

    def cut_off_a_worker(self) -> None:
        """Cut off a worker with a paused attempt until another worker has finished the job.

        When the attempt resumes, it must not publish. It is paused so that errors do not end it earlier.
        """
        with self._somebody_at_work() as (host, attempt, number):
            os.kill(attempt.pid, signal.SIGSTOP)
            host.cut()
        eventually(lambda: self._job(attempt).state == JobState.DONE, within=WITHIN)
        host.reconnect()
        os.kill(attempt.pid, signal.SIGCONT)
        eventually(lambda: attempt not in host.attempts(), within=WITHIN)
        eventually(lambda: host.logged("fenced off", attempt.job), within=WITHIN)
        self.done.append(f"{host.name} cut off at attempt {number}, fenced off when it came back")

    def kill_the_active_dispatcher(self) -> Host:
        """Kill the dispatcher that holds the lease, and wait until the other takes over."""
        with self._somebody_at_work():
            host, before = self.active, self.cluster.lease_holder()
            host.power_off()
        self._lease_moves_on(before)
        self.done.append(f"{host.name} killed while it held the lease")
        return host

    def cut_off_the_active_dispatcher(self) -> None:
        """Cut off the active dispatcher. When it comes back, it still believes that it holds the lease."""
        with self._somebody_at_work():
            host, before = self.active, self.cluster.lease_holder()
            host.cut()
        self._lease_moves_on(before)
        host.reconnect()
        self.done.append(f"{host.name} cut off while it held the lease")

    def kill_a_gateway(self) -> Host:
        host = self.cluster.hosts["gateway1"]
        host.power_off()
        self._asked_elsewhere(host)
        self.done.append(f"{host.name} killed")
        return host

    def cut_off_a_gateway(self) -> None:
        host = self.cluster.hosts["gateway2"]
        host.cut()
        self._asked_elsewhere(host)
        host.reconnect()
        self.cluster.wait_for_gateway(host)
        with self.cluster.client(host) as lethe:
            assert {model.name for model in lethe.models.list()} == set(self.people.models)
        self.done.append(f"{host.name} cut off")

    def _asked_elsewhere(self, lost: Host) -> None:
        """Check that a client without an answer from this gateway succeeds at the other."""
        before = self.people.repeated
        self.people.ask(self.people.models[-1:], first=lost)
        assert self.people.repeated > before

    def restart_a_server(self, host: Host) -> None:
        """Kill PostgreSQL or Valkey during a job, and start it again."""
        with self._somebody_at_work():
            host.power_off()
        host.boot()
        self.done.append(f"{host.name} killed and started again")

    def bring_back(self, *hosts: Host) -> None:
        """Switch hosts on again."""
        for host in hosts:
            host.boot()
        for host in hosts:
            if host.name.startswith("gateway"):
                self.cluster.wait_for_gateway(host)

    @contextmanager
    def _somebody_at_work(self) -> Iterator[tuple[Host, Attempt, int]]:
        """Wait for a worker that runs an erasure, and keep it at work while the block runs.

        If there is nothing to do, request an erasure.
        """

        def look() -> tuple[Host, Attempt, int] | None:
            for host, attempt in self.cluster.at_work():
                job = self._job(attempt)
                if job.state == JobState.RUNNING and job.kind == JobKind.UNLEARN:
                    return host, attempt, job.attempt
            if not self.people.open_tasks():
                self.people.ask(self.people.models[:2])
            return None

        self.cluster.gate.unlink()
        try:
            busy = eventually(look, within=WITHIN)
            assert busy is not None
            yield busy
        finally:
            self.cluster.gate.touch()

    def _job(self, attempt: Attempt) -> Job:
        job = self.cluster.look(select(Job).where(cast(Job.id, String).endswith(attempt.job)))
        assert job is not None
        return job

    def _taken_over(self, attempt: Attempt, number: int) -> None:
        def by_another() -> bool:
            job = self._job(attempt)
            return job.state == JobState.DONE or (job.state == JobState.RUNNING and job.attempt > number)

        eventually(by_another, within=WITHIN)

    def _lease_moves_on(self, before: str) -> None:
        eventually(lambda: self.cluster.lease_holder() not in ("", before), within=WITHIN)
        self.active, self.idle = self.idle, self.active
