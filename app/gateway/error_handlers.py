"""Every error leaves as RFC 9457 problem+json; none repeats what the caller sent."""

import sqlite3
from functools import lru_cache
from itertools import takewhile
from typing import Any

import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import IntegrityError, OperationalError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from app import errors, logs
from app.storage import StorageAway

log = logs.get("gateway")
_BY_STATUS: dict[int, type[errors.ServiceError]] = {
    404: errors.NotFound,
    405: errors.MethodNotAllowed,
    413: errors.BodyTooLarge,
}


# Messages that would repeat what was sent.
_MESSAGES = {"extra_forbidden": "unknown field", "union_tag_invalid": "unknown kind"}


class Problem(JSONResponse):
    media_type = "application/problem+json"


def install(app: FastAPI) -> None:
    app.add_exception_handler(errors.ServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(OperationalError, _database_error)
    app.add_exception_handler(IntegrityError, _integrity_error)
    app.add_exception_handler(StorageAway, _storage_error)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _unexpected)


def respond(request: Request, error: errors.ServiceError) -> Problem:
    request_id = getattr(request.state, "request_id", "")
    document = error.problem(instance=f"urn:lethe:request:{request_id}" if request_id else "")
    return Problem(document, status_code=error.status, headers=error.headers)


async def _service_error(request: Request, error: Exception) -> Problem:
    assert isinstance(error, errors.ServiceError)
    return respond(request, error)


async def _validation_error(request: Request, error: Exception) -> Problem:
    assert isinstance(error, RequestValidationError)
    names = _names(request.app)
    found = [
        {"at": _pointer(e["loc"], names), "message": _MESSAGES.get(e["type"], e["msg"]), "type": e["type"]}
        for e in error.errors()[:50]
    ]
    return respond(
        request, errors.InvalidRequest("; ".join(f"{e['at']}: {e['message']}" for e in found[:5]), found)
    )


async def _http_error(request: Request, error: Exception) -> Problem:
    assert isinstance(error, HTTPException)
    known = _BY_STATUS.get(error.status_code)
    if known is not None:
        return respond(request, known(error.detail, headers=dict(error.headers or {})))
    other = errors.ServiceError(error.detail, headers=dict(error.headers or {}))
    other.status, other.title = error.status_code, error.detail
    return respond(request, other)


async def _database_error(request: Request, error: Exception) -> Problem:
    log.error("database unavailable", kind=type(error).__name__)
    return respond(
        request, errors.Unavailable("The database cannot be reached.", headers={"Retry-After": "5"})
    )


async def _storage_error(request: Request, error: Exception) -> Problem:
    log.error("storage unavailable", kind=type(error).__name__)
    return respond(
        request, errors.Unavailable("The storage cannot be reached.", headers={"Retry-After": "5"})
    )


async def _integrity_error(request: Request, error: Exception) -> Problem:
    """Someone else was faster to take what may exist once; anything else is ours to mend."""
    assert isinstance(error, IntegrityError)
    if not _is_duplicate(error.orig):
        return await _unexpected(request, error)
    return respond(request, errors.Conflict("Another request was faster; look again."))


def _is_duplicate(cause: BaseException | None) -> bool:
    if isinstance(cause, sqlite3.IntegrityError):
        return cause.sqlite_errorname in ("SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY")
    return isinstance(cause, psycopg.errors.UniqueViolation)


async def _gone(_: Request, __: Exception) -> Response:
    """Nobody reads this answer; its status is for the log, as other servers have it."""
    return Response(status_code=499)


async def _unexpected(request: Request, error: Exception) -> Problem:
    log.error("unexpected error", kind=type(error).__name__, where=logs.where(error.__traceback__))
    return respond(request, errors.ServiceError("Something went wrong; the request id finds it in the log."))


def _pointer(location: tuple[Any, ...], names: frozenset[str]) -> str:
    """As far as it consists of our own words: a name that the caller made up may be a person's."""
    known = takewhile(lambda step: isinstance(step, int) or step in names, location)
    return "/".join(str(step) for step in known)


@lru_cache(maxsize=8)
def _names(app: FastAPI) -> frozenset[str]:
    """Every name that occurs in the description of the service: places, parameters, fields."""
    names = {"body", "query", "path", "header"}

    def collect(part: Any) -> None:
        if isinstance(part, dict):
            names.update(part.get("properties", ()))
            if "in" in part and isinstance(part.get("name"), str):
                names.add(part["name"])
        for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            collect(inner)

    collect(app.openapi())
    return frozenset(names)
