"""Several dispatchers at once, clocks that jump and messages that are lost, on both databases."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import event, select, text, update

from app.core.clock import new_id
from app.core.queue import RqMessages
from app.db import transitions
from app.db.states import BatchState, JobKind, JobState, SealReason
from app.db.tables import Batch, BatchEvent, Job, Model, OutboxMessage, Task, Tenant, WorkerSeen
from app.dispatcher import outbox
from app.dispatcher.liveness import Heartbeat, HeartbeatMonitor
from app.dispatcher.loop import Dispatcher
from app.services import Services
from tests import eventually
from tests.integration.job_world import Attempt, Message, World


@pytest.fixture
def world(services: Services) -> World:
    return World(services)


@contextmanager
def meanwhile(world: World, act: Callable[[], object]) -> Iterator[None]:
    """Run `act` in another thread, and enter the block when it has ended or waits for this thread's lock.

    So whatever `act` reads without a lock, it has read before the block commits.
    """
    database = world.services.database
    asks_for_file = threading.Event()

    def notice(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement == "BEGIN IMMEDIATE":  # SQLite has one lock for writers, which this thread holds
            asks_for_file.set()

    def waits_for_row() -> bool:
        if database.is_sqlite:
            return False
        with database.reading() as session:
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN (SELECT pid FROM "
            own = "pg_stat_activity WHERE datname = current_database())"
            return bool(session.scalar(text(waiting + own)))

    event.listen(database.engine, "before_cursor_execute", notice)
    with ThreadPoolExecutor(1) as thread:
        acting = thread.submit(act)
        try:
            eventually(lambda: acting.done() or asks_for_file.is_set() or waits_for_row(), every=0.005)
        finally:
            event.remove(database.engine, "before_cursor_execute", notice)
        yield
    acting.result()


def sealed(world: World) -> Job:
    world.ask(0, subjects=3)
    world.dispatchers[0].seal_due()
    return only_job(world)


def only_job(world: World) -> Job:
    with world.services.database.reading() as session:
        return session.scalars(select(Job)).one()


def running(world: World) -> Attempt:
    sealed(world)
    world.dispatchers[0].queue_waiting_jobs()
    world.dispatchers[0].send_outbox()
    attempt = world.claim(world.queue.messages.pop())
    assert attempt is not None
    return attempt


def fall_silent(world: World, n: int = 0) -> None:
    for _ in range(4):
        world.clock.passes(world.services.settings.dead_after / 3)
        world.dispatchers[n].give_up_dead_attempts()


def test_a_job_that_another_dispatcher_is_queueing_is_queued_once(world: World) -> None:
    job_id = sealed(world).id
    with world.services.database.writing() as session:
        job = session.get_one(Job, job_id, with_for_update=True)
        transitions.dispatch(session, job, world.clock.wall)
        session.flush()
        with meanwhile(world, world.dispatchers[1].queue_waiting_jobs):
            session.commit()
    assert only_job(world).attempt == 1
    with world.services.database.reading() as session:
        assert session.scalars(select(OutboxMessage.token)).all() == [only_job(world).token]


def test_two_dispatchers_at_once_queue_every_job_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "QUEUED_JOBS", 40)
    with world.services.database.writing() as session:
        for _ in range(40):
            transitions.create_job(session, JobKind.REGISTER, world.models[0], world.clock.wall)
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(world.new_dispatcher().queue_waiting_jobs) for _ in range(4)]:
            done.result()
    world.dispatchers[0].queue_waiting_jobs()
    with world.services.database.reading() as session:
        assert {(job.state, job.attempt) for job in session.scalars(select(Job))} == {(JobState.QUEUED, 1)}
        assert len(session.scalars(select(OutboxMessage)).all()) == 40


class Tenants:
    """Jobs of several tenants, and the order in which they reach the queue."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.names: dict[UUID, str] = {}

    def add(self, tenant: str, *days: float) -> None:
        """Add a job on a model of its own for each of these deadlines."""
        with self.world.services.database.writing() as session:
            owner = session.scalar(select(Tenant.id).where(Tenant.name == tenant))
            if owner is None:
                owner = new_id()
                session.add(Tenant(id=owner, name=tenant))
                session.flush()
            for day in days:
                model = Model(id=new_id(), tenant_id=owner, name=f"m{new_id().hex}", manifest={})
                session.add(model)
                session.flush()
                job = transitions.create_job(session, JobKind.REGISTER, model.id, self.world.clock.wall)
                job.due_at = self.world.clock.wall + timedelta(days=day)
                self.names[job.id] = f"{tenant}{day:g}"

    def queue(self) -> list[str]:
        """Let the dispatcher queue jobs, and return all that were ever sent, in order."""
        self.world.dispatchers[0].queue_waiting_jobs()
        self.world.dispatchers[0].send_outbox()
        return [self.names[message.job_id] for message in self.world.queue.messages]


