"""Writing erasures: any number of prepared requests in one transaction, as few statements as possible."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, cast
from uuid import UUID

import psycopg
from psycopg import sql
from sqlalchemy import insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.clock import new_id
from app.db.session import Database
from app.db.states import ModelState, TaskState
from app.db.tables import Erasure, IdempotencyKey, Model, Task, TaskSubject
from app.db.types import Base
from app.erasures.schemas import ErasureShown, TaskShown
from app.errors import IdempotencyMismatch, InvalidRequest, ServiceError

KEY_LIFE = timedelta(hours=24)
ROWS_AT_ONCE = 5000


@dataclass(frozen=True)
class Idempotency:
    key_hash: bytes
    fingerprint: bytes


@dataclass(frozen=True)
class Prepared:
    """A validated request: identifiers already encrypted, everything else ready to be written."""

    erasure: dict[str, Any]
    identifiers: Sequence[bytes]
    models: frozenset[str] | None
    idempotency: Idempotency | None

    @property
    def weight(self) -> int:
        return len(self.identifiers)

    @property
    def key(self) -> tuple[UUID, bytes] | None:
        return None if self.idempotency is None else (self.erasure["tenant_id"], self.idempotency.key_hash)


@dataclass(frozen=True)
class Answer:
    body: str
    location: str
    replayed: bool = False


def record_group(database: Database, group: Sequence[Prepared]) -> Sequence[Answer | ServiceError]:
    """Write what is new, find what is not; one answer or error per request, in order."""
    leaders = _leaders(group)
    with database.writing() as session:
        targets = _targets(session, {prepared.erasure["tenant_id"] for prepared in leaders})
        outcomes: dict[UUID, Answer | ServiceError] = {}
        fresh: list[tuple[Prepared, Sequence[tuple[UUID, str]], str]] = []
        for prepared in leaders:
            try:
                models = _chosen(prepared, targets)
            except InvalidRequest as problem:
                outcomes[_id(prepared)] = problem
                continue
            fresh.append((prepared, models, _body(prepared, models)))
        replays = _claim_keys(session, [(p, body) for p, _, body in fresh if p.idempotency], outcomes)
        written = [entry for entry in fresh if _id(entry[0]) not in replays]
        _insert(session, written)
    for prepared, _, body in written:
        outcomes[_id(prepared)] = Answer(body, f"/v1/erasures/{_id(prepared)}")
    return _answers(group, leaders, outcomes)


def _id(prepared: Prepared) -> UUID:
    identifier: UUID = prepared.erasure["id"]
    return identifier


def _leaders(group: Sequence[Prepared]) -> list[Prepared]:
    """The first request of each idempotency key; sorted by key, so that two gateways cannot deadlock."""
    first: dict[tuple[UUID, bytes], Prepared] = {}
    keyless = [prepared for prepared in group if prepared.key is None]
    for prepared in group:
        if prepared.key is not None:
            first.setdefault(prepared.key, prepared)
    return keyless + [first[key] for key in sorted(first)]


def _answers(
    group: Sequence[Prepared], leaders: Sequence[Prepared], outcomes: dict[UUID, Answer | ServiceError]
) -> list[Answer | ServiceError]:
    by_key = {leader.key: leader for leader in leaders if leader.key is not None}
    answers: list[Answer | ServiceError] = []
    for prepared in group:
        leader = prepared if prepared.key is None else by_key[prepared.key]
        outcome = outcomes[_id(leader)]
        if leader is not prepared and isinstance(outcome, Answer):
            same = leader.idempotency is not None and _same_payload(prepared, leader.idempotency.fingerprint)
            outcome = Answer(outcome.body, outcome.location, replayed=True) if same else IdempotencyMismatch()
        answers.append(outcome)
    return answers


def _same_payload(prepared: Prepared, fingerprint: bytes) -> bool:
    return prepared.idempotency is not None and prepared.idempotency.fingerprint == fingerprint


def _targets(session: Session, tenants: Iterable[UUID]) -> dict[UUID, dict[str, UUID]]:
    """Every live model of the tenants, by name; none can be retired before its tasks are written.

    The lock is the one that inserting a task takes anyway.
    """
    rows = session.execute(
        select(Model.tenant_id, Model.name, Model.id)
        .where(Model.tenant_id.in_(list(tenants)), Model.state != ModelState.RETIRED)
        .with_for_update(read=True, key_share=True)
    )
    found: dict[UUID, dict[str, UUID]] = {}
    for tenant_id, name, model_id in rows:
        found.setdefault(tenant_id, {})[name] = model_id
    return found


def _chosen(prepared: Prepared, targets: dict[UUID, dict[str, UUID]]) -> list[tuple[UUID, str]]:
    known = targets.get(prepared.erasure["tenant_id"], {})
    names = known.keys() if prepared.models is None else prepared.models
    if not names <= known.keys():
        raise InvalidRequest("A model is not known, or is retired.")
    return [(known[name], name) for name in sorted(names)]


def _claim_keys(
    session: Session, keyed: Sequence[tuple[Prepared, str]], outcomes: dict[UUID, Answer | ServiceError]
) -> set[UUID]:
    """Insert the keys that are new; answer the others from what is stored. The ids that are replays."""
    if not keyed:
        return set()
    now: datetime = keyed[0][0].erasure["created_at"]
    insert_into = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    rows = [_key_row(prepared, body, now) for prepared, body in keyed]
    # Decided by the id we made, which is ours alone; a returned key could be someone else's row.
    claimed = set(
        session.scalars(
            insert_into(IdempotencyKey).on_conflict_do_nothing().returning(IdempotencyKey.erasure_id), rows
        )
    )
    replays = set()
    for prepared, _ in keyed:
        if _id(prepared) not in claimed:
            replays.add(_id(prepared))
            outcomes[_id(prepared)] = _replay(session, prepared)
    return replays


def _key_row(prepared: Prepared, body: str, now: datetime) -> dict[str, Any]:
    assert prepared.idempotency is not None
    return {
        "tenant_id": prepared.erasure["tenant_id"],
        "key_hash": prepared.idempotency.key_hash,
        "fingerprint": prepared.idempotency.fingerprint,
        "erasure_id": _id(prepared),
        "answer": body,
        "expires_at": now + KEY_LIFE,
    }


def _replay(session: Session, prepared: Prepared) -> Answer | ServiceError:
    stored = session.get_one(IdempotencyKey, prepared.key)
    if not _same_payload(prepared, stored.fingerprint):
        return IdempotencyMismatch()
    return Answer(stored.answer, f"/v1/erasures/{stored.erasure_id}", replayed=True)


def _insert(session: Session, fresh: Sequence[tuple[Prepared, Sequence[tuple[UUID, str]], str]]) -> None:
    if not fresh:
        return
    tasks = [
        (prepared, _task(prepared.erasure, model)) for prepared, models, _ in fresh for model, _ in models
    ]
    _insert_rows(session, Erasure, [prepared.erasure for prepared, _, _ in fresh])
    _insert_rows(session, Task, [task for _, task in tasks])
    subjects = (
        {"task_id": task["id"], "ordinal": i, "identifier": sealed}
        for prepared, task in tasks
        for i, sealed in enumerate(prepared.identifiers)
    )
    while rows := list(islice(subjects, ROWS_AT_ONCE)):
        _insert_rows(session, TaskSubject, rows)


def _insert_rows(session: Session, table: type[Base], rows: Sequence[dict[str, Any]]) -> None:
    """COPY on PostgreSQL: a group's rows in one message, at a fraction of the cost of many INSERTs."""
    if not rows:
        return
    connection = session.connection()
    if connection.dialect.name != "postgresql":
        connection.execute(insert(table), rows)
        return
    columns = list(rows[0])
    raw = cast("psycopg.Connection[Any]", connection.connection.driver_connection)
    into = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(table.__tablename__), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    with raw.cursor() as cursor, cursor.copy(into) as copy:
        for row in rows:
            copy.write_row([row[column] for column in columns])


def _task(erasure: dict[str, Any], model_id: UUID) -> dict[str, Any]:
    return {
        "id": new_id(),
        "erasure_id": erasure["id"],
        "model_id": model_id,
        "state": TaskState.RECEIVED,
        "subjects": erasure["subjects"],
        "due_at": erasure["due_at"],
        "created_at": erasure["created_at"],
    }


def _body(prepared: Prepared, models: Sequence[tuple[UUID, str]]) -> str:
    """The answer as it stands at intake; a replay gives these very bytes."""
    erasure = prepared.erasure
    shown = ErasureShown(
        id=erasure["id"],
        state=TaskState.RECEIVED if models else TaskState.COMPLETED,
        subjects=erasure["subjects"],
        reference=erasure["reference"],
        reason=erasure["reason"],
        jurisdiction=erasure["jurisdiction"],
        received_at=erasure["received_at"],
        due_at=erasure["due_at"],
        extension_reason=None,
        overdue=erasure["due_at"] < erasure["created_at"],
        tasks=[
            TaskShown(
                model=name,
                state=TaskState.RECEIVED,
                batch_id=None,
                version=None,
                certificate_id=None,
                outcomes={},
            )
            for _, name in models
        ],
    )
    return shown.model_dump_json()
