"""Cursor pagination: newest first; the cursor is the last id shown, since ids grow with time."""

from collections.abc import Callable
from typing import Annotated, Generic, TypeVar
from uuid import UUID

from fastapi import Query
from pydantic import BaseModel
from sqlalchemy import ColumnElement, Select
from sqlalchemy.orm import InstrumentedAttribute, Session

T = TypeVar("T")
R = TypeVar("R")

Limit = Annotated[int, Query(ge=1, le=200, description="Most items in the answer.")]
Cursor = Annotated[UUID | None, Query(description="`next_cursor` of the page before.")]


class Page(BaseModel, Generic[T]):
    items: list[T]
    next_cursor: UUID | None


def paged(
    session: Session,
    query: Select[R],
    key: InstrumentedAttribute[UUID],
    *,
    limit: int,
    cursor: UUID | None,
    show: Callable[[R], T],
) -> Page[T]:
    after: ColumnElement[bool] | None = None if cursor is None else key < cursor
    rows = session.scalars(
        (query if after is None else query.where(after)).order_by(key.desc()).limit(limit + 1)
    ).all()
    shown = rows[:limit]
    last: UUID | None = getattr(shown[-1], key.key) if len(rows) > limit else None
    return Page(items=[show(row) for row in shown], next_cursor=last)
