"""Recording a group of erasure requests with one SQL statement, on PostgreSQL.

The statement relies on the models and data keys that this gateway saw last: it inserts nothing if the live
models of a tenant, their states or the current keys have changed since. Whatever is not inserted, such as a
repeated idempotency key, is left to `recording.record_group`.

The entries of the audit log are written in the same transaction. Their hashes depend on the newest entry of
the tenant. While this gateway alone writes for a tenant, it knows that entry, and the statement writes
everything in one round trip: all of it, or nothing if the entry is no longer the newest or an idempotency key
is repeated. Otherwise a group takes two round trips: one for the requests, the lock of the log and its newest
entries, and one for the new entries and the commit.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast
from uuid import UUID

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from app.db import audit_log
from app.db.audit_log import AuditEntry
from app.db.binary_arrays import BigIntegerArray, BinaryArray, BytesArray, TextArray, UuidArray
from app.db.key_tables import DEPLOYMENT
from app.db.states import DataKeyPurpose, DataKeyState, ModelState
from app.db.tables import Erasure, IdempotencyKey, Task, TaskSubject
from app.db.types import Base
from app.gateway.erasures.recording import (
    INSERT_ROWS,
    Answer,
    Entry,
    Models,
    PreparedErasure,
    RecordingKeys,
    Rows,
    Targets,
    answer_body,
    chosen_models,
    column_arrays,
    key_row,
    live_models,
    subject_rows,
    task_row,
)
from app.gateway.errors import InvalidRequest
from app.services import Services
from lethe.certificate.audit_log import first_hash

IDLE_SECONDS = 1.0  # after a longer pause, the pool checks that the connection still works
MAX_TENANTS = 10_000
SHARED_SECONDS = 1.0  # how long a tenant counts as shared after someone else wrote to its audit log
# The same lock as `audit_log.record_all` takes, also last. Only a later statement sees what others committed
# before they gave it up.
_LOCK_CHAINS = "SELECT id FROM tenants WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE"
_NEWEST_ENTRIES = (
    "SELECT tenant, newest.sequence, newest.hash FROM unnest(%s) AS tenant, LATERAL (SELECT sequence, hash "
    "FROM audit_log WHERE tenant_id = tenant ORDER BY sequence DESC LIMIT 1) AS newest"
)

# The live models are locked against retirement and rejection, as inserting a task does anyway.
_LIVE_MODELS = (
    "live AS MATERIALIZED (SELECT id, state FROM models WHERE tenant_id = ANY(%s) "  # noqa: S608
    f"AND state <> '{ModelState.RETIRED}' FOR KEY SHARE)"
)
_MODELS_AGREE = (
    "coalesce((SELECT array_agg(id ORDER BY id) FROM live), '{}') = %s AND "
    "coalesce((SELECT array_agg(state::text ORDER BY id) FROM live), '{}') = %s"
)
# The foreign keys of the new rows ensure that no key is deleted before the commit.
_KEYS_ARE_CURRENT = (
    "NOT EXISTS (SELECT FROM unnest(%s) AS needed LEFT JOIN data_keys AS key ON key.id = needed "
    f"AND key.state = '{DataKeyState.CURRENT}' WHERE key.id IS NULL)"
)
_KNOWN_HEADS = "known AS MATERIALIZED (SELECT * FROM unnest(%s, %s, %s) AS known(tenant, sequence, hash))"
_HEADS_AGREE = (
    "(SELECT count(*) FROM known) = (SELECT count(*) FROM known, LATERAL (SELECT sequence, hash "
    "FROM audit_log WHERE tenant_id = tenant ORDER BY sequence DESC LIMIT 1) AS newest "
    "WHERE newest.sequence = known.sequence AND newest.hash = known.hash)"
)
_LOCK_KNOWN_CHAINS = (  # counting makes it wait for the erasures, and lock every tenant
    "locked AS MATERIALIZED (SELECT id FROM tenants WHERE id IN (SELECT tenant FROM known) "
    "AND (SELECT count(*) FROM new_erasures) > 0 ORDER BY id FOR NO KEY UPDATE OF tenants)"
)

Driver = psycopg.Connection[Any]
Tables = dict[type[Base], Rows]
Shape = tuple[tuple[type[Base], tuple[str, ...]], ...]
Heads = dict[UUID, tuple[int, bytes]]
"""What `audit_log.head` returns, for several tenants."""


class KnownHeads:
    """The heads of audit logs that this gateway was the last to write to."""

    def __init__(self) -> None:
        self._heads: Heads = {}
        self._shared_until: dict[UUID, float] = {}

    def of(self, tenants: Iterable[UUID]) -> Heads | None:
        """Return the heads of these tenants, or None if one is unknown or others write to its log too."""
        moment, heads = time.monotonic(), {}
        for tenant in tenants:
            if tenant not in self._heads or self._shared_until.get(tenant, 0.0) > moment:
                return None
            heads[tenant] = self._heads[tenant]
        return heads

    def learn(self, rows: Rows) -> None:
        """Remember the last of these new entries of each tenant."""
        if len(self._heads) > MAX_TENANTS:
            self._heads.clear()
            self._shared_until.clear()
        for row in rows:
            self._heads[row["tenant_id"]] = row["sequence"] + 1, row["hash"]

    def forget(self, tenants: Iterable[UUID]) -> None:
        """Forget heads that were wrong, and do not rely on those of these tenants for a while."""
        until = time.monotonic() + SHARED_SECONDS
        for tenant in tenants:
            self._heads.pop(tenant, None)
            self._shared_until[tenant] = until


class SingleStatement:
    """Records groups on a connection of its own. Only one thread may use it."""

    def __init__(self, services: Services) -> None:
        self._database, self._data_keys = services.database, services.data_keys
        self._models: Targets = {}
        self._keys = RecordingKeys({}, None)
        self._heads = KnownHeads()
        self._connection: Connection | None = None
        self._used_at = 0.0

    def record(self, group: Sequence[PreparedErasure]) -> dict[UUID, Answer]:
        """Record the requests of a group that need no second look, and return their answers by id.

        If the connection fails, `OperationalError` is raised and the outcome is unknown.
        """
        entries = list(self._entries(_first_of_each_key(group)))
        if not entries:
            return {}
        inserted = self._insert(entries)
        if not inserted:
            self._models.clear()
        return {entry.prepared.id: entry.answer for entry in entries if entry.prepared.id in inserted}

    def learn_models(self, tenants: set[UUID]) -> None:
        """Remember the live models of these tenants for the next groups."""
        if len(self._models) + len(tenants) > MAX_TENANTS:
            self._models.clear()
        with self._database.reading() as session:
            found = live_models(session, tenants)
            models = [model.id for tenant in found.values() for model in tenant.values()]
            keys = self._data_keys.current(session, DataKeyPurpose.SUBJECTS, models)
            shared = self._data_keys.current(session, DataKeyPurpose.FINGERPRINTS, [DEPLOYMENT])
        by_model = {**self._keys.by_model, **keys} if self._models else keys
        self._keys = RecordingKeys(by_model, shared.get(DEPLOYMENT))
        self._models |= {tenant: found.get(tenant, {}) for tenant in tenants}

    def close(self) -> None:
        """Give the connection back to the pool."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _entries(self, group: Iterable[PreparedErasure]) -> Iterable[Entry]:
        """Yield the requests whose models are known, except very large ones."""
        for prepared in group:
            if prepared.erasure["tenant_id"] not in self._models:
                continue
            try:
                models = chosen_models(prepared, self._models)
            except InvalidRequest:
                continue
            if not self._has_keys(prepared, models):
                continue
            if len(models) * len(prepared.identifiers) <= INSERT_ROWS:
                yield Entry(prepared, models, answer_body(prepared, models))

    def _has_keys(self, prepared: PreparedErasure, models: Models) -> bool:
        if prepared.idempotency is not None and self._keys.fingerprints is None:
            return False
        return all(model.ends or model.id in self._keys.by_model for model in models)

    def _insert(self, entries: Sequence[Entry]) -> set[UUID]:
        """Insert requests and return the ids of those that are stored now."""
        tenants = {entry.prepared.erasure["tenant_id"] for entry in entries}
        known = sorted(model for tenant in tenants for model in self._models[tenant].values())
        tables = _tables(entries, self._keys)
        conditions: list[BinaryArray] = [
            UuidArray.of(list(tenants)),
            UuidArray.of([model.id for model in known]),
            TextArray.of([model.state.value for model in known]),
            UuidArray.of(self._needed_keys(entries)),
        ]
        heads = self._heads.of(tenants)
        with self._using_driver() as driver:
            if heads is not None:
                entry_rows: Rows = audit_log.chained(heads, [entry.event for entry in entries])
                if _insert_at_heads(driver, conditions, tables, heads, entry_rows):
                    self._heads.learn(entry_rows)
                    return {entry.prepared.id for entry in entries}
                self._heads.forget(tenants)
            inserted, entry_rows = _insert_at_newest(driver, conditions, tables, entries)
            self._heads.learn(entry_rows)
        return inserted

    def _needed_keys(self, entries: Sequence[Entry]) -> list[UUID]:
        """Return the data keys that the rows refer to, each once."""
        models = {model.id for entry in entries for model in entry.models if not model.ends}
        needed = [self._keys.by_model[model].id for model in models]
        if self._keys.fingerprints is not None and any(entry.prepared.idempotency for entry in entries):
            needed.append(self._keys.fingerprints.id)
        return needed

    @contextmanager
    def _using_driver(self) -> Iterator[Driver]:
        """Lend the connection. If it fails, the outcome of the block is unknown: raise `OperationalError`."""
        driver = self._driver()
        try:
            yield driver
        except psycopg.OperationalError as problem:
            if self._connection is not None:
                self._connection.invalidate()
            self.close()
            raise OperationalError(None, None, problem) from problem
        except BaseException:
            driver.rollback()
            raise
        self._used_at = time.monotonic()

    def _driver(self) -> Driver:
        if time.monotonic() - self._used_at > IDLE_SECONDS:
            self.close()
        if self._connection is None:
            self._connection = self._database.autocommit()
        return cast("Driver", self._connection.connection.driver_connection)


