"""Recording a group with one statement: only what needs no second look, and nothing twice."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import OperationalError

from app.core.data_key import subject_key_row
from app.db import audit_log
from app.db.audit_log import AuditEntry
from app.db.key_tables import DEPLOYMENT
from app.db.states import DataKeyPurpose, ModelState
from app.db.tables import Erasure, Model, Task, TaskSubject
from app.gateway.erasures.group_commit import GroupCommit
from app.gateway.erasures.recording import Answer, PreparedErasure, record_group
from app.gateway.erasures.schemas import ErasureRequest
from app.gateway.erasures.service import prepare
from app.gateway.erasures.single_statement import SingleStatement
from app.gateway.errors import IdempotencyMismatch, InvalidRequest
from app.services import Services
from lethe.certificate.audit_log import AuditLogHeads, verify_audit_log
from lethe.certificate.keys import KeySet
from tests import eventually
from tests.integration.job_world import World

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@pytest.fixture
def world(services: Services) -> World:
    return World(services)


def _prepared(world: World, key: str | None = None, *subjects: str, **details: Any) -> PreparedErasure:
    request = ErasureRequest(subjects=list(subjects) or ["a"], **details)
    return prepare(world.services.vault, world.tenant, request, request.subjects, key)


def _recorder(world: World) -> SingleStatement:
    data_keys = world.services.data_keys
    data_keys.create(DataKeyPurpose.SUBJECTS, world.models)
    data_keys.create(DataKeyPurpose.FINGERPRINTS, [DEPLOYMENT])
    recorder = SingleStatement(world.services)
    recorder.learn_models({world.tenant})
    return recorder


def _count(world: World, table: Any) -> int:
    with world.services.database.reading() as session:
        return len(session.scalars(select(table)).all())


def _verified_entries(world: World) -> int:
    """Verify the chain of the audit log and return how many entries it has."""
    with world.services.database.reading() as session:
        rows = session.scalars(select(AuditEntry).order_by(AuditEntry.sequence)).all()
    heads = AuditLogHeads(log_id=str(world.tenant), heads=(), keys=KeySet(keys=()))
    return verify_audit_log([row.exported for row in rows], heads).entries


def _waits_for_a_lock(world: World) -> bool:
    with world.services.database.reading() as session:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'known'"
        return bool(session.scalar(text(waiting)))


def test_every_column_is_stored_as_the_general_way_stores_it(world: World) -> None:
    details: dict[str, Any] = {"reference": "fäll-1", "reason": "asked", "models": ["m0", "m1"]}
    quick, general = (_prepared(world, None, "a", "b", **details) for _ in range(2))
    recorder = _recorder(world)
    assert list(recorder.record([quick])) == [quick.id]
    recorder.close()
    record_group(world.services, [general])
    own = {"id", "received_at", "created_at", "due_at"}
    with world.services.database.reading() as session:
        stored = [session.get_one(Erasure, prepared.id) for prepared in (quick, general)]
        columns = [column.key for column in Erasure.__table__.columns if column.key not in own]
        values = [[getattr(row, name) for name in columns] for row in stored]
        assert values[0] == values[1]
        assert {name: getattr(stored[0], name) for name in own} == {name: quick.erasure[name] for name in own}
        tasks = session.scalars(select(Task).where(Task.erasure_id == quick.id)).all()
        assert {(task.state, task.subjects, task.due_at) for task in tasks} == {
            ("received", 2, quick.erasure["due_at"])
        }
        subjects = session.scalars(select(TaskSubject).where(TaskSubject.task_id == tasks[0].id)).all()
        assert [s.identifier for s in sorted(subjects, key=lambda s: s.ordinal)] == list(quick.identifiers)
        data_key = world.services.data_keys.open(tasks[0].subject_key_id or DEPLOYMENT)
        people = [data_key.hash_person(person) for person in quick.people]
        assert [s.person for s in sorted(subjects, key=lambda s: s.ordinal)] == people
        assert tasks[0].subject_key is not None
        task_key = data_key.unwrap(tasks[0].subject_key, row=subject_key_row(tasks[0].id))
        assert task_key == quick.task_key


@pytest.mark.parametrize("state", [ModelState.RETIRED, ModelState.REJECTED])
def test_nothing_is_recorded_if_the_models_have_changed(world: World, state: ModelState) -> None:
    recorder = _recorder(world)
    with world.services.database.writing() as session:
        session.execute(update(Model).where(Model.id == world.models[0]).values(state=state))
    assert recorder.record([_prepared(world), _prepared(world, "k")]) == {}
    recorder.close()
    assert _count(world, Erasure) == 0


def test_the_task_on_a_rejected_model_is_recorded_as_ended(world: World) -> None:
    with world.services.database.writing() as session:
        session.execute(update(Model).where(Model.id == world.models[0]).values(state=ModelState.REJECTED))
    recorder, prepared = _recorder(world), _prepared(world, None, "a", "b")
    assert list(recorder.record([prepared])) == [prepared.id]
    recorder.close()
    with world.services.database.reading() as session:
        tasks = {task.model_id: task for task in session.scalars(select(Task))}
        people = session.scalars(select(TaskSubject.task_id)).all()
    ended, waiting = (tasks[model] for model in world.models)
    assert (ended.state, ended.completed_at) == ("completed", prepared.erasure["created_at"])
    assert (waiting.state, waiting.completed_at) == ("received", None)
    assert people == [waiting.id, waiting.id], "an ended task keeps no identifiers"


def test_a_key_is_claimed_once(world: World) -> None:
    recorder = _recorder(world)
    first, again, other = (_prepared(world, "k"), _prepared(world, "k"), _prepared(world, "k2"))
    assert set(recorder.record([first, again])) == {first.id}
    assert set(recorder.record([again, other, _prepared(world, "k", "b")])) == {other.id}
    recorder.close()
    assert _count(world, Erasure) == 2


def test_what_one_statement_leaves_is_answered_all_the_same(world: World) -> None:
    group = [
        _prepared(world),
        _prepared(world, "k"),
        _prepared(world, "k"),
        _prepared(world, "k", "other"),
        _prepared(world, None, models=["nowhere"]),
    ]

    async def run() -> list[Any]:
        async with GroupCommit(world.services) as door:
            await door.submit(_prepared(world))  # the gateway knows the models from now on
            return await asyncio.gather(*(door.submit(p) for p in group), return_exceptions=True)

    outcomes = asyncio.run(run())
    kinds = [Answer, Answer, Answer, IdempotencyMismatch, InvalidRequest]
    assert [type(outcome) for outcome in outcomes] == kinds
    assert outcomes[1].body == outcomes[2].body
    assert [outcome.replayed for outcome in outcomes[:3]] == [False, False, True]
    assert _count(world, Erasure) == 3


def test_after_a_lost_connection_nothing_is_written_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit may have arrived although its answer did not, so the request is not repeated."""
    written: list[int] = []
    real = psycopg.Connection.execute

    def execute(self: Any, query: Any, *args: Any, **more: Any) -> Any:
        result = real(self, query, *args, **more)
        if query == "COMMIT" and not written:
            written.append(1)
            raise psycopg.OperationalError("the connection is lost")
        return result

    async def run() -> list[Any]:
        async with GroupCommit(world.services) as door:
            await door.submit(_prepared(world))
            monkeypatch.setattr(psycopg.Connection, "execute", execute)
            lost = await asyncio.gather(door.submit(_prepared(world)), return_exceptions=True)
            return [*lost, await door.submit(_prepared(world))]

    lost, later = asyncio.run(run())
    assert isinstance(lost, OperationalError)
    assert isinstance(later, Answer)
    assert _count(world, Erasure) == 3


