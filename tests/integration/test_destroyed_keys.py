"""What is deleted does not open from old bytes of the database, even with the deployment key."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete, func, select, update
from sqlalchemy.exc import IntegrityError

from app.backup import archive
from app.core.clock import now
from app.core.settings import Settings
from app.core.vault import KeyProblem, row_of
from app.db import audit_log, paths, transitions
from app.db.key_tables import DEPLOYMENT, DataKeyRecord, DestroyedDataKey
from app.db.states import BatchState, DataKeyPurpose, DataKeyState, FailureCause, SealReason, TaskState
from app.db.tables import Batch, Erasure, IdempotencyKey, Job, Model, Task, TaskSubject
from app.dispatcher import key_destruction, orphan_sweep, sealing
from app.gateway.erasures.recording import Answer, record_group
from app.gateway.erasures.schemas import ErasureRequest
from app.gateway.erasures.service import prepare
from app.gateway.erasures.single_statement import SingleStatement
from app.services import Services
from tests.integration.harness import create_model
from tests.integration.job_world import World
from tests.integration.model_api import Api, Headers, work
from tests.integration.old_bytes import Attacker, files_of, position
from worker.errors import cause_of

ERASED = ["s1", "s2"]
GUESSES = [f"s{n}" for n in range(40)]
Start = Callable[[Settings], Services]


@pytest.fixture
def world(services: Services) -> World:
    return World(services)


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that builds the services of a part. They are closed after the test."""
    with ExitStack() as stack:

        def build(settings: Settings) -> Services:
            services = Services(settings)
            stack.callback(services.close)
            return services

        yield build


@pytest.fixture
def api(gateway: TestClient, admin: Headers) -> Api:
    create_model(gateway, admin)
    return Api(gateway, admin)


def record(world: World, *subjects: str, key: str | None = None) -> UUID:
    """Record a request for the first model, and return its task."""
    request = ErasureRequest(subjects=list(subjects), models=["m0"])
    prepared = prepare(world.services.vault, world.tenant, request, request.subjects, key)
    (answer,) = record_group(world.services, [prepared])
    assert isinstance(answer, Answer)
    with world.services.database.reading() as session:
        return session.scalars(select(Task.id).where(Task.erasure_id == prepared.id)).one()


def identifiers(services: Services, task_id: UUID) -> list[str]:
    """Open the identifiers of a task."""
    with services.database.reading() as session:
        task = session.get_one(Task, task_id)
        rows = session.scalars(
            select(TaskSubject).where(TaskSubject.task_id == task_id).order_by(TaskSubject.ordinal)
        ).all()
    cipher = services.data_keys.subject_cipher(task_id, task.subject_key, task.subject_key_id)
    return [
        cipher.decrypt(row.identifier, row=row_of(task.erasure_id, row.ordinal))
        for row in rows
        if row.identifier is not None
    ]


def keys(services: Services, *states: DataKeyState) -> list[UUID]:
    with services.database.reading() as session:
        query = select(DataKeyRecord.id).where(DataKeyRecord.purpose == DataKeyPurpose.SUBJECTS)
        if states:
            query = query.where(DataKeyRecord.state.in_(states))
        return list(session.scalars(query.order_by(DataKeyRecord.id)))


def key_of(services: Services, task_id: UUID) -> UUID:
    with services.database.reading() as session:
        key_id = session.get_one(Task, task_id).subject_key_id
    assert key_id is not None
    return key_id


def files(services: Services) -> set[str]:
    return set(services.storage.list(paths.DATA_KEYS))


# The attack