def _tables(entries: Sequence[Entry], keys: RecordingKeys) -> Tables:
    """Return the rows of new requests by table, parents before children. Tables without rows are left out."""
    tasks = [
        (entry.prepared, task_row(entry.prepared, model, keys)) for entry in entries for model in entry.models
    ]
    tables: dict[type[Base], Rows] = {
        IdempotencyKey: [_key_row(entry, keys) for entry in entries if entry.prepared.idempotency],
        Erasure: [entry.prepared.erasure for entry in entries],
        Task: [task for _, task in tasks],
        TaskSubject: list(subject_rows(tasks, keys)),
    }
    return {table: rows for table, rows in tables.items() if rows}


def _insert_at_heads(
    driver: Driver, conditions: Sequence[BinaryArray], tables: Tables, heads: Heads, entry_rows: Rows
) -> bool:
    """Insert requests, and their entries of the audit log after these heads. Return whether it did.

    Nothing is stored otherwise. The driver commits every statement that is sent outside a transaction.
    """
    everything = tables | {AuditEntry: entry_rows}
    parameters = [
        UuidArray.of(list(heads)),
        BigIntegerArray.of([sequence - 1 for sequence, _ in heads.values()]),
        BytesArray.of([link for _, link in heads.values()]),
        *conditions,
        *_arrays(everything),
    ]
    try:
        ((agreed,),) = driver.execute(_chained_statement(_shape(everything)), parameters).fetchall()
    except psycopg.errors.UniqueViolation:  # a repeated key, or an entry that was written a moment ago
        return False
    return bool(agreed)


