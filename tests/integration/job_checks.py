"""Invariants of jobs, batches and requests that must hold after every step of the job machine."""

from collections import Counter
from uuid import UUID

from hypothesis.stateful import RuleBasedStateMachine, invariant

from app.db.states import OPEN_BATCH, BatchState, JobState, TaskState
from app.services import Services
from tests.integration.job_world import Attempt, Snapshot, World

WITH_TOKEN = (JobState.QUEUED, JobState.RUNNING)


class JobChecks(RuleBasedStateMachine):
    """Compares each state in SQL with the one before and with a simple model of what may happen."""

    def __init__(self, services: Services) -> None:
        super().__init__()
        self.world = World(services)
        self.settings = services.settings
        self.asked: set[UUID] = set()
        self.attempts: list[Attempt] = []
        self.cause = ""
        self.before = self.world.snapshot()
        self.last_heartbeat: dict[UUID, float] = {}
        self.failures: Counter[UUID] = Counter()
        self.errors: Counter[UUID] = Counter()
        self.waiting_retries: set[UUID] = set()
        self.tokens: set[UUID] = set()
        self.cancelled_waiting: set[UUID] = set()

    @invariant()
    def invariants_hold(self) -> None:
        """Check every job, task and batch against the state after the previous step."""
        now = self.world.snapshot()
        for job_id in now.jobs:
            self.check_job(job_id, now)
        self.check_tasks(now)
        self.check_batches(now)
        valid = Counter(attempt.job_id for attempt in self.attempts if self.is_valid_in(now, attempt))
        assert all(count == 1 for count in valid.values()), "two attempts hold one job"
        self.before = now

    def is_valid_in(self, now: Snapshot, attempt: Attempt) -> bool:
        return now.jobs[attempt.job_id][::2] == (JobState.RUNNING, attempt.token)

    def check_job(self, job_id: UUID, now: Snapshot) -> None:
        old, new = self.before.jobs.get(job_id), now.jobs[job_id]
        if old is None or old.state != new.state:
            self.check_step(job_id, now)
        else:
            assert (old.attempt, old.token) == (new.attempt, new.token)
        assert (new.token is not None) == (new.state in WITH_TOKEN)
        under_way = new.state in (*WITH_TOKEN, JobState.DONE) and job_id not in self.cancelled_waiting
        assert new.attempt == self.failures[job_id] + under_way, (
            "an attempt was used up by something other than a failure"
        )

    def check_step(self, job_id: UUID, now: Snapshot) -> None:
        old, new = self.before.jobs.get(job_id), now.jobs[job_id]
        step = (old.state if old else None, new.state)
        match step:
            case (None, JobState.WAITING):
                assert self.cause == "dispatcher"
            case (None | JobState.WAITING, JobState.QUEUED):
                assert self.cause == "dispatcher"
                assert new.token not in self.tokens, "a token was used twice"
                assert new.token is not None
                self.tokens.add(new.token)
            case (JobState.QUEUED, JobState.RUNNING):
                assert self.cause == "claim"
            case (JobState.RUNNING, JobState.DONE):
                assert self.cause in ("worker", "cancel")
            case (JobState.WAITING | JobState.QUEUED, JobState.DONE):
                assert self.cause == "cancel"
                assert new.batch == BatchState.HELD
                if step[0] == JobState.WAITING:
                    self.cancelled_waiting.add(job_id)
            case (JobState.DONE | JobState.FAILED, JobState.WAITING):
                assert self.cause == "retry" or (
                    self.cause == "dispatcher" and job_id in self.waiting_retries
                )
                self.waiting_retries.discard(job_id)
                self.failures[job_id] = self.errors[job_id] = 0
                self.cancelled_waiting.discard(job_id)
            case (JobState.RUNNING, JobState.WAITING | JobState.FAILED):
                assert old is not None
                self.check_failure(job_id, old.batch, new.state)
            case _:
                raise AssertionError(f"forbidden transition: {step}")

    def check_failure(self, job_id: UUID, batch: BatchState, state: JobState) -> None:
        self.failures[job_id] += 1
        if self.cause == "dispatcher":
            silent = self.world.clock.steady - self.last_heartbeat[job_id]
            assert silent >= self.settings.dead_after, "an attempt with a recent heartbeat was given up"
        elif self.cause == "worker":
            self.errors[job_id] += 1
        else:
            assert self.cause == "death"
        exhausted = self.errors[job_id] >= self.settings.max_attempts and batch != BatchState.PURGING
        exhausted = exhausted and self.cause == "worker"  # a fault never ends an erasure
        assert (state == JobState.FAILED) == exhausted

    def check_tasks(self, now: Snapshot) -> None:
        assert now.tasks.keys() == self.asked, "a request was lost"
        for task_id, task in now.tasks.items():
            assert (task.batch_id is None) == (task.state == TaskState.RECEIVED)
            old = self.before.tasks.get(task_id)
            assert old is None or old.batch_id in (None, task.batch_id), "a request moved to another batch"
            if task.batch_id is not None:
                _, state = now.batches[task.batch_id]
                assert (task.state == TaskState.COMPLETED) == (state == BatchState.COMPLETED)
                assert (task.state == TaskState.FAILED) == (state == BatchState.FAILED)

    def check_batches(self, now: Snapshot) -> None:
        opened = Counter(model for model, state in now.batches.values() if state in OPEN_BATCH)
        assert all(count == 1 for count in opened.values()), "a model has two open batches"
        published = Counter(batch for _, _, batch in now.versions)
        assert all(count == 1 for count in published.values()), "a batch was published twice"
        for batch_id, (_, state) in now.batches.items():
            assert (batch_id in published) == (state in (BatchState.PURGING, BatchState.COMPLETED))

    def is_valid(self, attempt: Attempt) -> bool:
        job = self.before.jobs[attempt.job_id]
        return job.state == JobState.RUNNING and job.token == attempt.token
