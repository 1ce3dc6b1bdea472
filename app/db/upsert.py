"""INSERT … ON CONFLICT DO NOTHING, which both databases spell alike and SQLAlchemy keeps per dialect."""

from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.db.types import Base


def insert_if_absent(session: Session, table: type[Base], **values: Any) -> None:
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    session.execute(insert(table).values(**values).on_conflict_do_nothing())
