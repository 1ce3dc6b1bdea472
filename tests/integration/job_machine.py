"""Random interleavings of everything that can go wrong with a job, checked against a simple model of it."""

from collections.abc import Callable
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from app.db.states import BatchState, JobState
from app.db.transitions import TokenLost
from app.errors import Conflict
from tests.integration.job_checks import JobChecks
from tests.integration.job_world import Attempt, Killed

STEPS = ("seal_due", "give_up_dead_attempts", "queue_waiting_jobs", "announce_lost_messages", "send_outbox")
ENDS = (JobState.DONE, JobState.FAILED)
CANCELLABLE = (BatchState.SEALED, BatchState.QUEUED, BatchState.RUNNING)
CALM_ROUNDS = 200

which = st.integers(0, 1)
some = st.integers(0, 10**6)


class JobMachine(JobChecks):
    @initialize()
    def first_batches(self) -> None:
        for model in range(self.world.MODELS):
            self.requests_arrive(model, subjects=3)
            self.holds_together()
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
        """It wins over whatever runs, or is refused because the model is published, and changes nothing."""
        self.cause = "cancel"
        batch_id, (_, state) = self.some_batch(n)
        try:
            self.world.cancel(batch_id)
        except Conflict:
            assert state not in CANCELLABLE
            assert self.world.look() == self.before

    @precondition(lambda self: self.before.batches)
    @rule(n=some)
    def batch_is_tried_again(self, n: int) -> None:
        self.cause = "retry"
        batch_id, (_, state) = self.some_batch(n)
        try:
            self.world.retry(batch_id)
        except Conflict:
            assert state != BatchState.HELD
            assert self.world.look() == self.before

    def some_batch(self, n: int) -> tuple[UUID, tuple[UUID, BatchState]]:
        return sorted(self.before.batches.items())[n % len(self.before.batches)]

    # The dispatchers

    @rule(n=which)
    def dispatcher_works(self, n: int) -> None:
        self.cause = "dispatcher"
        self.world.dispatchers[n].round()

    @rule(n=which, step=st.sampled_from(STEPS))
    def dispatcher_believes_to_hold_the_lease(self, n: int, step: str) -> None:
        self.cause = "dispatcher"
        getattr(self.world.dispatchers[n], step)()

    @rule(n=which)
    def dispatcher_dies_between_sending_and_forgetting(self, n: int) -> None:
        self.cause = "dispatcher"
        self.world.wire.kills_sender = True
        try:
            self.world.dispatchers[n].send_outbox()
        except Killed:
            self.world.dispatchers[n] = self.world.new_dispatcher()
        self.world.wire.kills_sender = False

    @rule(n=which)
    def dispatcher_is_replaced(self, n: int) -> None:
        """The new one remembers nothing, and finds the lease of the old."""
        self.cause = "nothing"
        self.world.dispatchers[n] = self.world.new_dispatcher()

    # The queue

    @precondition(lambda self: self.world.wire.messages)
    @rule(n=some, again=st.booleans())
    def message_is_delivered(self, n: int, again: bool) -> None:
        """Any of them, so some wait long; `again` leaves it there to be delivered twice."""
        self.cause = "claim"
        messages = self.world.wire.messages
        message = messages[n % len(messages)]
        if not again:
            messages.remove(message)
        job = self.before.jobs[message.job_id]
        attempt = self.world.claim(message)
        assert (attempt is not None) == (job.state == JobState.QUEUED and job.token == message.token)
        if attempt is not None:
            self.attempts.append(attempt)
            self.heard[attempt.job_id] = self.world.clock.steady

    @precondition(lambda self: self.world.wire.messages)
    @rule(n=some)
    def worker_dies_between_taking_and_claiming(self, n: int) -> None:
        self.cause = "queue"
        messages = self.world.wire.messages
        messages.pop(n % len(messages))

    @rule()
    def redis_is_flushed(self) -> None:
        self.cause = "queue"
        self.world.wire.messages.clear()

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

    @precondition(lambda self: self.attempts and len(self.asked) > 8)  # it would end the play too early
    @rule(n=some)
    def worker_holds(self, n: int) -> None:
        self.write(n, self.world.hold)

    @precondition(lambda self: self.attempts)
    @rule(n=some)
    def worker_fails(self, n: int) -> None:
        self.write(n, self.world.fail)

    @precondition(lambda self: self.attempts)
    @rule(n=some)
    def attempt_is_killed_and_its_parent_tells(self, n: int) -> None:
        self.cause = "worker"
        self.world.report_end(self.attempts.pop(n % len(self.attempts)))

    @precondition(lambda self: self.attempts)
    @rule(n=some)
    def worker_is_killed(self, n: int) -> None:
        self.cause = "nothing"
        self.attempts.pop(n % len(self.attempts))

    def write(self, n: int, operation: Callable[[Attempt], None]) -> None:
        """Succeeds for the attempt whose token is valid; for any other it fails and leaves no trace."""
        self.cause = "worker"
        attempt = self.attempts[n % len(self.attempts)]
        if self.is_valid(attempt):
            operation(attempt)
            self.heard[attempt.job_id] = self.world.clock.steady
            return
        try:
            operation(attempt)
        except TokenLost:
            assert self.world.look() == self.before
        else:
            raise AssertionError("a stale token has written")

    # Time

    @rule(seconds=st.sampled_from([1, 4, 12, 40]))
    def time_passes(self, seconds: int) -> None:
        self.cause = "nothing"
        self.world.clock.passes(seconds)

    @rule(n=which, rounds=st.integers(2, 8), beating=st.booleans())
    def a_while_passes(self, n: int, rounds: int, beating: bool) -> None:
        """With a dispatcher at work, and the attempts beating or all silent."""
        for _ in range(rounds):
            self.time_passes(10)
            if beating:
                for k in range(len(self.attempts)):
                    self.worker_beats(k)
            self.dispatcher_works(n)
            self.holds_together()

    @precondition(lambda self: self.world.wire.messages)
    @rule(again=st.booleans())
    def newest_message_is_delivered(self, again: bool) -> None:
        self.message_is_delivered(len(self.world.wire.messages) - 1, again)

    @rule(seconds=st.sampled_from([-7200, -31, 31, 7200]))
    def clock_jumps(self, seconds: int) -> None:
        self.cause = "nothing"
        self.world.clock.jumps(seconds)

    # When all is calm again

    def teardown(self) -> None:
        for _ in range(CALM_ROUNDS):
            if self.is_settled():
                break
            self.calm_round()
        assert self.is_settled(), f"something waits for ever: {self.before}"
        for n in range(len(self.attempts)):
            self.write(n, self.world.complete)

    def is_settled(self) -> bool:
        """Every job has ended; who still waits, waits for a held batch, until somebody decides about it."""
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
            self.holds_together()
        while self.world.wire.messages:
            self.message_is_delivered(0, again=False)
            self.holds_together()
            if self.attempts and self.is_valid(self.attempts[-1]):
                self.write(len(self.attempts) - 1, self.world.complete)
                self.holds_together()
