"""A table that is turned page by page, the newest first: the same for every noun."""

from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

from fastapi import Request, Response
from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.bootstrap import Services
from app.paging import paged
from app.web import queries
from app.web.pages import page

ROWS = 50
R = TypeVar("R")


def listing(
    request: Request,
    services: Services,
    template: str,
    query: Select[R],
    key: InstrumentedAttribute[UUID],
    *,
    cursor: UUID | None,
    show: Callable[[Session, R], object],
    **context: Any,
) -> Response:
    with services.database.reading() as session:
        found = paged(session, query, key, limit=ROWS, cursor=cursor, show=lambda row: show(session, row))
        total = queries.size_of(session, query)
    return page(request, template, found=found, total=total, later=cursor is not None, **context)
