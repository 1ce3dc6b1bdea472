"""Turns every error into RFC 9457 `application/problem+json`. No answer repeats what the caller sent."""

import errno
import sqlite3
from functools import lru_cache
from itertools import takewhile
from typing import Any

import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as NoFreeConnection
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from app.core import logging
from app.core.storage import StorageUnavailable
from app.core.vault import KeyProblem
from app.gateway import errors
from app.gateway.json_body import BodyRefused
from lethe.certificate.validation import validation_message

log = logging.get_logger("gateway")
_database_outage, _storage_outage = logging.OutageLog(log, "database"), logging.OutageLog(log, "storage")
DATABASE_OUTAGES = (OperationalError, NoFreeConnection)
_BY_STATUS: dict[int, type[errors.ServiceError]] = {
    404: errors.NotFound,
    405: errors.MethodNotAllowed,
}
# The framework's own wording for paths and methods that no endpoint handles.
_DETAILS = {
    "Not Found": "There is no endpoint at this path. See /docs for the endpoints.",
    "Method Not Allowed": "The endpoint at this path does not support this method. See /docs.",
}

# A full disk, an exhausted quota, a file that may not grow, a folder that became read-only, a failing disk.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
# The framework answers 400 with these words if Python's JSON parser gives up on a body that is valid JSON.
_UNREADABLE_BODY = "There was an error parsing the body"

_SHOWN_ERRORS, _SUMMARISED_ERRORS = 50, 5


class Problem(JSONResponse):
    """A problem document as an HTTP response."""

    media_type = "application/problem+json"


def install(app: FastAPI) -> None:
    """Register a handler for every exception that may leave an endpoint."""
    app.add_exception_handler(errors.ServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    for outage in DATABASE_OUTAGES:
        app.add_exception_handler(outage, _database_error)
    app.add_exception_handler(IntegrityError, _integrity_error)
    app.add_exception_handler(StorageUnavailable, _storage_error)
    app.add_exception_handler(KeyProblem, _key_error)
    app.add_exception_handler(OSError, _disk_error)
    app.add_exception_handler(ClientDisconnect, _client_disconnected)
    app.add_exception_handler(Exception, _unexpected)


def respond(request: Request, error: errors.ServiceError) -> Problem:
    """Return `error` as a response. Its `instance` holds the request id."""
    request_id = getattr(request.state, "request_id", "")
    document = error.problem(instance=f"urn:lethe:request:{request_id}" if request_id else "")
    return Problem(document, status_code=error.status, headers=error.headers)


async def _service_error(request: Request, error: Exception) -> Problem:
    assert isinstance(error, errors.ServiceError)
    return respond(request, error)


async def _validation_error(request: Request, error: Exception) -> Problem:
    assert isinstance(error, RequestValidationError)
    names = _names(request.app)
    fields = [
        {"at": _pointer(e["loc"], names), "message": validation_message(e), "type": e["type"]}
        for e in error.errors()[:_SHOWN_ERRORS]
    ]
    summary = "; ".join(f"{field['at']}: {field['message']}" for field in fields[:_SUMMARISED_ERRORS])
    return respond(request, errors.InvalidRequest(summary, fields))


async def _http_error(request: Request, error: Exception) -> Problem:
    assert isinstance(error, HTTPException)
    if isinstance(error, BodyRefused):
        return respond(request, error.error)
    if error.detail == _UNREADABLE_BODY:
        detail = (
            "The body cannot be read: it is not UTF-8, is nested too deeply, or contains a number with too "
            "many digits."
        )
        return respond(request, errors.InvalidRequest(detail))
    known, headers = _BY_STATUS.get(error.status_code), dict(error.headers or {})
    if known is not None:
        return respond(request, known(_DETAILS.get(error.detail, error.detail), headers=headers))
    other = errors.ServiceError(error.detail, headers=headers)
    other.status, other.title = error.status_code, error.detail
    return respond(request, other)


async def _database_error(request: Request, error: Exception) -> Problem:
    _database_outage.failed(error)
    detail = "The database cannot be reached. Try again in a few seconds."
    return respond(request, errors.Unavailable(detail, headers={"Retry-After": "5"}))


async def _storage_error(request: Request, error: Exception) -> Problem:
    _storage_outage.failed(error)
    detail = "The file storage cannot be reached. Try again in a few seconds."
    return respond(request, errors.Unavailable(detail, headers={"Retry-After": "5"}))


async def _key_error(request: Request, error: Exception) -> Problem:
    log.error("a key cannot be used", problem=str(error))
    detail = (
        "A key that this needs is missing from the service or damaged. Nothing was changed. The log of the "
        "gateway tells its operators which one. Try again when they have restored it."
    )
    return respond(request, errors.Unavailable(detail, headers={"Retry-After": "60"}))


async def _disk_error(request: Request, error: Exception) -> Problem:
    """Answer 503 if the disk of the storage is full or cannot be written. Anything else is a bug of ours."""
    assert isinstance(error, OSError)
    if error.errno not in _DISK_ERRORS:
        return await _unexpected(request, error)
    log.error("the disk cannot be written", problem=errno.errorcode[error.errno])
    detail = "The file storage is full or cannot be written. Try again later, or tell the operator."
    return respond(request, errors.Unavailable(detail, headers={"Retry-After": "5"}))


async def _integrity_error(request: Request, error: Exception) -> Problem:
    """Answer 409 if another request created the same unique row first. Anything else is a bug of ours."""
    assert isinstance(error, IntegrityError)
    if not _is_duplicate(error.orig):
        return await _unexpected(request, error)
    detail = "Another request changed the same resource first. Fetch its current state, then decide."
    return respond(request, errors.Conflict(detail))


def _is_duplicate(cause: BaseException | None) -> bool:
    if isinstance(cause, sqlite3.IntegrityError):
        return cause.sqlite_errorname in ("SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY")
    return isinstance(cause, psycopg.errors.UniqueViolation)


async def _client_disconnected(_: Request, __: Exception) -> Response:
    """Return nginx's status for a client that left. Nobody receives it, but the log line shows it."""
    return Response(status_code=499)


async def _unexpected(request: Request, error: Exception) -> Problem:
    log.error("unexpected error", kind=type(error).__name__, where=logging.where(error.__traceback__))
    detail = (
        "Something went wrong on the server. Give the operator the request id in `instance`: it is in "
        "the log."
    )
    return respond(request, errors.ServiceError(detail))


def _pointer(location: tuple[Any, ...], names: frozenset[str]) -> str:
    """Return the path of a field, cut off at the first name that is not ours: it might be a person's."""
    known = takewhile(lambda step: isinstance(step, int) or step in names, location)
    return "/".join(str(step) for step in known)


@lru_cache(maxsize=8)
def _names(app: FastAPI) -> frozenset[str]:
    """Return every name in the OpenAPI document: locations, parameters and fields."""
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
