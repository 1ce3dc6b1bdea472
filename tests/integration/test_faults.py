"""Faults of the infrastructure delay work and never end an erasure. A retry waits for its turn."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from app.core.settings import Settings
from app.db import transitions
from app.db.states import BatchState, EventKind, FailureCause, JobKind, JobState, TaskState
from app.db.tables import Batch, BatchEvent, Job, Model, Task
from app.db.webhooks import NoticeKind, WebhookNotice
from app.gateway.batches import service as batches
from app.services import Services
from tests.integration.job_world import Attempt, World
from worker.queue import ClaimWatch

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
FAULTS = [cause for cause in FailureCause if cause.is_fault]


@pytest.fixture
def world(database_url: str, tmp_path: Path) -> Iterator[World]:
    settings = Settings(
        data_dir=tmp_path,
        database_url=database_url,
        create_keys=True,
        redis_url="redis://nobody.invalid",
        max_attempts=2,
        max_deaths=3,
    )
    services = Services(settings)
    yield World(services)
    services.close()


def next_attempt(world: World) -> Attempt:
    world.clock.passes(transitions.LONGEST_BACKOFF.total_seconds())
    world.dispatchers[0].queue_waiting_jobs()
    world.dispatchers[0].send_outbox()
    attempt = world.claim(world.queue.messages.pop())
    assert attempt is not None
    return attempt


def first_attempt(world: World, model: int = 0) -> Attempt:
    world.ask(model, subjects=3)
    world.dispatchers[0].seal_due()
    return next_attempt(world)


def job_of(world: World, attempt: Attempt) -> Job:
    with world.services.database.reading() as session:
        return session.get_one(Job, attempt.job_id)


def batch_of(world: World, attempt: Attempt) -> Batch:
    with world.services.database.reading() as session:
        return session.scalars(select(Batch).where(Batch.job_id == attempt.job_id)).one()


def delays(world: World) -> list[BatchEvent]:
    with world.services.database.reading() as session:
        query = select(BatchEvent).where(BatchEvent.kind == EventKind.DELAYED).order_by(BatchEvent.id)
        return list(session.scalars(query))


def test_an_erasure_outlives_any_number_of_faults(world: World) -> None:
    attempt = first_attempt(world)
    for cause in FAULTS:
        world.fail(attempt, cause)
        assert job_of(world, attempt).state == JobState.WAITING
        attempt = next_attempt(world)
    assert job_of(world, attempt).errors == 0
    world.complete(attempt)
    assert batch_of(world, attempt).state == BatchState.COMPLETED
    assert (job_of(world, attempt).faults, job_of(world, attempt).faulty_since) == (0, None)


def test_faults_do_not_use_up_the_tries_of_a_job(world: World) -> None:
    attempt = first_attempt(world)
    world.fail(attempt, FailureCause.UNEXPECTED)
    for _ in range(5):
        world.fail(attempt := next_attempt(world), FailureCause.PROCESS_ENDED)
    assert job_of(world, attempt).state == JobState.WAITING
    world.fail(attempt := next_attempt(world), FailureCause.UNEXPECTED)
    assert (job_of(world, attempt).state, job_of(world, attempt).errors) == (JobState.FAILED, 2)
    assert batch_of(world, attempt).state == BatchState.FAILED


def test_the_wait_after_faults_grows_up_to_the_limit(world: World) -> None:
    attempt = first_attempt(world)
    waits = []
    for _ in range(10):
        world.fail(attempt, FailureCause.STORAGE)
        waits.append((job_of(world, attempt).run_after - world.clock.wall).total_seconds())
        attempt = next_attempt(world)
    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_a_lasting_delay_is_told_once_a_day_and_says_that_it_is_late(world: World) -> None:
    attempt = first_attempt(world)
    for _ in range(5):
        world.fail(attempt, FailureCause.STORAGE)
        attempt = next_attempt(world)
    first = delays(world)
    assert [event.data["overdue"] for event in first] == [False]
    assert first[0].data["cause"] == FailureCause.STORAGE
    world.clock.passes(timedelta(days=60).total_seconds())
    world.fail(attempt, FailureCause.STORAGE)
    world.fail(next_attempt(world), FailureCause.STORAGE)
    assert [event.data["overdue"] for event in delays(world)] == [False, True]
    with world.services.database.reading() as session:
        assert {notice.kind for notice in session.scalars(select(WebhookNotice))} == {NoticeKind.ALERT}


def test_a_job_that_kills_its_worker_is_told_of_and_still_retried(world: World) -> None:
    attempt = first_attempt(world)
    for deaths in (1, 2, 3):
        assert delays(world) == []
        world.clock.jumps(-transitions.LONGEST_BACKOFF.total_seconds())  # within minutes
        world.fail(attempt, FailureCause.PROCESS_ENDED)
        assert job_of(world, attempt).deaths == deaths
        attempt = next_attempt(world)
    assert len(delays(world)) == 1
    assert job_of(world, attempt).state == JobState.RUNNING


def test_what_an_attempt_has_reached_ends_the_count_of_deaths(world: World) -> None:
    attempt = first_attempt(world)
    world.fail(attempt, FailureCause.PROCESS_ENDED)
    world.publish(attempt := next_attempt(world))
    assert (job_of(world, attempt).deaths, job_of(world, attempt).faults) == (0, 0)


@pytest.mark.parametrize("kind", [JobKind.REGISTER, JobKind.EVALUATE])
def test_a_job_that_is_no_erasure_ends_when_it_keeps_killing_its_worker(world: World, kind: JobKind) -> None:
    with world.services.database.writing() as session:
        transitions.create_job(session, kind, world.models[0], world.clock.wall)
    for _ in range(2):
        world.fail(next_attempt(world), FailureCause.PROCESS_ENDED)
    world.fail(next_attempt(world), FailureCause.STORAGE)  # not a death, so the count starts again
    for _ in range(2):
        world.fail(attempt := next_attempt(world), FailureCause.PROCESS_ENDED)
        assert job_of(world, attempt).state == JobState.WAITING
    world.fail(attempt := next_attempt(world), FailureCause.PROCESS_ENDED)
    assert job_of(world, attempt).state == JobState.FAILED


def test_a_job_that_is_no_erasure_waits_for_days(world: World) -> None:
    with world.services.database.writing() as session:
        transitions.create_job(session, JobKind.EVALUATE, world.models[0], world.clock.wall)
    world.fail(next_attempt(world), FailureCause.STORAGE)
    world.clock.passes(timedelta(days=2).total_seconds())
    world.fail(attempt := next_attempt(world), FailureCause.STORAGE)
    assert job_of(world, attempt).state == JobState.WAITING
    world.clock.passes(timedelta(days=1).total_seconds())
    world.fail(attempt := next_attempt(world), FailureCause.STORAGE)
    assert job_of(world, attempt).state == JobState.FAILED


def test_a_retry_waits_until_the_other_batch_of_the_model_has_ended(world: World) -> None:
    failed = first_attempt(world)
    world.fail(failed)
    world.fail(next_attempt(world))
    other = first_attempt(world)
    failed_batch = batch_of(world, failed)
    assert (failed_batch.state, batch_of(world, other).state) == (BatchState.FAILED, BatchState.RUNNING)

    world.retry(failed_batch.id)
    world.retry(failed_batch.id)  # asking twice changes nothing
    world.dispatchers[0].seal_due()
    waiting = batch_of(world, failed)
    assert (waiting.state, waiting.retry_requested) == (BatchState.FAILED, True)
    assert "when the model's other batch has ended" in str(
        batches.waiting_for(waiting, job_of(world, failed))
    )

    world.ask(0, subjects=3)  # a later request does not overtake it
    world.complete(other)
    world.dispatchers[0].seal_due()
    started = batch_of(world, failed)
    assert (started.state, started.retry_requested) == (BatchState.SEALED, False)
    world.complete(next_attempt(world))
    with world.services.database.reading() as session:
        ended = session.scalars(select(Task).where(Task.batch_id == failed_batch.id)).all()
        assert {task.state for task in ended} == {TaskState.COMPLETED}
        asked = session.scalars(select(BatchEvent).where(BatchEvent.kind == EventKind.RETRY)).all()
        assert len(asked) == 1


def test_a_waiting_retry_starts_under_the_policy_of_that_moment(world: World) -> None:
    failed = first_attempt(world)
    world.fail(failed)
    world.fail(next_attempt(world))
    other = first_attempt(world)
    world.retry(batch_of(world, failed).id)
    with world.services.database.writing() as session:
        model = session.get_one(Model, world.models[0])
        model.manifest = model.manifest | {"policy": model.manifest["policy"] | {"fallback": "fail"}}
    world.complete(other)
    world.dispatchers[0].seal_due()
    assert batch_of(world, failed).policy["fallback"] == "fail"


def test_a_process_that_does_not_claim_its_job_hangs(world: World) -> None:
    world.ask(0, subjects=3)
    world.dispatchers[0].seal_due()
    world.dispatchers[0].queue_waiting_jobs()
    world.dispatchers[0].send_outbox()
    message = world.queue.messages.pop()
    watch = ClaimWatch(world.services, message.job_id, message.token, lambda: world.clock.steady)
    world.clock.passes(world.services.settings.claim_seconds - 1)
    assert not watch.hangs()
    world.clock.passes(2)
    assert watch.hangs()
    assert world.claim(message) is not None
    assert not watch.hangs()


def test_a_message_whose_process_was_killed_before_the_claim_is_announced_again(world: World) -> None:
    world.ask(0, subjects=3)
    world.dispatchers[0].seal_due()
    world.dispatchers[0].queue_waiting_jobs()
    world.dispatchers[0].send_outbox()
    lost = world.queue.messages.pop()
    world.report_end(Attempt(lost.job_id, lost.token))
    world.clock.passes(world.services.settings.requeue_after_seconds + 1)
    world.dispatchers[0].announce_lost_messages()
    world.dispatchers[0].send_outbox()
    assert world.queue.messages == [lost]
