"""The check that a process uses the deployment key that this database was started with.

Identifiers encrypted under one key cannot be decrypted under another, and a wrong key would go unnoticed
until an erasure fails. So the database stores a keyed hash of the empty string, which reveals nothing about
the key, and every process compares it with its own.
"""

import hmac
from datetime import datetime

from sqlalchemy import LargeBinary
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.core import vault
from app.core.settings import Settings
from app.core.vault import HASHING, Vault, derive
from app.db.session import Database, insert_if_absent
from app.db.types import Base

PURPOSE = "deployment key check"
ROTATED_PURPOSE = "deployment key check after a rotation"


class Deployment(Base):
    """What is known about the deployment as a whole, in one row: the check value of its key, and a time."""

    __tablename__ = "deployment"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    key_check: Mapped[bytes] = mapped_column(LargeBinary(32))
    hash_key: Mapped[bytes | None] = mapped_column(LargeBinary())
    """The key of keyed hashes, encrypted, if the deployment key was rotated. Null: it is derived from it."""
    expiry_clock_at: Mapped[datetime | None]
    """The time by which a dispatcher last deleted what had expired (`app.dispatcher.expiry_clock`)."""


def open_vault(settings: Settings, database: Database) -> Vault:
    """Open the vault with the configured deployment key, and create that key for a new installation.

    Raises `KeyProblem` if the key is missing, malformed or not the one this database was started with. While
    the key is being rotated, the previous one is configured too, and the database may know either.
    """
    path = settings.deployment_key_path
    # If the database already knows a key, a new one would be the wrong one.
    if settings.may_create_keys and not path.exists() and _known(database) is None:
        vault.create(path)
    known = _known(database)
    if known is None:
        check = Vault(vault.load(path)).check_value(PURPOSE)
        with database.writing() as session:
            insert_if_absent(session, Deployment, id=1, key_check=check)
        known = _known(database)
    assert known is not None
    return vault_for(settings, known)


def vault_for(settings: Settings, known: Deployment) -> Vault:
    """Return the vault of the configured keys. Raise `KeyProblem` if the database knows neither of them."""
    path, previous_path = settings.deployment_key_path, settings.previous_deployment_key_file
    key = vault.load(path)
    previous = None if previous_path is None else vault.load(previous_path)
    for candidate in (key, previous):
        if candidate is None:
            continue
        owner = Vault(candidate)
        if hmac.compare_digest(known.key_check, owner.check_value(_purpose(known))):
            # Until the rotation is complete, the hash key is that of the previous deployment key.
            hash_key = (
                derive(candidate, HASHING) if known.hash_key is None else owner.open_hash_key(known.hash_key)
            )
            return Vault(key, hash_key=hash_key, previous=previous)
    advice = "put the original key there"
    if previous_path is None:
        advice += ", or if you are rotating it, name the original in LETHE_PREVIOUS_DEPLOYMENT_KEY_FILE"
    else:
        advice += f", or in {previous_path}"
    raise vault.KeyProblem(
        f"the deployment key {path} is not the one that this database was started with; {advice}"
    )


def is_rotated(session: Session, opened: Vault) -> bool:
    """Return whether the database knows the configured deployment key, and not the previous one."""
    row = session.get_one(Deployment, 1)
    return hmac.compare_digest(row.key_check, opened.check_value(_purpose(row)))


def finish_rotation(session: Session, opened: Vault) -> None:
    """Make the configured deployment key the one that this database knows, with the hash key as it was."""
    row = session.get_one(Deployment, 1, with_for_update=True)
    row.hash_key = opened.seal_hash_key()
    row.key_check = opened.check_value(ROTATED_PURPOSE)


def _purpose(known: Deployment) -> str:
    """Return the purpose of the check value. Code that knows no hash keys must not accept a rotated key."""
    return PURPOSE if known.hash_key is None else ROTATED_PURPOSE


def _known(database: Database) -> Deployment | None:
    with database.reading() as session:
        return session.get(Deployment, 1)
