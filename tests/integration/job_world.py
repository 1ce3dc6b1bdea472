"""A simulated deployment: real SQL and dispatchers, with a simulated queue, clocks and workers."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import func, select

from app.core.clock import new_id
from app.db import transitions
from app.db.manifest import Manifest
from app.db.states import BatchState, FailureCause, HeldReason, JobState, ModelState, TaskState, VersionState
from app.db.tables import Batch, Erasure, Job, Model, Task, TaskSubject, Tenant, Version
from app.dispatcher.loop import Dispatcher
from app.gateway.batches import service
from app.services import Services
from tests.integration.harness import ATTEMPTS, MANIFEST
from worker import queue


class Clock:
    """A wall clock, which may jump, and a monotonic clock, which may not."""

    def __init__(self) -> None:
        self.wall = World.START
        self.steady = 1000.0

    def passes(self, seconds: float) -> None:
        """Advance both clocks."""
        self.steady += seconds
        self.jumps(seconds)

    def jumps(self, seconds: float) -> None:
        """Set the wall clock forwards or back."""
        self.wall += timedelta(seconds=seconds)


class Message(NamedTuple):
    """A message in the queue: which function to run for which attempt."""

    function: str
    job_id: UUID
    token: UUID


class Killed(Exception):
    """Raised where the test kills the dispatcher's process."""