def test_after_the_purge_old_bytes_and_remaining_keys_reveal_nobody(api: Api, services: Services) -> None:
    work(services)
    since = position(services)
    headers = api.headers | {"Idempotency-Key": "once"}
    asked = api.gateway.post("/v1/erasures", json={"subjects": ERASED}, headers=headers).json()["id"]
    with services.database.reading() as session:
        tasks: dict[UUID, UUID] = {
            row[0]: row[1] for row in session.execute(select(Task.id, Task.erasure_id))
        }
        tenant_id = session.scalars(select(Erasure.tenant_id)).one()
        sealed = session.scalars(select(TaskSubject.identifier)).all()
        people = session.scalars(select(TaskSubject.person)).all()
    before = Attacker.of(services, files_of(services, since), tenant_id, GUESSES)
    assert before.opened(tasks) == set(ERASED), "the attack works while the request waits"
    assert before.confirmed() == set(ERASED)

    work(services)
    waiting = api.ask("s7")["id"]
    with services.database.reading() as session:
        salts = session.scalars(select(TaskSubject.salt).where(TaskSubject.salt.is_not(None))).all()
    content = files_of(services, since)
    if not services.database.is_sqlite:  # it keeps what it deletes, so this is what the keys are for
        assert all(value in content for value in [*sealed, *people] if value is not None)
    after = Attacker.of(services, content, tenant_id, GUESSES)
    assert after.opened(tasks) == set()
    assert after.confirmed() == {"s7"}, "whoever waits is still there"
    assert len(after.salts(tasks)) == len(ERASED), "receipts can be fetched, so their salts open"

    path = f"/v1/erasures/{asked}/receipts/acknowledge"
    assert api.gateway.post(path, headers=api.headers).status_code == 200
    later = now() + timedelta(seconds=services.settings.key_renewal_seconds + 1)
    key_destruction.destroy_dirty_keys(services, later)
    content = files_of(services, since)
    if not services.database.is_sqlite:
        assert all(value in content for value in salts if value is not None)
    assert Attacker.of(services, content, tenant_id, GUESSES).salts(tasks) == set()
    (survivor,) = api.gateway.get(f"/v1/erasures/{waiting}", headers=api.headers).json()["tasks"]
    assert survivor["state"] == TaskState.RECEIVED


def test_a_fingerprint_cannot_be_tested_when_its_day_is_over(world: World) -> None:
    services, since = world.services, position(world.services)
    record(world, "s1", key="k")
    request = ErasureRequest(subjects=["s1"], models=["m0"])
    guess = prepare(services.vault, world.tenant, request, request.subjects, "k").idempotency
    assert guess is not None

    def confirmed() -> bool:
        attacker = Attacker.of(services, files_of(services, since), world.tenant, [])
        hashes = [guess.fingerprint, *(k.hash_fingerprint(guess.fingerprint) for k in attacker.data_keys)]
        return any(value in attacker.content for value in hashes)

    assert confirmed()
    tomorrow = now() + timedelta(days=1, minutes=1)
    key_destruction.destroy_dirty_keys(services, tomorrow)
    assert confirmed(), "its answer has not been deleted yet"
    record(world, "s2", key="another")
    with services.database.writing() as session:
        session.execute(delete(IdempotencyKey).where(IdempotencyKey.key_hash == guess.key_hash))
    key_destruction.destroy_dirty_keys(services, tomorrow)
    assert not confirmed()
    assert services.data_keys.ensure(DataKeyPurpose.FINGERPRINTS, DEPLOYMENT)


def test_a_repeated_request_is_recognised_after_the_key_of_fingerprints_was_replaced(world: World) -> None:
    services = world.services
    record(world, "s1", key="k")
    key_destruction.destroy_dirty_keys(services, now() + timedelta(days=1, minutes=1))
    for subject, replayed in (("s1", True), ("s2", None)):
        request = ErasureRequest(subjects=[subject], models=["m0"])
        prepared = prepare(services.vault, world.tenant, request, request.subjects, "k")
        (answer,) = record_group(services, [prepared])
        assert getattr(answer, "replayed", None) is replayed


# Races