def test_tenants_take_turns_and_within_a_tenant_the_earliest_deadline_comes_first(world: World) -> None:
    tenants = Tenants(world)
    tenants.add("a", 5, 1, 4, 3, 2)
    tenants.add("b", 9, 8)
    tenants.add("c", 0.5)
    assert tenants.queue() == ["c0.5", "a1", "b8", "a2", "b9", "a3", "a4", "a5"]


def test_a_tenant_with_many_jobs_does_not_delay_one_that_comes_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "QUEUED_JOBS", 3)
    tenants = Tenants(world)
    tenants.add("a", *range(1, 11))
    assert tenants.queue() == ["a1", "a2", "a3"]
    tenants.add("b", 20)
    assert tenants.queue() == ["a1", "a2", "a3"], "the queue is full"
    assert world.claim(world.queue.messages[0])
    assert tenants.queue() == ["a1", "a2", "a3", "b20"], "one job of the first tenant runs, two are queued"


def test_the_queue_holds_more_for_more_workers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "QUEUED_JOBS", 1)
    with world.services.database.writing() as session:
        session.add_all(WorkerSeen(name=f"w{n}", seen_at=world.clock.wall) for n in range(2))
        session.add(WorkerSeen(name="dead", seen_at=world.clock.wall - timedelta(days=1)))
    tenants = Tenants(world)
    tenants.add("a", *range(1, 11))
    assert len(tenants.queue()) == 1 + 2 * outbox.QUEUED_PER_WORKER


def test_a_job_is_due_when_the_first_of_its_tasks_is(world: World) -> None:
    world.ask(0, 1)
    world.clock.passes(86400)
    world.ask(0, 1)
    world.dispatchers[0].seal_due()
    with world.services.database.reading() as session:
        first = session.scalars(select(Task.due_at).order_by(Task.due_at)).first()
    assert only_job(world).due_at == first


def test_an_attempt_that_writes_while_it_is_given_up_stays(world: World) -> None:
    attempt = running(world)
    world.dispatchers[0].give_up_dead_attempts()
    for _ in range(3):  # almost long enough
        world.clock.passes(world.services.settings.dead_after / 3 - 0.01)
        world.dispatchers[0].give_up_dead_attempts()
    world.clock.passes(1)
    with world.services.database.writing() as session:
        transitions.fence(session, attempt.job_id, attempt.token, world.clock.wall)
        with meanwhile(world, world.dispatchers[0].give_up_dead_attempts):
            session.commit()
    assert only_job(world).state == JobState.RUNNING


def test_a_job_that_ends_while_it_is_given_up_has_ended(world: World) -> None:
    attempt = running(world)
    world.dispatchers[0].give_up_dead_attempts()
    world.clock.passes(1000)
    with world.services.database.writing() as session:
        transitions.finish_job(session, attempt.job_id, attempt.token, world.clock.wall)
        session.flush()
        with meanwhile(world, lambda: fall_silent(world)):
            session.commit()
    fall_silent(world)
    assert only_job(world).state == JobState.DONE


def test_two_dispatchers_that_seal_at_once_make_one_batch(world: World) -> None:
    world.ask(0, subjects=3)
    with world.services.database.writing() as session:
        model = session.get_one(Model, world.models[0], with_for_update={"key_share": True})
        assert transitions.seal(session, model, because=SealReason.COUNT, now=world.clock.wall) is not None
        session.flush()
        with meanwhile(world, world.dispatchers[1].seal_due):
            session.commit()
    world.ask(0, subjects=3)
    world.dispatchers[1].seal_due()
    with world.services.database.reading() as session:
        assert len(session.scalars(select(Batch)).all()) == 1


