"""What happens to hosts while they work. Each fault waits for the moment it is about, and for its cure."""

import os
import signal
from uuid import UUID

from sqlalchemy import select

from app.db.states import JobKind, JobState
from app.db.tables import Job
from tests import eventually
from tests.hosts.cluster import WITHIN, Cluster
from tests.hosts.host import Attempt, Host
from tests.hosts.people import People


class Faults:
    def __init__(self, cluster: Cluster, people: People) -> None:
        self.cluster, self.people = cluster, people
        self.active, self.idle = cluster.hosts["dispatcher1"], cluster.hosts["dispatcher2"]
        self.done: list[str] = []

    def kill_a_worker(self) -> Host:
        """In the middle of a job; another one takes it over. The host stays off."""
        host, attempt, number = self._somebody_at_work()
        host.power_off()
        self._taken_over(attempt, number)
        self.done.append(f"{host.name} killed at attempt {number}")
        return host

    def cut_off_a_worker(self) -> None:
        """Its attempt stands still until another has finished the job; then it goes on, and must not publish.

        Standing still, it is not ended by errors before it comes back.
        """
        host, attempt, number = self._somebody_at_work()
        os.kill(attempt.pid, signal.SIGSTOP)
        host.cut()
        eventually(lambda: self._job(attempt).state == JobState.DONE, within=WITHIN)
        host.mend()
        os.kill(attempt.pid, signal.SIGCONT)
        eventually(lambda: attempt not in host.attempts(), within=WITHIN)
        eventually(lambda: host.said("fenced off", attempt.job), within=WITHIN)
        self.done.append(f"{host.name} cut off at attempt {number}, fenced off when it came back")

    def kill_the_active_dispatcher(self) -> Host:
        self._somebody_at_work()
        host, before = self.active, self.cluster.lease_holder()
        host.power_off()
        self._lease_moves_on(before)
        self.done.append(f"{host.name} killed while it held the lease")
        return host

    def cut_off_the_active_dispatcher(self) -> None:
        """It comes back believing to hold the lease."""
        self._somebody_at_work()
        host, before = self.active, self.cluster.lease_holder()
        host.cut()
        self._lease_moves_on(before)
        host.mend()
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
        host.mend()
        self.cluster.wait_for_gateway(host)
        with self.cluster.client(host) as lethe:
            assert {model.name for model in lethe.models.list()} == set(self.people.models)
        self.done.append(f"{host.name} cut off")

    def _asked_elsewhere(self, lost: Host) -> None:
        """Who gets no answer from this gateway asks the other one, and is heard."""
        before = self.people.repeated
        self.people.ask(self.people.models[-1:], first=lost)
        assert self.people.repeated > before

    def restart_a_server(self, host: Host) -> None:
        """PostgreSQL or Valkey, in the middle of everything."""
        self._somebody_at_work()
        host.power_off()
        host.boot()
        self.done.append(f"{host.name} killed and started again")

    def bring_back(self, *hosts: Host) -> None:
        for host in hosts:
            host.boot()
        for host in hosts:
            if host.name.startswith("gateway"):
                self.cluster.wait_for_gateway(host)

    def _somebody_at_work(self) -> tuple[Host, Attempt, int]:
        """A worker in the middle of an erasure; when nothing is left to do, somebody asks."""

        def look() -> tuple[Host, Attempt, int] | None:
            for host, attempt in self.cluster.at_work():
                job = self._job(attempt)
                if job.state == JobState.RUNNING and job.kind == JobKind.UNLEARN:
                    return host, attempt, job.attempt
            if not self.people.open_tasks():
                self.people.ask(self.people.models[:2])
            return None

        found = eventually(look, within=WITHIN)
        assert found is not None
        return found

    def _job(self, attempt: Attempt) -> Job:
        found = self.cluster.look(select(Job).where(Job.id == UUID(attempt.job)))
        assert found is not None
        return found

    def _taken_over(self, attempt: Attempt, number: int) -> None:
        def by_another() -> bool:
            job = self._job(attempt)
            return job.state == JobState.DONE or (job.state == JobState.RUNNING and job.attempt > number)

        eventually(by_another, within=WITHIN)

    def _lease_moves_on(self, before: str) -> None:
        eventually(lambda: self.cluster.lease_holder() not in ("", before), within=WITHIN)
        self.active, self.idle = self.idle, self.active