def test_a_gateway_that_writes_alone_sends_one_statement_for_each_group(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = _recorder(world)
    recorder.record([_prepared(world)])
    sent: list[str] = []
    real = psycopg.Connection.execute

    def execute(self: Any, query: Any, *args: Any, **more: Any) -> Any:
        sent.append(query)
        return real(self, query, *args, **more)

    monkeypatch.setattr(psycopg.Connection, "execute", execute)
    group = [_prepared(world, "k", "a", "b"), _prepared(world)]
    assert set(recorder.record(group)) == {prepared.id for prepared in group}
    assert len(sent) == 1
    recorder.close()
    assert _verified_entries(world) == 3


def test_an_entry_that_another_process_is_just_writing_is_not_overwritten(world: World) -> None:
    """Our statement has begun before the other transaction commits, so it cannot see that entry."""
    recorder = _recorder(world)
    recorder.record([_prepared(world)])
    prepared = _prepared(world)
    with ThreadPoolExecutor(1) as thread:
        with world.services.database.writing() as session:
            audit_log.record(session, world.tenant, audit_log.Action.MODEL_FLUSHED, "model/x")
            recording = thread.submit(recorder.record, [prepared])
            eventually(lambda: _waits_for_a_lock(world), every=0.01)
        assert list(recording.result()) == [prepared.id]
    recorder.close()
    assert _verified_entries(world) == 3


def test_a_repeated_key_does_not_keep_its_group_from_being_recorded(world: World) -> None:
    recorder = _recorder(world)
    recorder.record([_prepared(world, "k")])
    again, other, third = (_prepared(world, "k"), _prepared(world), _prepared(world, "k3"))
    assert set(recorder.record([again, other, third])) == {other.id, third.id}
    recorder.close()
    assert _verified_entries(world) == _count(world, Erasure) == 3


def test_after_a_connection_lost_in_the_single_round_trip_nothing_is_written_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = _recorder(world)
    recorder.record([_prepared(world)])
    real = psycopg.Connection.execute

    def execute(self: Any, query: Any, *args: Any, **more: Any) -> Any:
        real(self, query, *args, **more)
        raise psycopg.OperationalError("the connection is lost")

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Connection, "execute", execute)
        with pytest.raises(OperationalError):
            recorder.record([_prepared(world)])
    assert _count(world, Erasure) == 2, "it was committed, and is recorded once"
    recorder.record([_prepared(world)])
    recorder.close()
    assert _verified_entries(world) == 3