def test_one_of_many_deliveries_claims(world: World) -> None:
    sealed(world)
    world.dispatchers[0].queue_waiting_jobs()
    world.dispatchers[0].send_outbox()
    (message,) = world.queue.messages
    with ThreadPoolExecutor(8) as threads:
        won = [attempt for attempt in threads.map(world.claim, [message] * 8) if attempt is not None]
    assert len(won) == 1


def test_a_worker_whose_clock_is_wrong_is_not_given_up(world: World) -> None:
    attempt = running(world)
    for _ in range(30):
        world.clock.passes(world.services.settings.heartbeat_seconds)
        world.clock.jumps(-86400)
        world.heartbeat(attempt)
        world.clock.jumps(86400)
        world.dispatchers[0].give_up_dead_attempts()
    assert only_job(world).state == JobState.RUNNING


def test_a_dead_attempt_is_noticed_though_its_last_beat_came_from_the_future(world: World) -> None:
    attempt = running(world)
    world.clock.jumps(86400)
    world.heartbeat(attempt)
    world.clock.jumps(-86400)
    world.dispatchers[0].give_up_dead_attempts()
    fall_silent(world)
    assert only_job(world).state == JobState.WAITING


def test_a_dispatcher_that_was_stopped_for_long_listens_before_it_judges() -> None:
    seconds = [0.0]
    monitor = HeartbeatMonitor(lambda: seconds[0])
    heartbeat = Heartbeat(new_id(), new_id(), World.START)
    assert monitor.silent_for(30, [heartbeat]) == []
    seconds[0] += 3600
    assert monitor.silent_for(30, [heartbeat]) == []
    for _ in range(2):
        seconds[0] += 10
        judged = monitor.silent_for(30, [heartbeat])
    assert judged == [heartbeat]


def test_a_retry_planned_before_the_clock_jumped_back_is_made(world: World) -> None:
    attempt = running(world)
    world.clock.jumps(86400)
    world.fail(attempt)
    world.clock.jumps(-86400)
    world.dispatchers[0].queue_waiting_jobs()
    assert (only_job(world).state, only_job(world).attempt) == (JobState.QUEUED, 2)


def test_a_published_batch_is_cleaned_up_however_often_that_fails(world: World) -> None:
    world.publish(attempt := running(world))
    for _ in range(world.services.settings.max_attempts + 3):
        world.fail(attempt)
        world.clock.passes(transitions.LONGEST_BACKOFF.total_seconds())
        world.dispatchers[0].queue_waiting_jobs()
        world.dispatchers[0].send_outbox()
        claimed = world.claim(world.queue.messages.pop())
        assert claimed is not None
        attempt = claimed
    world.complete(attempt)
    ((_, state),) = world.snapshot().batches.values()
    assert state == BatchState.COMPLETED


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 2), (2, 4), (3, 8), (8, 256), (9, 300), (10**6, 300)])
def test_backoff_doubles_up_to_five_minutes(attempt: int, seconds: float) -> None:
    assert transitions.backoff_after(attempt, 2.0) == timedelta(seconds=seconds)


def test_the_lease_lets_one_act_until_it_runs_out(world: World) -> None:
    first, second = world.dispatchers
    assert first.round()
    assert not second.round()
    world.clock.passes(world.services.settings.lease_seconds - 0.1)
    assert not second.round()
    world.clock.passes(0.2)
    assert second.round()
    assert not first.round()
    second.release_lease()
    assert first.round()


def test_a_lease_from_before_the_clock_jumped_back_is_void(world: World) -> None:
    first, second = world.dispatchers
    assert first.round()
    world.clock.jumps(-86400)
    assert second.round()


def test_a_model_nobody_understands_does_not_hold_up_the_others(world: World) -> None:
    with world.services.database.writing() as session:
        session.execute(update(Model).where(Model.id == world.models[0]).values(manifest={"policy": {}}))
    for model in range(world.MODELS):
        world.ask(model, subjects=3)
    world.dispatchers[0].round()
    with world.services.database.reading() as session:
        assert session.scalars(select(Batch.model_id)).all() == [world.models[1]]