def test_a_key_is_not_destroyed_while_a_request_is_recorded_under_it(
    world: World, monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    services = world.services
    key_id = key_of(services, record(world, "first"))
    reached, go_on = threading.Event(), threading.Event()
    record_all = audit_log.record_all

    def pausing(*arguments: Any) -> None:
        record_all(*arguments)
        reached.set()
        assert go_on.wait(30)

    monkeypatch.setattr(audit_log, "record_all", pausing)
    recorded: list[UUID] = []
    recording = threading.Thread(target=lambda: recorded.append(record(world, "late")))
    recording.start()
    assert reached.wait(30)
    destroyed: list[object] = []

    def destroy() -> None:
        with services.database.writing() as session:
            transitions.doom_data_keys(session, select(DataKeyRecord.id).where(DataKeyRecord.id == key_id))
        destroyed.append(services.data_keys.destroy(key_id))

    destroying = threading.Thread(target=destroy)
    destroying.start()
    destroying.join(0.2)
    assert destroying.is_alive(), "it waits for the transaction that needs the key"
    go_on.set()
    for thread in (recording, destroying):
        thread.join(30)
    assert destroyed == [False]
    assert identifiers(services, recorded[0]) == ["late"]
    services.key_renewal.destroy_doomed(world.models[0])
    assert key_id not in keys(services)
    assert identifiers(services, recorded[0]) == ["late"]


def test_no_row_can_refer_to_a_key_that_was_deleted(world: World) -> None:
    services = world.services
    task_id = record(world, "a")
    key_id = key_of(services, task_id)
    with services.database.writing() as session:
        transitions.doom_data_keys(session, select(DataKeyRecord.id).where(DataKeyRecord.id == key_id))
    services.key_renewal.destroy_doomed(world.models[0])
    with pytest.raises(IntegrityError), services.database.writing() as session:
        session.execute(update(Task).where(Task.id == task_id).values(subject_key_id=key_id))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_gateway_with_a_stale_key_records_nothing_under_it(world: World) -> None:
    services = world.services
    record(world, "a")
    recorder = SingleStatement(services)
    recorder.learn_models({world.tenant})
    with services.database.writing() as session:
        transitions.retire_data_key(session, DataKeyPurpose.SUBJECTS, world.models[0])
    request = ErasureRequest(subjects=["b"], models=["m0"])
    prepared = prepare(services.vault, world.tenant, request, request.subjects, None)
    assert recorder.record([prepared]) == {}
    recorder.close()
    assert isinstance(record_group(services, [prepared])[0], Answer)
    assert len(keys(services, DataKeyState.CURRENT)) == 1


def test_many_gateways_create_one_key(world: World, start: Start) -> None:
    services, barrier = world.services, threading.Barrier(4)

    def create() -> None:
        barrier.wait(30)
        services.data_keys.create(DataKeyPurpose.SUBJECTS, [world.models[0]])

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(keys(services)) == 1
    assert files(services) == {paths.data_key(keys(services)[0])}


# Crashes


class Crash(Exception):
    pass


STEPS = ["before", "write", "rows", "delete_row", "delete_file", "forget_row"]


@pytest.mark.parametrize("step", STEPS)
def test_a_destruction_that_was_cut_short_is_completed_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str, start: Start
) -> None:
    services = world.services
    ended, waiting = record(world, "a"), record(world, "b", "c")
    key_id = key_of(services, ended)
    with services.database.writing() as session:
        transitions.doom_data_keys(session, select(DataKeyRecord.id).where(DataKeyRecord.id == key_id))
        session.execute(update(TaskSubject).where(TaskSubject.task_id == ended).values(identifier=None))
        cleared = {"subject_key": None, "subject_key_id": None}
        session.execute(update(Task).where(Task.id == ended).values(cleared))

    def crash(*_: Any, **__: Any) -> Any:
        raise Crash

    at: dict[str, tuple[object, str]] = {
        "before": (services.key_renewal, "_move_page"),
        "write": (services.storage, "write"),
        "rows": (services.key_renewal, "_move_subjects"),
        "delete_row": (transitions, "delete_data_key"),
        "delete_file": (services.storage, "delete"),
        "forget_row": (services.data_keys, "_forget_destroyed"),
    }
    with monkeypatch.context() as patch:
        patch.setattr(*at[step], crash)
        with pytest.raises(Crash):
            services.key_renewal.destroy_doomed(world.models[0])
    fresh = start(services.settings)
    assert identifiers(fresh, waiting) == ["b", "c"]
    fresh.key_renewal.destroy_doomed(world.models[0])
    assert identifiers(fresh, waiting) == ["b", "c"]
    assert key_id not in keys(fresh)
    assert paths.data_key(key_id) not in files(fresh)
    with fresh.database.reading() as session:
        assert session.scalar(select(func.count()).select_from(DestroyedDataKey)) == 0
    fresh.close()