def _insert_at_newest(
    driver: Driver, conditions: Sequence[BinaryArray], tables: Tables, entries: Sequence[Entry]
) -> tuple[set[UUID], Rows]:
    """Insert the new requests and their entries of the audit log. Return the ids inserted and the entries."""
    tenants = {entry.prepared.erasure["tenant_id"] for entry in entries}
    chains: list[BinaryArray] = [UuidArray.of(list(tenants))]
    rows: Rows = []
    unkeyed = [entry.prepared.id for entry in entries if not entry.prepared.idempotency]
    parameters = [
        *conditions,
        *([UuidArray.of(unkeyed)] if IdempotencyKey in tables else ()),
        *_arrays(tables),
    ]
    with driver.pipeline():
        driver.execute("BEGIN")
        erasures = driver.execute(_statement(_shape(tables)), parameters)
        driver.execute(_LOCK_CHAINS, chains)
        newest = driver.execute(_NEWEST_ENTRIES, chains)
        inserted = {row[0] for row in erasures.fetchall()}
        heads = {tenant: (0, first_hash(str(tenant))) for tenant in tenants}
        heads |= {tenant: (sequence + 1, link) for tenant, sequence, link in newest.fetchall()}
        events = [entry.event for entry in entries if entry.prepared.id in inserted]
        if events:
            rows = audit_log.chained(heads, events)
            driver.execute(_append_statement(tuple(rows[0])), column_arrays(AuditEntry, rows))
        driver.execute("COMMIT")
    return inserted, rows


