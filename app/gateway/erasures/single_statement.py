"""Recording a group of erasure requests with one SQL statement, on PostgreSQL.

The statement relies on the models and data keys that this gateway saw last: it inserts nothing if the live
models of a tenant, their states or the current keys have changed since. Whatever is not inserted, such as a
repeated idempotency key, is left to `recording.record_group`.

The entries of the audit log are written in the same transaction. Their hashes depend on the newest entry of
the tenant, which is read under a lock, so a group takes two round trips: one for the statement, the lock and
the newest entries, and one for the new entries and the commit.
"""

import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, cast
from uuid import UUID

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from app.db import audit_log
from app.db.audit_log import AuditEntry
from app.db.binary_arrays import BinaryArray, TextArray, UuidArray
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
# The same lock as `audit_log.record_all` takes, also last. Only a later statement sees what others committed
# before they gave it up.
_LOCK_CHAINS = "SELECT id FROM tenants WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE"
_NEWEST_ENTRIES = (
    "SELECT tenant, newest.sequence, newest.hash FROM unnest(%s) AS tenant, LATERAL (SELECT sequence, hash "
    "FROM audit_log WHERE tenant_id = tenant ORDER BY sequence DESC LIMIT 1) AS newest"
)


class SingleStatement:
    """Records groups on a connection of its own. Only one thread may use it."""

    def __init__(self, services: Services) -> None:
        self._database, self._data_keys = services.database, services.data_keys
        self._models: Targets = {}
        self._keys = RecordingKeys({}, None)
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
        ids, states = [model.id for model in known], [model.state.value for model in known]
        keyed = [entry for entry in entries if entry.prepared.idempotency]
        tasks = [
            (entry.prepared, task_row(entry.prepared, model, self._keys))
            for entry in entries
            for model in entry.models
        ]
        tables: list[tuple[type[Base], Rows]] = [
            (IdempotencyKey, [_key_row(entry, self._keys) for entry in keyed]),
            (Erasure, [entry.prepared.erasure for entry in entries]),
            (Task, [task for _, task in tasks]),
            (TaskSubject, list(subject_rows(tasks, self._keys))),
        ]
        filled = [(table, rows) for table, rows in tables if rows]
        statement = _statement(tuple((table, tuple(rows[0])) for table, rows in filled))
        parameters: list[BinaryArray] = [
            UuidArray.of(list(tenants)),
            UuidArray.of(ids),
            TextArray.of(states),
            UuidArray.of(self._needed_keys(entries)),
        ]
        if keyed:
            unkeyed = [entry.prepared.id for entry in entries if not entry.prepared.idempotency]
            parameters.append(UuidArray.of(unkeyed))
        for table, rows in filled:
            parameters += column_arrays(table, rows)
        return self._execute(statement, parameters, entries)

    def _needed_keys(self, entries: Sequence[Entry]) -> list[UUID]:
        """Return the data keys that the rows refer to, each once."""
        models = {model.id for entry in entries for model in entry.models if not model.ends}
        needed = [self._keys.by_model[model].id for model in models]
        if self._keys.fingerprints is not None and any(entry.prepared.idempotency for entry in entries):
            needed.append(self._keys.fingerprints.id)
        return needed

    def _execute(
        self, statement: str, parameters: Sequence[BinaryArray], entries: Sequence[Entry]
    ) -> set[UUID]:
        driver = self._driver()
        try:
            inserted = _in_transaction(driver, statement, parameters, entries)
        except psycopg.OperationalError as problem:
            if self._connection is not None:
                self._connection.invalidate()
            self.close()
            raise OperationalError(None, None, problem) from problem
        except BaseException:
            driver.rollback()
            raise
        self._used_at = time.monotonic()
        return inserted

    def _driver(self) -> "psycopg.Connection[Any]":
        if time.monotonic() - self._used_at > IDLE_SECONDS:
            self.close()
        if self._connection is None:
            self._connection = self._database.autocommit()
        return cast("psycopg.Connection[Any]", self._connection.connection.driver_connection)


def _in_transaction(
    driver: "psycopg.Connection[Any]",
    statement: str,
    parameters: Sequence[BinaryArray],
    entries: Sequence[Entry],
) -> set[UUID]:
    """Insert requests and their entries of the audit log, and return the ids of the requests inserted."""
    tenants = {entry.prepared.erasure["tenant_id"] for entry in entries}
    chains = [UuidArray.of(list(tenants))]
    with driver.pipeline():
        driver.execute("BEGIN")
        erasures = driver.execute(statement, parameters)
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
    return inserted


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
def _statement(shape: tuple[tuple[type[Base], tuple[str, ...]], ...]) -> str:
    """Build the SQL from the names of our own tables and columns. All values are parameters.

    The live models are locked against retirement and rejection, as inserting a task does anyway, and compared
    with the known ones. Each table takes the rows whose parents were inserted. Every data key must be
    current, and the foreign keys ensure that it is not deleted before the commit.
    """
    columns = dict(shape)
    steps = [
        "live AS MATERIALIZED (SELECT id, state FROM models WHERE tenant_id = ANY(%s) "  # noqa: S608
        f"AND state <> '{ModelState.RETIRED}' FOR KEY SHARE)",
        "agreed AS MATERIALIZED "  # noqa: S608
        "(SELECT coalesce((SELECT array_agg(id ORDER BY id) FROM live), '{}') = %s AND "
        "coalesce((SELECT array_agg(state::text ORDER BY id) FROM live), '{}') = %s AND NOT EXISTS "
        "(SELECT FROM unnest(%s) AS needed LEFT JOIN data_keys AS key ON key.id = needed "
        f"AND key.state = '{DataKeyState.CURRENT}' WHERE key.id IS NULL) AS ok)",
    ]
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


def _insert_from_arrays(table: type[Base], columns: dict[type[Base], tuple[str, ...]], where: str) -> str:
    names = ", ".join(columns[table])
    arrays = ", ".join("%s" for _ in columns[table])
    return (
        f"INSERT INTO {table.__tablename__} ({names}) "  # noqa: S608
        f"SELECT * FROM unnest({arrays}) AS given({names}) WHERE {where}"
    )