class FakeQueue:
    """A stand-in for Redis that keeps messages until a test takes or drops them."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.kills_sender = False

    def send(self, function: str, job_id: UUID, token: UUID) -> None:
        self.messages.append(Message(function, job_id, token))
        if self.kills_sender:
            raise Killed

    def contains(self, job_id: UUID, token: UUID) -> bool:
        return any(message[1:] == (job_id, token) for message in self.messages)


class JobRow(NamedTuple):
    """A job as SQL has it, with the state of its batch."""

    state: JobState
    attempt: int
    token: UUID | None
    batch: BatchState


class TaskRow(NamedTuple):
    """A task as SQL has it."""

    state: TaskState
    batch_id: UUID | None


@dataclass(frozen=True)
class Snapshot:
    """Everything in SQL that the checks look at."""

    jobs: dict[UUID, JobRow]
    tasks: dict[UUID, TaskRow]
    batches: dict[UUID, tuple[UUID, BatchState]]
    """The model and state of each batch."""
    versions: list[tuple[UUID, int, UUID]]
    """The model, number and batch of each version."""


@dataclass(frozen=True)
class Attempt:
    """An attempt that claimed its job. It may keep writing long after the dispatcher has given it up."""

    job_id: UUID
    token: UUID


class World:
    """Two ready models of one tenant, two dispatchers, and methods for what gateway and workers do."""

    MODELS = 2
    START = datetime(2030, 1, 1, tzinfo=UTC)

    def __init__(self, services: Services) -> None:
        self.services = services
        self.clock, self.queue = Clock(), FakeQueue()
        self.dispatchers = [self.new_dispatcher(), self.new_dispatcher()]
        self.models: list[UUID] = []
        with services.database.writing() as session:
            tenant = Tenant(id=new_id(), name="tenant")
            session.add(tenant)
            session.flush()
            self.tenant = tenant.id
            manifest = Manifest.model_validate(MANIFEST).model_dump(mode="json", by_alias=True)
            for n in range(self.MODELS):
                model = Model(
                    id=new_id(), tenant_id=tenant.id, name=f"m{n}", manifest=manifest, state=ModelState.READY
                )
                session.add(model)
                self.models.append(model.id)

    def new_dispatcher(self) -> Dispatcher:
        """Return a dispatcher that uses the simulated clock and queue."""
        return Dispatcher(
            self.services,
            messages=self.queue,
            clock=lambda: self.clock.wall,
            steady=lambda: self.clock.steady,
        )

    # The gateway

    def ask(self, model: int, subjects: int) -> UUID:
        """Record an erasure of so many new people, and return its task."""
        moment = self.clock.wall
        due = moment + timedelta(days=31)
        with self.services.database.writing() as session:
            erasure = Erasure(
                id=new_id(), tenant_id=self.tenant, subjects=subjects, received_at=moment, due_at=due
            )
            session.add(erasure)
            session.flush()
            task = Task(
                id=new_id(),
                erasure_id=erasure.id,
                model_id=self.models[model],
                subjects=subjects,
                due_at=due,
                created_at=moment,
            )
            session.add(task)
            session.flush()
            people = [TaskSubject(task_id=task.id, ordinal=i, person=new_id().bytes) for i in range(subjects)]
            session.add_all(people)
        return task.id

    def flush(self, model: int) -> None:
        with self.services.database.writing() as session:
            session.get_one(Model, self.models[model]).flush_requested = True

    def cancel(self, batch_id: UUID) -> None:
        with self.services.database.writing() as session:
            service.cancel(session, self.tenant, batch_id)

    def retry(self, batch_id: UUID) -> UUID:
        """Ask for a retry of a batch, and return the id of its job."""
        with self.services.database.writing() as session:
            return service.retry(session, self.tenant, batch_id).job_id

    # The worker

    def claim(self, message: Message) -> Attempt | None:
        """Claim the job of a message; return nothing if the message is out of date."""
        with self.services.database.writing() as session:
            won = transitions.claim(session, message.job_id, message.token, self.clock.wall)
        return Attempt(message.job_id, message.token) if won else None

    def heartbeat(self, attempt: Attempt) -> None:
        with self.services.database.writing() as session:
            transitions.heartbeat(session, attempt.job_id, attempt.token, self.clock.wall)

    def publish(self, attempt: Attempt) -> None:
        """Write a new version, unless an earlier attempt already did."""
        with self.services.database.writing() as session:
            transitions.fence(session, attempt.job_id, attempt.token, self.clock.wall)
            batch = session.scalars(select(Batch).where(Batch.job_id == attempt.job_id)).one()
            if batch.state == BatchState.PURGING:  # an earlier attempt has published it
                return
            versions = select(func.count()).select_from(Version).where(Version.model_id == batch.model_id)
            session.add(
                Version(
                    model_id=batch.model_id,
                    number=session.scalar(versions),
                    state=VersionState.CURRENT,
                    batch_id=batch.id,
                    generation=0,
                    path=str(attempt.token),
                    sha256="",
                    size=0,
                )
            )
            transitions.batch_purging(session, batch, self.clock.wall)

    def complete(self, attempt: Attempt) -> None:
        self.publish(attempt)
        with self.services.database.writing() as session:
            batch = session.scalars(select(Batch).where(Batch.job_id == attempt.job_id)).one()
            transitions.complete_batch(session, batch, self.clock.wall)
            transitions.finish_job(session, attempt.job_id, attempt.token, self.clock.wall)

    def hold(self, attempt: Attempt) -> None:
        with self.services.database.writing() as session:
            transitions.fence(session, attempt.job_id, attempt.token, self.clock.wall)
            batch = session.scalars(select(Batch).where(Batch.job_id == attempt.job_id)).one()
            if batch.state == BatchState.PURGING:
                return
            transitions.hold_batch(session, batch, HeldReason.BUDGET, "no room", self.clock.wall)
            transitions.finish_job(session, attempt.job_id, attempt.token, self.clock.wall)

    def fail(self, attempt: Attempt, cause: FailureCause = FailureCause.UNEXPECTED) -> None:
        with self.services.database.writing() as session:
            transitions.fence(session, attempt.job_id, attempt.token, self.clock.wall)
            transitions.attempt_failed(
                session,
                session.get_one(Job, attempt.job_id),
                cause=cause,
                error="no luck",
                now=self.clock.wall,
                max_attempts=self.services.settings.max_attempts,
                backoff=self.services.settings.retry_backoff_seconds,
                max_deaths=self.services.settings.max_deaths,
            )

    def report_end(self, attempt: Attempt) -> None:
        """Written by another machine's clock: the real one."""
        queue.report_end(
            queue.WorkerRuntime(self.services, ATTEMPTS), attempt.job_id, attempt.token, "killed by SIGKILL"
        )

    # The state in SQL

    def snapshot(self) -> Snapshot:
        """Read all jobs, tasks, batches and versions."""
        with self.services.database.reading() as session:
            jobs = session.execute(select(Job, Batch).join(Batch, Batch.job_id == Job.id)).all()
            tasks = session.scalars(select(Task)).all()
            versions = session.execute(select(Version.model_id, Version.number, Version.batch_id)).all()
        return Snapshot(
            jobs={
                job.id: JobRow(JobState(job.state), job.attempt, job.token, BatchState(batch.state))
                for job, batch in jobs
            },
            tasks={task.id: TaskRow(TaskState(task.state), task.batch_id) for task in tasks},
            batches={batch.id: (batch.model_id, BatchState(batch.state)) for _, batch in jobs},
            versions=[(model, number, batch) for model, number, batch in versions if batch],
        )

    def waiting_models(self) -> set[UUID]:
        """Return the models with tasks that are not in a batch yet, or with a batch whose retry waits."""
        with self.services.database.reading() as session:
            retried = session.scalars(select(Batch.model_id).where(Batch.retry_requested)).all()
            return {*session.scalars(select(Task.model_id).where(Task.batch_id.is_(None))), *retried}
