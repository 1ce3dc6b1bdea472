"""Cursor pagination, newest first. Ids grow with time, so the cursor is the id of the last item returned."""

from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar
from uuid import UUID

from fastapi import Query
from pydantic import BaseModel, Field
from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute, Session

T = TypeVar("T")
R = TypeVar("R")

Limit = Annotated[int, Query(ge=1, le=200, description="The most items to return.")]
Cursor = Annotated[
    UUID | None, Query(description="The `next_cursor` of the previous page. Omit it for the first page.")
]


class Page(BaseModel, Generic[T]):
    """One page of a list."""

    items: list[T] = Field(description="The items, newest first.")
    next_cursor: UUID | None = Field(
        description="Pass this as `cursor` to get the next page. Null at the end."
    )


def fetch_page(
    session: Session,
    query: Select[R],
    key: InstrumentedAttribute[UUID],
    *,
    limit: int,
    cursor: UUID | None,
    describe: Callable[[Sequence[R]], Sequence[T]],
) -> Page[T]:
    """Run `query` for one page, ordered by `key` from newest to oldest.

    `describe` turns all rows of the page into items at once, so that it can load related rows in a constant
    number of queries.
    """
    after = query if cursor is None else query.where(key < cursor)
    rows = session.scalars(after.order_by(key.desc()).limit(limit + 1)).all()
    page = rows[:limit]
    next_cursor: UUID | None = getattr(page[-1], key.key) if len(rows) > limit else None
    return Page(items=list(describe(page)), next_cursor=next_cursor)