def test_every_recorded_request_has_one_entry_in_the_audit_log(world: World) -> None:
    recorder = _recorder(world)
    first, again, other = (_prepared(world, "k", "a", "b"), _prepared(world, "k"), _prepared(world))
    refused = _prepared(world, None, models=["nowhere"])
    recorder.record([first, refused])
    record_group(world.services, [_prepared(world)])
    recorder.record([again, other])
    recorder.close()
    with world.services.database.reading() as session:
        stored = set(session.scalars(select(Erasure.id)))
        rows = session.scalars(select(AuditEntry).order_by(AuditEntry.sequence)).all()
    assert {first.id, other.id} < stored
    entries = [row.exported for row in rows]
    assert [entry.sequence for entry in entries] == [0, 1, 2]
    assert {entry.target for entry in entries} == {f"erasure/{id_}" for id_ in stored}
    assert entries[0].details == {"subjects": 2, "models": ["m0", "m1"]}
    assert _verified_entries(world) == 3


def test_a_request_whose_entry_is_rejected_is_not_recorded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = _recorder(world)
    recorder.record([_prepared(world)])
    chained = audit_log.chained
    with monkeypatch.context() as patch:
        patch.setattr(
            audit_log, "chained", lambda heads, events: chained(dict.fromkeys(heads, (0, b"")), events)
        )
        with pytest.raises(psycopg.errors.UniqueViolation):
            recorder.record([_prepared(world)])
    assert (_count(world, Erasure), _count(world, AuditEntry)) == (1, 1)
    recorder.record([_prepared(world)])  # the connection is usable again
    recorder.close()
    assert (_count(world, Erasure), _count(world, AuditEntry)) == (2, 2)
