"""Recording prepared erasure requests in SQL, a group at a time, in one transaction."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, cast
from uuid import UUID

import psycopg
from sqlalchemy import BigInteger, Connection, Integer, LargeBinary, String, Uuid, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.core.clock import new_id
from app.core.data_key import DataKey, subject_key_row
from app.db import audit_log
from app.db.audit_log import Action, Event
from app.db.binary_arrays import (
    BigIntegerArray,
    BinaryArray,
    BytesArray,
    IntegerArray,
    TextArray,
    TimestampArray,
    UuidArray,
)
from app.db.data_keys import TRIES, DataKeys
from app.db.key_tables import DEPLOYMENT
from app.db.states import DataKeyPurpose, ModelState, TaskState
from app.db.tables import Erasure, IdempotencyKey, Model, Task, TaskSubject
from app.db.types import Base, UtcDateTime
from app.gateway.erasures.deadlines import days_late
from app.gateway.erasures.schemas import ErasureView
from app.gateway.erasures.views import derived_state, new_task, summarise
from app.gateway.errors import IdempotencyMismatch, InvalidRequest, ServiceError, Unavailable
from app.services import Services
from lethe.certificate.audit_log import Actor

KEY_LIFETIME = timedelta(hours=24)
INSERT_ROWS = 5000
MAX_ROWS = 5_000_000  # of one request, which is written in one transaction

Key = tuple[UUID, bytes]
Rows = Sequence[dict[str, Any]]


class LiveModel(NamedTuple):
    """A model that is not retired."""

    id: UUID
    state: ModelState


class ChosenModel(NamedTuple):
    """A model of a request. If `ends`, its task ends at once, because the model is not registered."""

    id: UUID
    name: str
    ends: bool = False


Models = Sequence[ChosenModel]
Targets = dict[UUID, dict[str, LiveModel]]
"""The live models of each tenant, by name."""


@dataclass(frozen=True)
class Idempotency:
    """Keyed hashes of an Idempotency-Key and of the request that was sent with it."""

    key_hash: bytes
    fingerprint: bytes


@dataclass(frozen=True)
class PreparedErasure:
    """A validated request with encrypted identifiers, ready to be written."""

    erasure: dict[str, Any]
    task_key: bytes
    """The key of the identifiers. It is stored encrypted only, and never logged."""
    identifiers: Sequence[bytes]
    people: Sequence[bytes]
    """A keyed hash of each identifier, in the same order. It is hashed again before it is stored."""
    warnings: list[str]
    models: frozenset[str] | None
    """The names of the models, or None for every model of the tenant."""
    idempotency: Idempotency | None
    actor: Actor
    """Who the audit log says requested it. The group is written outside the context of its requests."""

    @property
    def id(self) -> UUID:
        """The id of the erasure."""
        identifier: UUID = self.erasure["id"]
        return identifier

    @property
    def key(self) -> tuple[UUID, bytes] | None:
        """The tenant and the hashed Idempotency-Key, which together are unique."""
        return None if self.idempotency is None else (self.erasure["tenant_id"], self.idempotency.key_hash)


@dataclass(frozen=True)
class Answer:
    """The answer to a request. `models` is the number of models it concerns."""

    body: str
    location: str
    models: int = 0
    replayed: bool = False


@dataclass(frozen=True)
class Entry:
    """A request whose models exist, with the body of its answer."""

    prepared: PreparedErasure
    models: Models
    body: str

    @property
    def answer(self) -> Answer:
        """The answer to the request."""
        return Answer(self.body, f"/v1/erasures/{self.prepared.id}", models=len(self.models))

    @property
    def event(self) -> Event:
        """What the audit log says about the request: the number of people, never who they are."""
        erasure = self.prepared.erasure
        return Event(
            erasure["tenant_id"],
            Action.ERASURE_REQUESTED,
            f"erasure/{self.prepared.id}",
            self.prepared.actor,
            {"subjects": erasure["subjects"], "models": [model.name for model in self.models]},
        )


@dataclass(frozen=True)
class Recorded:
    """What was recorded under an idempotency key, now or earlier."""

    fingerprint: bytes
    answer: Answer
    hash_key: DataKey | None = None
    """The data key that the stored fingerprint was hashed under, if any."""

    def replay(self, prepared: PreparedErasure) -> Answer | ServiceError:
        """Answer a request that repeats the key: the same answer, or an error if the request differs."""
        assert prepared.idempotency is not None
        fingerprint = prepared.idempotency.fingerprint
        if self.hash_key is not None:
            fingerprint = self.hash_key.hash_fingerprint(fingerprint)
        if fingerprint == self.fingerprint:
            return self.answer
        return IdempotencyMismatch(
            "This key was used within the last 24 hours with another body or other parameters. Use a new "
            "key, or repeat the first request exactly."
        )


@dataclass(frozen=True)
class RecordingKeys:
    """The current data keys that a group of requests is recorded under."""

    by_model: Mapping[UUID, DataKey]
    fingerprints: DataKey | None


class _KeysMissing(Exception):
    """Some owners have no current data key. It is raised to leave the transaction, and never escapes."""

    def __init__(self, purpose: DataKeyPurpose, owners: Iterable[UUID]) -> None:
        super().__init__()
        self.purpose, self.owners = purpose, list(owners)


def record_group(services: Services, group: Sequence[PreparedErasure]) -> Sequence[Answer | ServiceError]:
    """Write the new requests of a group in one transaction, and look up the repeated ones.

    Returns one answer or error per request, in order. If a model has no current data key, the key is created
    first, because its file has to be on disk before anything depends on it.
    """
    for _ in range(TRIES):
        try:
            return _record_group(services, group)
        except _KeysMissing as missing:
            services.data_keys.create(missing.purpose, missing.owners)
    raise Unavailable(
        "The keys of a model are being replaced. Send the request again in a few seconds.",
        headers={"Retry-After": "2"},
    )


def _record_group(services: Services, group: Sequence[PreparedErasure]) -> Sequence[Answer | ServiceError]:
    outcomes: dict[UUID, Answer | ServiceError] = {}
    with services.database.writing() as session:
        entries = _resolve_models(session, services.data_keys, group, outcomes)
        leaders = leaders_of(entries)
        keys = current_keys(session, services.data_keys, leaders)
        keyed = [entry for entry in leaders if entry.prepared.idempotency]
        recorded = _claim_keys(session, services.data_keys, keyed, keys)
        fresh = [entry for entry in leaders if entry.prepared.key not in recorded]
        insert_erasures(session, [(entry.prepared, entry.models) for entry in fresh], keys)
        audit_log.record_all(session, [entry.event for entry in fresh])
    for entry in fresh:
        outcomes[entry.prepared.id] = entry.answer
        if entry.prepared.key and entry.prepared.idempotency:
            replayed = replace(entry.answer, replayed=True)
            recorded[entry.prepared.key] = Recorded(entry.prepared.idempotency.fingerprint, replayed)
    for prepared in group:
        if prepared.id not in outcomes:
            assert prepared.key is not None
            outcomes[prepared.id] = recorded[prepared.key].replay(prepared)
    return [outcomes[prepared.id] for prepared in group]


def current_keys(session: Session, data_keys: DataKeys, entries: Sequence[Entry]) -> RecordingKeys:
    """Return the current data keys that these requests need, locked until the commit."""
    models = {model.id for entry in entries for model in entry.models if not model.ends}
    by_model = data_keys.current(session, DataKeyPurpose.SUBJECTS, models)
    if missing := models - by_model.keys():
        raise _KeysMissing(DataKeyPurpose.SUBJECTS, missing)
    if not any(entry.prepared.idempotency for entry in entries):
        return RecordingKeys(by_model, None)
    fingerprints = data_keys.current(session, DataKeyPurpose.FINGERPRINTS, [DEPLOYMENT])
    if not fingerprints:
        raise _KeysMissing(DataKeyPurpose.FINGERPRINTS, [DEPLOYMENT])
    return RecordingKeys(by_model, fingerprints[DEPLOYMENT])


def answer_body(prepared: PreparedErasure, models: Models) -> str:
    """Return the body of the 202 answer as JSON. A replay returns exactly these bytes."""
    erasure = prepared.erasure
    created = erasure["created_at"]
    tasks = [
        new_task(model.name, subjects=erasure["subjects"], ended_at=created if model.ends else None)
        for model in models
    ]
    state = derived_state(task.state for task in tasks)
    is_open = state != TaskState.COMPLETED
    view = ErasureView(
        id=erasure["id"],
        state=state,
        summary=summarise(state, tasks),
        subjects=erasure["subjects"],
        reference=erasure["reference"],
        reason=erasure["reason"],
        jurisdiction=erasure["jurisdiction"],
        received_at=erasure["received_at"],
        due_at=erasure["due_at"],
        extension_reason=None,
        withdrawal_reason=None,
        completed_at=None if is_open else created,
        overdue=is_open and erasure["due_at"] < created,
        late_days=days_late(erasure["due_at"], created),
        tasks=tasks,
        warnings=prepared.warnings,
    )
    return view.model_dump_json()


def insert_erasures(
    session: Session, requests: Sequence[tuple[PreparedErasure, Models]], keys: RecordingKeys
) -> None:
    """Insert requests, one task per model, and one row per subject and task that is open."""
    if not requests:
        return
    tasks = [(prepared, task_row(prepared, model, keys)) for prepared, models in requests for model in models]
    subjects = subject_rows(tasks, keys)
    _insert_all(
        session,
        (Erasure, [prepared.erasure for prepared, _ in requests]),
        (Task, [task for _, task in tasks]),
        (TaskSubject, list(islice(subjects, INSERT_ROWS))),
    )
    while rows := list(islice(subjects, INSERT_ROWS)):
        _insert_all(session, (TaskSubject, rows))


def subject_rows(
    tasks: Iterable[tuple[PreparedErasure, dict[str, Any]]], keys: RecordingKeys
) -> Iterator[dict[str, Any]]:
    """Yield one row for each subject and task that is open. An ended task needs no identifiers."""
    for prepared, task in tasks:
        if task["state"] == TaskState.COMPLETED:
            continue
        task_id, hash_person = task["id"], keys.by_model[task["model_id"]].hash_person
        for i, (sealed, person) in enumerate(zip(prepared.identifiers, prepared.people, strict=True)):
            yield {"task_id": task_id, "ordinal": i, "identifier": sealed, "person": hash_person(person)}


def task_row(prepared: PreparedErasure, model: ChosenModel, keys: RecordingKeys) -> dict[str, Any]:
    """Return the row of a new task: this erasure on this model."""
    task_id, erasure = new_id(), prepared.erasure
    data_key = None if model.ends else keys.by_model[model.id]
    return {
        "id": task_id,
        "erasure_id": erasure["id"],
        "model_id": model.id,
        "state": (TaskState.COMPLETED if model.ends else TaskState.RECEIVED).value,
        "subjects": erasure["subjects"],
        "due_at": erasure["due_at"],
        "created_at": erasure["created_at"],
        "completed_at": erasure["created_at"] if model.ends else None,
        "subject_key": data_key and data_key.wrap(prepared.task_key, row=subject_key_row(task_id)),
        "subject_key_id": data_key and data_key.id,
    }


def _resolve_models(
    session: Session,
    data_keys: DataKeys,
    group: Sequence[PreparedErasure],
    outcomes: dict[UUID, Answer | ServiceError],
) -> list[Entry]:
    """Return the requests whose models exist.

    The others are answered in `outcomes`: with an error, or, if they repeat an earlier request whose models
    still existed, with its answer.
    """
    targets = live_models(session, {prepared.erasure["tenant_id"] for prepared in group})
    entries = []
    for prepared in group:
        try:
            models = chosen_models(prepared, targets)
            _check_rows(prepared, models)
        except InvalidRequest as problem:
            stored = stored_answer(session, data_keys, prepared)
            outcomes[prepared.id] = stored.replay(prepared) if stored else problem
        else:
            entries.append(Entry(prepared, models, answer_body(prepared, models)))
    return entries


def leaders_of(entries: Sequence[Entry]) -> list[Entry]:
    """Return the first request of each idempotency key, and all without one.

    Keys are sorted, so that two gateways that write the same keys cannot deadlock.
    """
    first: dict[Key, Entry] = {}
    for entry in entries:
        if entry.prepared.key is not None:
            first.setdefault(entry.prepared.key, entry)
    return [entry for entry in entries if entry.prepared.key is None] + [first[key] for key in sorted(first)]


def live_models(session: Session, tenants: Iterable[UUID]) -> Targets:
    """Return the models of the tenants that are not retired, and lock them against retirement and rejection.

    Inserting a task takes the same lock anyway.
    """
    rows = session.execute(
        select(Model.tenant_id, Model.name, Model.id, Model.state)
        .where(Model.tenant_id.in_(list(tenants)), Model.state != ModelState.RETIRED)
        .with_for_update(read=True, key_share=True)
    )
    models: Targets = {}
    for tenant_id, name, model_id, state in rows:
        models.setdefault(tenant_id, {})[name] = LiveModel(model_id, ModelState(state))
    return models


def chosen_models(prepared: PreparedErasure, targets: Targets) -> list[ChosenModel]:
    """Return the models of a request by name. Raise `InvalidRequest` if one of them is not in `targets`.

    The task on a rejected model ends at once, because no batch would ever take it. So does the task on a
    model that is still being uploaded, unless the request names it and so asks to wait for it.
    """
    known = targets.get(prepared.erasure["tenant_id"], {})
    names = known.keys() if prepared.models is None else prepared.models
    if not names <= known.keys():
        raise InvalidRequest(
            "At least one of the models does not exist or is retired. List your models, then name only "
            "those that are in use."
        )
    idle = {ModelState.REJECTED} | ({ModelState.UPLOADING} if prepared.models is None else set())
    return [ChosenModel(known[name].id, name, ends=known[name].state in idle) for name in sorted(names)]


def _check_rows(prepared: PreparedErasure, models: Models) -> None:
    if len(prepared.identifiers) * len(models) > MAX_ROWS:
        raise InvalidRequest(
            f"The request has too many subjects for {len(models)} models: the product of both may be at most "
            f"{MAX_ROWS:,}. Split it into several requests."
        )


def _claim_keys(
    session: Session, data_keys: DataKeys, keyed: Sequence[Entry], keys: RecordingKeys
) -> dict[Key, Recorded]:
    """Insert the idempotency keys that are new. Return what is stored under the others."""
    if not keyed:
        return {}
    now: datetime = keyed[0].prepared.erasure["created_at"]
    insert_into = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    rows = [key_row(entry, now, keys) for entry in keyed]
    # The erasure id tells whether our row was inserted: it is unique to this request, while the key may
    # belong to a row of another gateway.
    claimed = set(
        session.scalars(
            insert_into(IdempotencyKey).on_conflict_do_nothing().returning(IdempotencyKey.erasure_id), rows
        )
    )
    recorded = {}
    for entry in keyed:
        if entry.prepared.id not in claimed:
            stored = stored_answer(session, data_keys, entry.prepared)
            assert stored is not None
            assert entry.prepared.key is not None
            recorded[entry.prepared.key] = stored
    return recorded


def key_row(entry: Entry, now: datetime, keys: RecordingKeys) -> dict[str, Any]:
    """Return the row that remembers the answer to a request with an idempotency key."""
    prepared, hash_key = entry.prepared, keys.fingerprints
    assert prepared.idempotency is not None
    assert hash_key is not None
    return {
        "tenant_id": prepared.erasure["tenant_id"],
        "key_hash": prepared.idempotency.key_hash,
        "fingerprint": hash_key.hash_fingerprint(prepared.idempotency.fingerprint),
        "hash_key_id": hash_key.id,
        "erasure_id": prepared.id,
        "answer": entry.body,
        "expires_at": now + KEY_LIFETIME,
    }


def stored_answer(session: Session, data_keys: DataKeys, prepared: PreparedErasure) -> Recorded | None:
    """Return what is stored under the idempotency key of a request, or None."""
    row = None if prepared.key is None else session.get(IdempotencyKey, prepared.key)
    if row is None:
        return None
    answer = Answer(row.answer, f"/v1/erasures/{row.erasure_id}", replayed=True)
    hash_key = None if row.hash_key_id is None else data_keys.open(row.hash_key_id)
    return Recorded(row.fingerprint, answer, hash_key)


# Inserting rows of several tables in few round trips

_ARRAYS: dict[type, type[BinaryArray]] = {
    Uuid: UuidArray,
    String: TextArray,
    UtcDateTime: TimestampArray,
    BigInteger: BigIntegerArray,
    Integer: IntegerArray,
    LargeBinary: BytesArray,
}


def _insert_all(session: Session, *tables: tuple[type[Base], Rows]) -> None:
    """Insert rows of several tables, parents before children.

    PostgreSQL gets one statement for all tables, with each column as an array. It checks foreign keys when
    the statement ends. SQLite has no round trips to save, but every other writer waits for this transaction,
    so the values are passed to the driver without building a statement for each row.
    """
    filled = [(table, rows) for table, rows in tables if rows]
    if not filled:
        return
    connection = session.connection()
    if connection.dialect.name != "postgresql":
        for table, rows in filled:
            _insert_rows(connection, table, rows)
        return
    raw = cast("psycopg.Connection[Any]", connection.connection.driver_connection)
    statement = _insert_statement(tuple((table, tuple(rows[0])) for table, rows in filled))
    raw.execute(statement, [array for table, rows in filled for array in column_arrays(table, rows)])


def _insert_rows(connection: Connection, table: type[Base], rows: Rows) -> None:
    """Insert rows that have the same columns, and a value for each column that may not be null."""
    columns = tuple(rows[0])
    names, marks = ", ".join(columns), ", ".join("?" for _ in columns)
    kinds = [table.__table__.columns[column].type.dialect_impl(connection.dialect) for column in columns]
    converters = [
        None if isinstance(kind, LargeBinary) else kind.bind_processor(connection.dialect) for kind in kinds
    ]  # the driver takes bytes as they are
    values = [
        [row[column] for row in rows]
        if convert is None
        else [None if row[column] is None else convert(row[column]) for row in rows]
        for column, convert in zip(columns, converters, strict=True)
    ]
    statement = f"INSERT INTO {table.__tablename__} ({names}) VALUES ({marks})"  # noqa: S608
    connection.exec_driver_sql(statement, [*zip(*values, strict=True)])


def column_arrays(table: type[Base], rows: Rows) -> list[BinaryArray]:
    """Return one array for each column of the rows, in the order of the first row."""
    return [array_type(table, column).of([row[column] for row in rows]) for column in rows[0]]


@lru_cache(maxsize=64)
def _insert_statement(shape: tuple[tuple[type[Base], tuple[str, ...]], ...]) -> str:
    """Build the SQL from the names of our own tables and columns. All values are parameters."""
    inserts = [
        f"INSERT INTO {table.__tablename__} ({', '.join(columns)}) "  # noqa: S608
        f"SELECT * FROM unnest({', '.join('%s' for _ in columns)})"
        for table, columns in shape
    ]
    *first, last = inserts
    steps = ", ".join(f"step{number} AS ({text})" for number, text in enumerate(first))
    return f"WITH {steps} {last}" if first else last


@lru_cache(maxsize=256)
def array_type(table: type[Base], column: str) -> type[BinaryArray]:
    """Return the kind of array that holds values of this column."""
    kind = table.__table__.columns[column].type
    return next(array for known, array in _ARRAYS.items() if isinstance(kind, known))