def _arrays(tables: Tables) -> list[BinaryArray]:
    return [array for table, rows in tables.items() for array in column_arrays(table, rows)]


def _shape(tables: Tables) -> Shape:
    return tuple((table, tuple(rows[0])) for table, rows in tables.items())


@lru_cache(maxsize=1)
def _append_statement(columns: tuple[str, ...]) -> str:
    given = ", ".join("%s" for _ in columns)
    return f"INSERT INTO audit_log ({', '.join(columns)}) SELECT * FROM unnest({given})"  # noqa: S608


def _first_of_each_key(group: Iterable[PreparedErasure]) -> list[PreparedErasure]:
    """Return the requests without an idempotency key, then the first of each key.

    Keys are sorted, so that two gateways that write the same keys cannot deadlock.
    """
    first: dict[tuple[UUID, bytes], PreparedErasure] = {}
    others = []
    for prepared in group:
        if prepared.key is None:
            others.append(prepared)
        else:
            first.setdefault(prepared.key, prepared)
    return others + [first[key] for key in sorted(first)]


def _key_row(entry: Entry, keys: RecordingKeys) -> dict[str, Any]:
    return key_row(entry, entry.prepared.erasure["created_at"], keys)


@lru_cache(maxsize=16)
def _statement(shape: Shape) -> str:
    """Build the SQL that inserts the requests whose keys are new.

    Each table takes the rows whose parents were inserted.
    """
    columns = dict(shape)
    steps = [_LIVE_MODELS, f"agreed AS MATERIALIZED (SELECT {_MODELS_AGREE} AND {_KEYS_ARE_CURRENT} AS ok)"]
    erasures = "(SELECT ok FROM agreed)"
    if IdempotencyKey in columns:
        steps.append("unkeyed AS (SELECT unnest(%s) AS id)")
        claim = _insert_from_arrays(IdempotencyKey, columns, erasures)
        steps.append(f"claimed AS ({claim} ON CONFLICT DO NOTHING RETURNING erasure_id)")
        erasures += " AND given.id IN (SELECT erasure_id FROM claimed UNION ALL SELECT id FROM unkeyed)"
    steps.append(f"new_erasures AS ({_insert_from_arrays(Erasure, columns, erasures)} RETURNING id)")
    if Task in columns:
        of_new = "given.erasure_id IN (SELECT id FROM new_erasures)"
        steps.append(f"new_tasks AS ({_insert_from_arrays(Task, columns, of_new)} RETURNING id)")
    if TaskSubject in columns:
        of_new = "given.task_id IN (SELECT id FROM new_tasks)"
        steps.append(f"new_subjects AS ({_insert_from_arrays(TaskSubject, columns, of_new)})")
    return f"WITH {', '.join(steps)} SELECT id FROM new_erasures"  # noqa: S608


@lru_cache(maxsize=16)
def _chained_statement(shape: Shape) -> str:
    """Build the SQL that inserts all rows, or none unless models, data keys and heads are the known ones."""
    columns = dict(shape)
    conditions = f"{_MODELS_AGREE} AND {_KEYS_ARE_CURRENT} AND {_HEADS_AGREE}"
    agreed = f"agreed AS MATERIALIZED (SELECT {conditions} AS ok)"
    steps = [_KNOWN_HEADS, _LIVE_MODELS, agreed]
    for table in columns:
        if table is AuditEntry:
            entries = _insert_from_arrays(table, columns, "(SELECT count(*) FROM locked) > 0")
            steps += [_LOCK_KNOWN_CHAINS, f"new_entries AS ({entries})"]
        else:
            rows = _insert_from_arrays(table, columns, "(SELECT ok FROM agreed)")
            steps.append(f"new_{table.__tablename__} AS ({rows} RETURNING 1)")
    return f"WITH {', '.join(steps)} SELECT ok FROM agreed"  # noqa: S608


def _insert_from_arrays(table: type[Base], columns: dict[type[Base], tuple[str, ...]], where: str) -> str:
    names = ", ".join(columns[table])
    arrays = ", ".join("%s" for _ in columns[table])
    return (
        f"INSERT INTO {table.__tablename__} ({names}) "  # noqa: S608
        f"SELECT * FROM unnest({arrays}) AS given({names}) WHERE {where}"
    )
