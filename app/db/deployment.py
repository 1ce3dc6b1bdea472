"""The check that a process uses the deployment key that this database was started with.

Identifiers encrypted under one key cannot be decrypted under another, and a wrong key would go unnoticed
until an erasure fails. So the database stores a keyed hash of the empty string, which reveals nothing about
the key, and every process compares it with its own.
"""

import hmac
from datetime import datetime

from sqlalchemy import LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from app.core import vault
from app.core.settings import Settings
from app.db.session import Database, insert_if_absent
from app.db.types import Base

PURPOSE = "deployment key check"


class Deployment(Base):
    """What is known about the deployment as a whole, in one row: the check value of its key, and a time."""

    __tablename__ = "deployment"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    key_check: Mapped[bytes] = mapped_column(LargeBinary(32))
    expiry_clock_at: Mapped[datetime | None]
    """The time by which a dispatcher last deleted what had expired (`app.dispatcher.expiry_clock`)."""


def open_vault(settings: Settings, database: Database) -> vault.Vault:
    """Open the vault with the configured deployment key, and create that key for a new installation.

    Raises `KeyProblem` if the key is missing, malformed or not the one this database was started with.
    """
    path = settings.deployment_key_path
    # If the database already knows a key, a new one would be the wrong one.
    if settings.may_create_keys and not path.exists() and _known(database) is None:
        vault.create(path)
    opened = vault.load(path)
    ours = opened.keyed_hash("", purpose=PURPOSE)
    known = _known(database)
    if known is None:
        with database.writing() as session:
            insert_if_absent(session, Deployment, id=1, key_check=ours)
        known = _known(database)
    if known is None or not hmac.compare_digest(known, ours):
        raise vault.KeyProblem(
            f"the deployment key {path} is not the one that this database was started with; "
            "put the original key there"
        )
    return opened


def _known(database: Database) -> bytes | None:
    with database.reading() as session:
        row = session.get(Deployment, 1)
        return None if row is None else row.key_check
