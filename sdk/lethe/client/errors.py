"""One error family. What the server refused carries its problem document (RFC 9457)."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID


class LetheError(Exception):
    """Anything this client raises."""


class Unreachable(LetheError):
    """No answer came: nothing listens, the connection broke, or time ran out."""


class TimedOut(LetheError):
    """What was waited for did not end in the time given. It goes on at the server."""


class DownloadCorrupt(LetheError):
    """The bytes that came are not those the server announced; nothing was left under the final name."""


class BadAnswer(LetheError):
    """An answer that this client cannot read: something else listens there, or versions are too far apart."""


class ModelRejected(LetheError):
    def __init__(self, name: str, reasons: Sequence[str]) -> None:
        super().__init__(f"the model {name} was rejected: {'; '.join(reasons)}")
        self.name, self.reasons = name, tuple(reasons)


class BatchHeld(LetheError):
    """A batch waits for a person: approve, discard or retry it."""

    def __init__(self, batch_id: UUID, reason: str | None) -> None:
        super().__init__(f"the batch {batch_id} is held ({reason}) and waits for a decision")
        self.batch_id, self.reason = batch_id, reason


class ApiError(LetheError):
    """The server said no. `problem` is its whole document, or what little is known without one."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        self.type = str(problem.get("type", "about:blank"))
        self.title = str(problem.get("title", f"HTTP {status}"))
        self.detail = str(problem.get("detail", ""))
        self.errors: Sequence[Mapping[str, Any]] = problem.get("errors") or ()
        super().__init__(f"{self.title}: {self.detail}" if self.detail else self.title)


class Unauthorised(ApiError):
    """401: no API key, or one that is unknown or revoked."""


class Forbidden(ApiError):
    """403: the key lacks a scope."""


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: the present state does not allow it."""


class Gone(ApiError):
    """410: it was there once."""


class Invalid(ApiError):
    """400, 413, 415, 416 and 422: the request itself is at fault."""


class RateLimited(ApiError):
    """429."""


class ServerError(ApiError):
    """500 and above."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorised,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: Invalid,
    415: Invalid,
    416: Invalid,
    422: Invalid,
    429: RateLimited,
}


def api_error(status: int, problem: Mapping[str, Any]) -> ApiError:
    known = _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    return known(status, problem)
