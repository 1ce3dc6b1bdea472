"""Receipts: how long they can be fetched, and how their salts are encrypted and destroyed."""

from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Select, func, or_, select, update
from sqlalchemy.orm import Session

from app.core.vault import PLAIN_STATEMENT, SALT_BYTES, Vault, is_plain_statement
from app.db.session import Database, allow_long_statements
from app.db.tables import Batch, Task, TaskSubject
from lethe.policy import Policy

_ROWS_PER_TRANSACTION = 1000


def until(batch: Batch, completed: datetime) -> datetime:
    """Return until when receipts of a batch completed at this time can be fetched."""
    return completed + timedelta(days=Policy.model_validate(batch.policy).receipt_days)


def destroy_salts(session: Session, tasks: Select[UUID]) -> int:
    """Destroy the salts of these tasks and return the number of tasks.

    From then on, nobody can link these people to a certificate or test a guessed identifier. The Merkle
    leaves stay: without their salts they reveal nothing, and the receipts of other people need them.
    """
    allow_long_statements(session)  # there may be millions of subjects
    ended = update(Task).where(Task.id.in_(tasks)).values(receipts_until=None).returning(Task.id)
    ids = session.scalars(ended.execution_options(synchronize_session=False)).all()
    session.execute(
        update(TaskSubject)
        .where(TaskSubject.task_id.in_(ids))
        .values(salt=None, commitment=None, no_data=None, log_index=None)
        .execution_options(synchronize_session=False)
    )
    return len(ids)


def encrypt_stored_salts(database: Database, vault: Vault) -> int:
    """Encrypt salts and statements that an earlier version stored in plain, and return the number of rows.

    Workers call this when they start. A migration cannot do it, because it has no deployment key.
    """
    encrypted = 0
    while rows := _encrypt_some(database, vault):
        encrypted += rows
    if encrypted:
        database.forget_deleted_bytes()
    return encrypted


def _encrypt_some(database: Database, vault: Vault) -> int:
    plain_salt = func.length(TaskSubject.salt) == SALT_BYTES
    plain_statement = func.substr(TaskSubject.no_data, 1, len(PLAIN_STATEMENT)) == PLAIN_STATEMENT
    with database.writing() as session:
        rows = session.scalars(
            select(TaskSubject)
            .where(or_(plain_salt, plain_statement))
            .limit(_ROWS_PER_TRANSACTION)
            .with_for_update(skip_locked=True)
        ).all()
        for row in rows:
            task_id, ordinal = row.task_id, row.ordinal
            if row.salt is not None and len(row.salt) == SALT_BYTES:
                row.salt = vault.seal_salt(row.salt.hex(), task_id=task_id, ordinal=ordinal)
            if row.no_data is not None and is_plain_statement(row.no_data):
                row.no_data = vault.seal_statement(row.no_data, task_id=task_id, ordinal=ordinal)
    return len(rows)