def test_a_round_with_nothing_to_do_writes_little(world: World) -> None:
    world.dispatchers[0].round()
    statements: list[str] = []
    event.listen(
        world.services.database.engine, "before_cursor_execute", lambda *given: statements.append(given[2])
    )
    world.dispatchers[0].seal_due()
    world.dispatchers[0].queue_waiting_jobs()
    world.dispatchers[0].give_up_dead_attempts()
    world.dispatchers[0].announce_lost_messages()
    world.dispatchers[0].send_outbox()
    asked = [words for words in statements if not words.startswith("BEGIN")]
    assert len(asked) == 6
    assert all(words.startswith("SELECT") for words in asked)
    assert "BEGIN IMMEDIATE" not in statements


def test_a_worker_not_seen_for_a_day_is_forgotten(world: World) -> None:
    with world.services.database.writing() as session:
        session.add(WorkerSeen(name="gone", seen_at=world.clock.wall - timedelta(days=2)))
        session.add(WorkerSeen(name="here", seen_at=world.clock.wall))
    world.dispatchers[0].round()
    with world.services.database.reading() as session:
        assert session.scalars(select(WorkerSeen.name)).all() == ["here"]


def test_redis_holds_a_message_until_it_is_taken_or_lost(services: Services) -> None:
    messages, job_id, token = RqMessages(services.queue), new_id(), new_id()
    assert not messages.contains(job_id, token)
    messages.send(transitions.RUN, job_id, token)
    assert messages.contains(job_id, token)
    assert not messages.contains(job_id, new_id())
    services.redis.rpop(services.queue.key)
    assert not messages.contains(job_id, token), "taken by a worker that may have died"
    messages.send(transitions.RUN, job_id, token)
    assert messages.contains(job_id, token)
    services.redis.delete(services.queue.job_class.key_for(f"{job_id}_{token}"))
    assert not messages.contains(job_id, token), "the queue names it, but its content is gone"


def test_what_redis_lost_is_sent_again_on_the_same_attempt(services: Services) -> None:
    world = World(services)
    dispatcher = Dispatcher(services, clock=lambda: world.clock.wall, steady=lambda: world.clock.steady)
    world.ask(0, subjects=3)
    dispatcher.round()
    sent = only_job(world)
    services.queue.empty()
    world.clock.passes(services.settings.requeue_after_seconds + 1)
    dispatcher.round()
    assert services.queue.get_job_ids() == [f"{sent.id}_{sent.token}"]
    assert only_job(world).attempt == 1
    assert world.claim(Message("", sent.id, UUID(str(sent.token)))) is not None


def wants_company(world: World, smallest: int = 3, age: float = 60.0) -> None:
    """Let model 0 seal batches of ten people, or of `smallest` people after `age` seconds."""
    with world.services.database.writing() as session:
        model = session.get_one(Model, world.models[0])
        policy = {"batch_subjects": 10, "min_batch_subjects": smallest, "batch_age_seconds": age}
        model.manifest = model.manifest | {"policy": model.manifest["policy"] | policy}


def sealed_because(world: World) -> str | None:
    world.dispatchers[0].seal_due()
    with world.services.database.reading() as session:
        batch = session.scalar(select(Batch))
    return batch.sealed_because if batch else None


def small_batches(world: World) -> list[dict[str, int]]:
    with world.services.database.reading() as session:
        query = select(BatchEvent.data).where(BatchEvent.kind == "small_batch")
        return list(session.scalars(query))


def test_a_few_people_wait_for_company_however_old_their_request(world: World) -> None:
    wants_company(world)
    world.ask(0, subjects=2)
    world.clock.passes(3600)
    assert sealed_because(world) is None
    world.ask(0, subjects=1)
    assert sealed_because(world) == "age"
    assert small_batches(world) == []


def test_a_deadline_goes_before_company_and_the_few_are_recorded(world: World) -> None:
    wants_company(world)
    world.ask(0, subjects=2)
    world.clock.passes(24 * 86400 - 60)
    assert sealed_because(world) is None
    world.clock.passes(61)
    assert sealed_because(world) == "deadline"
    assert small_batches(world) == [{"subjects": 2, "min_batch_subjects": 3}]


def test_someone_who_insists_goes_before_company_too(world: World) -> None:
    wants_company(world)
    world.ask(0, subjects=2)
    world.flush(0)
    assert sealed_because(world) == "flush"
    assert small_batches(world) == [{"subjects": 2, "min_batch_subjects": 3}]


def test_a_full_batch_waits_for_nobody(world: World) -> None:
    wants_company(world, smallest=10)
    world.ask(0, subjects=10)
    assert sealed_because(world) == "count"