@pytest.mark.parametrize("step", ["write", "activate_data_key"])
def test_a_key_whose_creation_was_cut_short_is_cleaned_up(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    services = world.services

    def crash(*_: Any) -> Any:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(services.storage if step == "write" else transitions, step, crash)
        with pytest.raises(Crash):
            services.data_keys.create(DataKeyPurpose.SUBJECTS, [world.models[0]])
    (abandoned,) = keys(services, DataKeyState.PENDING)
    assert orphan_sweep.sweep(services) == 0, "its creator may still be alive"
    record(world, "a")
    key_destruction.destroy_dirty_keys(services, now() + timedelta(hours=2))
    assert abandoned not in keys(services)
    assert files(services) == {paths.data_key(key_id) for key_id in keys(services)}
    with services.database.writing() as session:
        assert not transitions.activate_data_key(session, abandoned), "its creator cannot go on"


def test_the_sweep_deletes_files_of_no_key_and_no_others(world: World, start: Start) -> None:
    services = world.services
    task_id = record(world, "a")
    stray = paths.data_key(DEPLOYMENT)
    services.storage.write(stray, [b"left behind"])
    services.storage.write("keys/notes", [b"not ours"])
    assert orphan_sweep.sweep(services) == 1
    assert files(services) == {paths.data_key(key_of(services, task_id)), "keys/notes"}
    assert identifiers(start(services.settings), task_id) == ["a"]


def test_the_purge_goes_on_after_a_crash_at_the_destruction(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(services)
    api.ask(*ERASED)
    with monkeypatch.context() as patch:
        patch.setattr(services.data_keys, "_destroy_file", _crash)
        with pytest.raises(Crash):
            work(services)
    with services.database.reading() as session:
        assert session.scalars(select(Batch.state)).one() == BatchState.PURGING
        assert session.scalars(select(Task.state)).one() != TaskState.COMPLETED
    _repeat_job(services)
    with services.database.reading() as session:
        assert session.scalars(select(Batch.state)).one() == BatchState.COMPLETED
    assert keys(services) == []


def _crash(*_: Any) -> None:
    raise Crash


def _repeat_job(services: Services) -> None:
    from app.db.states import JobKind, JobState
    from worker.jobs import JOBS

    with services.database.writing() as session:
        job = session.scalars(select(Job).where(Job.state == JobState.RUNNING)).one()
        assert job.token is not None
        job_id, token, kind = job.id, job.token, JobKind(job.kind)
    JOBS[kind](services, job_id, token)


# Missing and damaged files


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_batch_whose_key_is_unreadable_waits_and_says_so(
    api: Api, services: Services, damage: str, start: Start
) -> None:
    work(services)
    api.ask(*ERASED)
    (key_id,) = keys(services)
    path = paths.data_key(key_id)
    kept = b"".join(services.storage.read(path))
    services.storage.delete(path)
    if damage == "changed":
        services.storage.write(path, [bytes(len(kept))])
    other = start(services.settings)
    with pytest.raises(KeyProblem, match="restore this file") as problem:
        work(other)
    assert cause_of(problem.value) is FailureCause.KEY
    assert FailureCause.KEY.is_fault, "so it is tried again without limit"
    services.storage.write(path, [kept])
    _repeat_job(other)
    with other.database.reading() as session:
        assert session.scalars(select(Batch.state)).one() == BatchState.COMPLETED
    other.close()


def test_nothing_more_is_recorded_under_a_key_whose_file_is_missing(world: World, start: Start) -> None:
    services = world.services
    lost = key_of(services, record(world, "a"))
    kept = b"".join(services.storage.read(paths.data_key(lost)))
    services.storage.delete(paths.data_key(lost))
    orphan_sweep.sweep(services)
    saved = record(world, "b")  # this gateway has opened the lost key and could go on using it
    assert key_of(services, saved) != lost
    assert identifiers(start(services.settings), saved) == ["b"]
    assert lost in keys(services, DataKeyState.RETIRED), "in case the file comes back"
    services.storage.write(paths.data_key(lost), [kept])
    orphan_sweep.sweep(services)
    assert paths.data_key(lost) in files(services)


def test_a_request_that_needs_an_unreadable_key_is_refused_with_what_to_do(
    gateway: TestClient, admin: Headers, services: Services
) -> None:
    create_model(gateway, admin)
    services.data_keys.create(DataKeyPurpose.SUBJECTS, [_only_model(services)])
    services.storage.delete(paths.DATA_KEYS)
    answer = gateway.post("/v1/erasures", json={"subjects": ["a"], "models": ["toy"]}, headers=admin)
    assert answer.status_code == 503
    assert "missing from the service or damaged" in answer.json()["detail"]
    with services.database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Erasure)) == 0


