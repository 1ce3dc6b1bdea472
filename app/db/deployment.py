"""The deployment key of an installation: made once, and known again ever after.

Identifiers stored under one key cannot be read under another, and nobody would notice before an erasure
fails. So the database keeps a keyed hash of nothing, from which no key follows, and every part compares.
"""

import hmac

from sqlalchemy import LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from app import vault
from app.db.session import Database
from app.db.types import Base
from app.db.upsert import insert_if_absent
from app.settings import Settings

PURPOSE = "deployment key check"


class Deployment(Base):
    """One row."""

    __tablename__ = "deployment"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    key_check: Mapped[bytes] = mapped_column(LargeBinary(32))


def open_vault(settings: Settings, database: Database) -> vault.Vault:
    path = settings.deployment_key_path
    # Where the database knows a key, a new one could only be wrong.
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
        raise vault.KeyProblem(f"the deployment key {path} is not the one that this database began with")
    return opened


def _known(database: Database) -> bytes | None:
    with database.reading() as session:
        row = session.get(Deployment, 1)
        return None if row is None else row.key_check
