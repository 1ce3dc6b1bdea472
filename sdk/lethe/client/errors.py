"""The exceptions of the client. All of them derive from `LetheError`."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID


class LetheError(Exception):
    """The base of every error that the client raises."""


class Unreachable(LetheError):
    """No response arrived: nothing listens at the address, the connection broke, or the request timed out."""


class TimedOut(LetheError):
    """Something did not finish within the timeout. It continues on the server."""


class DownloadCorrupt(LetheError):
    """The downloaded bytes do not match the announced digest. The target file was not touched."""


class BadAnswer(LetheError):
    """The client cannot read the response: the server is not Lethe, or its version is incompatible."""


class ModelRejected(LetheError):
    """Registration rejected a model. `reasons` lists every reason."""

    def __init__(self, name: str, reasons: Sequence[str]) -> None:
        super().__init__(f"the model {name} was rejected: {'; '.join(reasons)}")
        self.name, self.reasons = name, tuple(reasons)


class BatchHeld(LetheError):
    """A batch waits for a decision. Approve, discard or retry it."""

    def __init__(self, batch_id: UUID, reason: str | None) -> None:
        why = f" ({reason.replace('_', ' ')})" if reason else ""
        super().__init__(f"the batch {batch_id} is on hold, needs a decision{why}")
        self.batch_id, self.reason = batch_id, reason


class ReleaseUnavailable(LetheError):
    """The requested release does not exist, has no certificate, or cannot have the requested form."""


class NotVerified(LetheError):
    """A certificate or a file does not verify, so it was not used. `failures` lists every failed check."""

    def __init__(self, subject: str, failures: Sequence[str]) -> None:
        super().__init__(f"{subject} does not verify, so it was not used: {'; '.join(failures)}")
        self.failures = tuple(failures)


class ApiError(LetheError):
    """The service refused a request.

    `problem` is the problem document of the response (RFC 9457). If the response had none, for example
    because a proxy sent it, `problem` has only a title.
    """

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        self.type = str(problem.get("type", "about:blank"))
        self.title = str(problem.get("title", f"HTTP {status}"))
        self.detail = str(problem.get("detail", ""))
        self.errors: Sequence[Mapping[str, Any]] = problem.get("errors") or ()
        super().__init__(f"{self.title}: {self.detail}" if self.detail else self.title)


class Unauthorised(ApiError):
    """401: the API key is missing, unknown or revoked."""


class Forbidden(ApiError):
    """403: the API key lacks a scope."""


class NotFound(ApiError):
    """404: there is no such object."""


class Conflict(ApiError):
    """409: the current state of the object does not allow the request."""


class Gone(ApiError):
    """410: the object existed once, but no longer does."""


class Invalid(ApiError):
    """400, 413, 415, 416 or 422: the request itself is invalid."""


class RateLimited(ApiError):
    """429: too many requests."""


class ServerError(ApiError):
    """500 and above: the service failed."""


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
    """Return the error for an HTTP status, with its problem document."""
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    return kind(status, problem)
