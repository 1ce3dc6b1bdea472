"""Writing erasures: any number of prepared requests in one transaction, as few statements as possible."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.clock import new_id
from app.db.session import Database
from app.db.states import ModelState, TaskState
from app.db.tables import Erasure, IdempotencyKey, Model, Task, TaskSubject
from app.erasures.schemas import ErasureShown, TaskShown
from app.erasures.writing import insert_all
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
    people: Sequence[bytes]
    """A keyed hash for each identifier, in the same order."""
    warnings: list[str]
    models: frozenset[str] | None
    idempotency: Idempotency | None

    @property
    def key(self) -> tuple[UUID, bytes] | None:
        return None if self.idempotency is None else (self.erasure["tenant_id"], self.idempotency.key_hash)


@dataclass(frozen=True)
class Answer:
    body: str
    location: str
    models: int = 0
    replayed: bool = False


@dataclass(frozen=True)
class _Entry:
    """A request whose models are known, with its answer."""

    prepared: Prepared
    models: Sequence[tuple[UUID, str]]
    body: str


@dataclass(frozen=True)
class _Known:
    """What was recorded under a key, now or earlier."""

    fingerprint: bytes
    answer: Answer

    def again(self, prepared: Prepared) -> Answer | ServiceError:
        assert prepared.idempotency is not None
        return self.answer if prepared.idempotency.fingerprint == self.fingerprint else IdempotencyMismatch()


def record_group(database: Database, group: Sequence[Prepared]) -> Sequence[Answer | ServiceError]:
    """Write what is new, find what is not; one answer or error per request, in order."""
    outcomes: dict[UUID, Answer | ServiceError] = {}
    with database.writing() as session:
        entries = _resolved(session, group, outcomes)
        leaders = _leaders(entries)
        known = _claim_keys(session, [entry for entry in leaders if entry.prepared.idempotency])
        written = [entry for entry in leaders if entry.prepared.key not in known]
        _insert(session, written)
    for entry in written:
        outcomes[_id(entry.prepared)] = _answer(entry)
        if entry.prepared.key and entry.prepared.idempotency:
            again = replace(_answer(entry), replayed=True)
            known[entry.prepared.key] = _Known(entry.prepared.idempotency.fingerprint, again)
    for prepared in group:
        if _id(prepared) not in outcomes:
            assert prepared.key is not None
            outcomes[_id(prepared)] = known[prepared.key].again(prepared)
    return [outcomes[_id(prepared)] for prepared in group]


def _id(prepared: Prepared) -> UUID:
    identifier: UUID = prepared.erasure["id"]
    return identifier


def _answer(entry: _Entry) -> Answer:
    return Answer(entry.body, f"/v1/erasures/{_id(entry.prepared)}", models=len(entry.models))


def _resolved(
    session: Session, group: Sequence[Prepared], outcomes: dict[UUID, Answer | ServiceError]
) -> list[_Entry]:
    """Those whose models exist. The others are answered: a repeated one as it was when they existed."""
    targets = _targets(session, {prepared.erasure["tenant_id"] for prepared in group})
    entries = []
    for prepared in group:
        try:
            models = _chosen(prepared, targets)
        except InvalidRequest as problem:
            stored = _stored(session, prepared)
            outcomes[_id(prepared)] = stored.again(prepared) if stored else problem
        else:
            entries.append(_Entry(prepared, models, _body(prepared, models)))
    return entries


def _leaders(entries: Sequence[_Entry]) -> list[_Entry]:
    """The first request of each idempotency key; sorted by key, so that two gateways cannot deadlock."""
    first: dict[tuple[UUID, bytes], _Entry] = {}
    for entry in entries:
        if entry.prepared.key is not None:
            first.setdefault(entry.prepared.key, entry)
    return [entry for entry in entries if entry.prepared.key is None] + [first[key] for key in sorted(first)]


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


def _claim_keys(session: Session, keyed: Sequence[_Entry]) -> dict[tuple[UUID, bytes], _Known]:
    """Insert the keys that are new; what is stored under the others."""
    if not keyed:
        return {}
    now: datetime = keyed[0].prepared.erasure["created_at"]
    insert_into = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    rows = [_key_row(entry.prepared, entry.body, now) for entry in keyed]
    # Decided by the id we made, which is ours alone; a returned key could be someone else's row.
    claimed = set(
        session.scalars(
            insert_into(IdempotencyKey).on_conflict_do_nothing().returning(IdempotencyKey.erasure_id), rows
        )
    )
    known = {}
    for entry in keyed:
        if _id(entry.prepared) not in claimed:
            stored = _stored(session, entry.prepared)
            assert stored is not None
            assert entry.prepared.key is not None
            known[entry.prepared.key] = stored
    return known


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


def _stored(session: Session, prepared: Prepared) -> _Known | None:
    row = None if prepared.key is None else session.get(IdempotencyKey, prepared.key)
    if row is None:
        return None
    return _Known(row.fingerprint, Answer(row.answer, f"/v1/erasures/{row.erasure_id}", replayed=True))


def _insert(session: Session, fresh: Sequence[_Entry]) -> None:
    if not fresh:
        return
    tasks = [
        (entry.prepared, _task(entry.prepared.erasure, model)) for entry in fresh for model, _ in entry.models
    ]
    subjects = (
        {"task_id": task["id"], "ordinal": i, "identifier": sealed, "person": person}
        for prepared, task in tasks
        for i, (sealed, person) in enumerate(zip(prepared.identifiers, prepared.people, strict=True))
    )
    insert_all(
        session,
        (Erasure, [entry.prepared.erasure for entry in fresh]),
        (Task, [task for _, task in tasks]),
        (TaskSubject, list(islice(subjects, ROWS_AT_ONCE))),
    )
    while rows := list(islice(subjects, ROWS_AT_ONCE)):
        insert_all(session, (TaskSubject, rows))


def _task(erasure: dict[str, Any], model_id: UUID) -> dict[str, Any]:
    return {
        "id": new_id(),
        "erasure_id": erasure["id"],
        "model_id": model_id,
        "state": TaskState.RECEIVED.value,
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
                near_matches=0,
                notice=None,
            )
            for _, name in models
        ],
        warnings=prepared.warnings,
    )
    return shown.model_dump_json()