def _only_model(services: Services) -> UUID:
    with services.database.reading() as session:
        return session.scalars(select(Model.id)).one()


# Withdrawals, sealing and counting


def test_a_withdrawn_request_is_unreadable_some_time_later_and_the_others_stay(world: World) -> None:
    services, since = world.services, position(world.services)
    withdrawn, waiting = record(world, "s1"), record(world, "s2", "s3")
    key_id = key_of(services, withdrawn)
    with services.database.writing() as session:
        erasure_id = session.get_one(Task, withdrawn).erasure_id
        transitions.withdraw_tasks(session, erasure_id)
    key_destruction.destroy_dirty_keys(services, now())
    assert key_id in keys(services)
    later = now() + timedelta(seconds=services.settings.key_renewal_seconds + 1)
    key_destruction.destroy_dirty_keys(services, later)
    assert key_id not in keys(services)
    attacker = Attacker.of(services, files_of(services, since), world.tenant, GUESSES)
    assert attacker.opened({withdrawn: erasure_id}) == set()
    assert attacker.confirmed() == {"s2", "s3"}
    assert identifiers(services, waiting) == ["s2", "s3"]


def test_one_person_under_two_keys_is_sealed_as_one(world: World) -> None:
    """For example if a request was recorded while the previous batch was sealed."""
    services = world.services
    record(world, "ada", "bob")
    with services.database.writing() as session:
        transitions.retire_data_key(session, DataKeyPurpose.SUBJECTS, world.models[0])
    record(world, "ada")
    world.flush(0)
    sealing.seal_due_batches(services, now())
    with services.database.reading() as session:
        assert session.scalars(select(Batch.subjects)).one() == 2


def test_sealing_gives_what_follows_another_key(world: World) -> None:
    services = world.services
    first = record(world, "a")
    with services.database.writing() as session:
        model = session.get_one(Model, world.models[0])
        transitions.seal(session, model, because=SealReason.FLUSH, now=now())
    assert key_of(services, record(world, "b")) != key_of(services, first)


# What earlier versions stored


def test_stored_identifiers_of_an_earlier_version_are_put_under_data_keys(world: World) -> None:
    services = world.services
    task_id, new = record(world, "ada", "bob"), record(world, "ada")
    with services.database.writing() as session:
        task = session.get_one(Task, task_id)
        rows = session.scalars(select(TaskSubject).where(TaskSubject.task_id == task_id)).all()
        for row, name in zip(sorted(rows, key=lambda row: row.ordinal), ["ada", "bob"], strict=True):
            row.identifier = services.vault.encrypt(name, row=row_of(task.erasure_id, row.ordinal))
            row.person = services.vault.person(world.tenant, name)
        task.subject_key = task.subject_key_id = None
    assert identifiers(services, task_id) == ["ada", "bob"], "they can be read before"
    assert services.key_renewal.adopt_stored() == 1
    assert services.key_renewal.adopt_stored() == 0
    assert key_of(services, task_id) == key_of(services, new)
    assert identifiers(services, task_id) == ["ada", "bob"]
    with services.database.reading() as session:
        assert transitions.waiting_subjects(session, world.models[0]) == 2


# Backups


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_backup_holds_the_keys_of_requests_that_wait(
    world: World, settings: Settings, tmp_path: Path, start: Start
) -> None:
    services = world.services
    task_id = record(world, "ada")
    made = archive.create(services, tmp_path / "backup")
    assert [file.path for file in made.files] == [paths.data_key(key_of(services, task_id))]
    services.storage.delete(paths.DATA_KEYS)
    with pytest.raises(KeyProblem):
        identifiers(start(settings), task_id)
    there = settings.model_copy(
        update={
            "data_dir": tmp_path / "there",
            "database_url": f"sqlite:///{tmp_path / 'there.db'}",
            "deployment_key_file": settings.deployment_key_path,
        }
    )
    restored = start(there)
    archive.restore(restored, tmp_path / "backup")
    assert identifiers(restored, task_id) == ["ada"]
    restored.close()
