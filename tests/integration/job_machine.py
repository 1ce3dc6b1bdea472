"""A state machine that interleaves everything that can go wrong with a job, in random order."""

from collections.abc import Callable
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from app.db.states import BatchState, JobState
from app.db.transitions import TokenLost
from app.gateway.errors import Conflict
from tests.integration.job_checks import JobChecks
from tests.integration.job_world import Attempt, Killed

STEPS = ("seal_due", "give_up_dead_attempts", "queue_waiting_jobs", "announce_lost_messages", "send_outbox")
ENDS = (JobState.DONE, JobState.FAILED)
CANCELLABLE = (BatchState.SEALED, BatchState.QUEUED, BatchState.RUNNING)
CALM_ROUNDS = 200

which = st.integers(0, 1)
some = st.integers(0, 10**6)


class JobMachine(JobChecks):
    """The rules: what gateway, dispatchers, queue, workers and clocks may do next."""

    @initialize()
    def first_batches(self) -> None:
        for model in range(self.world.MODELS):
            self.requests_arrive(model, subjects=3)
            self.invariants_hold()
        self.dispatcher_works(0)

    # The gateway

    @rule(model=which, subjects=st.integers(1, 3))
    def requests_arrive(self, model: int, subjects: int) -> None:
        self.cause = "gateway"
        self.asked.add(self.world.ask(model, subjects))

    @rule(model=which)
    def flush_is_asked_for(self, model: int) -> None:
        self.cause = "gateway"
        self.world.flush(model)

    @precondition(lambda self: self.before.batches)
    @rule(n=some)
    def batch_is_cancelled(self, n: int) -> None:
        """Cancelling stops whatever runs. After publication it is refused and changes nothing."""
        self.cause = "cancel"
        batch_id, (_, state) = self.some_batch(n)
        try:
            self.world.cancel(batch_id)
        except Conflict:
            assert state not in CANCELLABLE
            assert self.world.snapshot() == self.before

    @precondition(lambda self: self.before.batches)
    @rule(n=some)
    def batch_is_tried_again(self, n: int) -> None:
        self.cause = "retry"
        batch_id, (_, state) = self.some_batch(n)
        try:
            job_id = self.world.retry(batch_id)
        except Conflict:
            assert state not in (BatchState.HELD, BatchState.FAILED)
            assert self.world.snapshot() == self.before
        else:
            if self.world.snapshot() == self.before:  # another batch of the model is open
                self.waiting_retries.add(job_id)

    def some_batch(self, n: int) -> tuple[UUID, tuple[UUID, BatchState]]:
        return sorted(self.before.batches.items())[n % len(self.before.batches)]

    # The dispatchers

    @rule(n=which)
    def dispatcher_works(self, n: int) -> None:
        self.cause = "dispatcher"
        self.world.dispatchers[n].round()

    @rule(n=which, step=st.sampled_from(STEPS))
    def dispatcher_wrongly_believes_it_holds_the_lease(self, n: int, step: str) -> None:
        self.cause = "dispatcher"
        getattr(self.world.dispatchers[n], step)()

    @rule(n=which)
    def dispatcher_dies_between_sending_and_forgetting(self, n: int) -> None:
        self.cause = "dispatcher"
        self.world.queue.kills_sender = True
        try:
            self.world.dispatchers[n].send_outbox()
        except Killed:
            self.world.dispatchers[n] = self.world.new_dispatcher()
        self.world.queue.kills_sender = False

    @rule(n=which)
    def dispatcher_is_replaced(self, n: int) -> None:
        """The new dispatcher starts without memory and finds the lease of the old one."""
        self.cause = "nothing"
        self.world.dispatchers[n] = self.world.new_dispatcher()

    # The queue

    @precondition(lambda self: self.world.queue.messages)
    @rule(n=some, again=st.booleans())
    def message_is_delivered(self, n: int, again: bool) -> None:
        """Deliver any message, so that some wait long. With `again`, it stays and is delivered twice."""
        self.cause = "claim"
        messages = self.world.queue.messages
        message = messages[n % len(messages)]
        if not again:
            messages.remove(message)
        job = self.before.jobs[message.job_id]
        attempt = self.world.claim(message)
        assert (attempt is not None) == (job.state == JobState.QUEUED and job.token == message.token)
        if attempt is not None:
            self.attempts.append(attempt)
            self.last_heartbeat[attempt.job_id] = self.world.clock.steady

    @precondition(lambda self: self.world.queue.messages)
    @rule(n=some)
    def worker_dies_between_taking_and_claiming(self, n: int) -> None:
        self.cause = "queue"
        messages = self.world.queue.messages
        messages.pop(n % len(messages))

    @rule()
    def redis_is_flushed(self) -> None:
        self.cause = "queue"
        self.world.queue.messages.clear()

    # The workers

    @precondition(lambda self: self.attempts)
    @rule(n=some)
    def worker_beats(self, n: int) -> None:
        self.write(n, self.world.heartbeat)

    @precondition(lambda self: self.attempts)
    @rule(n=some)
    def worker_publishes(self, n: int) -> None:
        self.write(n, self.world.publish)

    @precondition(lambda self: self.attempts)
    @rule(n=some)
    def worker_completes(self, n: int) -> None:
        self.write(n, self.world.complete)

    @precondition(
        lambda self: self.attempts and len(self.asked) > 8
    )  # a hold stops the model, so not too early
    @rule(n=some)
    def worker_holds(self, n: int) -> None:
        self.write(n, self.world.hold)

    @precondition(lambda self: self.attempts)
    @rule(n=some)
    def worker_fails(self, n: int) -> None:
        self.write(n, self.world.fail)

    @precondition(lambda self: self.attempts)
    @rule(n=some)
    def attempt_is_killed_and_its_worker_reports_it(self, n: int) -> None:
        self.cause = "death"
        self.world.report_end(self.attempts.pop(n % len(self.attempts)))

    @precondition(lambda self: self.attempts)
    @rule(n=some)
    def worker_is_killed(self, n: int) -> None:
        self.cause = "nothing"
        self.attempts.pop(n % len(self.attempts))

    def write(self, n: int, operation: Callable[[Attempt], None]) -> None:
        """Write as an attempt: with a valid token it succeeds, otherwise it must fail and change nothing."""
        self.cause = "worker"
        attempt = self.attempts[n % len(self.attempts)]
        if self.is_valid(attempt):
            operation(attempt)
            self.last_heartbeat[attempt.job_id] = self.world.clock.steady
            return
        try:
            operation(attempt)
        except TokenLost:
            assert self.world.snapshot() == self.before
        else:
            raise AssertionError("an attempt wrote with a stale token")

    # Time

    @rule(seconds=st.sampled_from([1, 4, 12, 40]))
    def time_passes(self, seconds: int) -> None:
        self.cause = "nothing"
        self.world.clock.passes(seconds)

    @rule(n=which, rounds=st.integers(2, 8), beating=st.booleans())
    def a_while_passes(self, n: int, rounds: int, beating: bool) -> None:
        """Let a dispatcher run for several rounds, with all attempts sending heartbeats or none."""
        for _ in range(rounds):
            self.time_passes(10)
            if beating:
                for k in range(len(self.attempts)):
                    self.worker_beats(k)
            self.dispatcher_works(n)
            self.invariants_hold()

    @precondition(lambda self: self.world.queue.messages)
    @rule(again=st.booleans())
    def newest_message_is_delivered(self, again: bool) -> None:
        self.message_is_delivered(len(self.world.queue.messages) - 1, again)

    @rule(seconds=st.sampled_from([-7200, -31, 31, 7200]))
    def clock_jumps(self, seconds: int) -> None:
        self.cause = "nothing"
        self.world.clock.jumps(seconds)

    # The end: without further faults everything must settle

    def teardown(self) -> None:
        for _ in range(CALM_ROUNDS):
            if self.is_settled():
                break
            self.calm_round()
        assert self.is_settled(), f"something waits forever: {self.before}"
        for n in range(len(self.attempts)):
            self.write(n, self.world.complete)

    def is_settled(self) -> bool:
        """Every job has ended, and remaining requests wait only for batches on hold."""
        held = {model for model, state in self.before.batches.values() if state == BatchState.HELD}
        ended = all(job.state in ENDS for job in self.before.jobs.values())
        return ended and self.world.waiting_models() <= held

    def calm_round(self) -> None:
        self.world.clock.passes(10)
        for model in range(self.world.MODELS):
            self.world.flush(model)
        self.cause = "dispatcher"
        for dispatcher in self.world.dispatchers:
            dispatcher.round()
            self.invariants_hold()
        while self.world.queue.messages:
            self.message_is_delivered(0, again=False)
            self.invariants_hold()
            if self.attempts and self.is_valid(self.attempts[-1]):
                self.write(len(self.attempts) - 1, self.world.complete)
                self.invariants_hold()
