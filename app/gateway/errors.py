"""The errors of the API. Each class knows its HTTP status and its problem type (RFC 9457)."""

from collections.abc import Sequence
from typing import Any


class ServiceError(Exception):
    """An error that is answered as `application/problem+json`.

    `detail` says what happened, why, and what to do next. It never repeats what the caller sent.
    """

    status = 500
    title = "Internal error"

    def __init__(self, detail: str = "", *, headers: dict[str, str] | None = None, **extra: Any) -> None:
        super().__init__(detail or self.title)
        self.detail = detail
        self.headers = headers or {}
        self.extra = extra

    @property
    def kind(self) -> str:
        """The problem type, from the class name: `NotFound` becomes `urn:lethe:problem:not-found`."""
        words = "".join("-" + c.lower() if c.isupper() else c for c in type(self).__name__)
        return f"urn:lethe:problem:{words.lstrip('-')}"

    def problem(self, instance: str = "") -> dict[str, Any]:
        """Return the problem document. `instance` identifies the request in the logs."""
        document = {"type": self.kind, "title": self.title, "status": self.status, "detail": self.detail}
        if instance:
            document["instance"] = instance
        return document | self.extra


class InvalidRequest(ServiceError):
    """The request does not have the required form. `errors` lists each invalid field."""

    status = 422
    title = "The request is not valid"

    def __init__(self, detail: str = "", errors: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(detail)
        if errors:
            self.extra["errors"] = list(errors)


class MalformedRequest(ServiceError):
    """The bytes on the connection are not an HTTP request."""

    status = 400
    title = "The request is not valid HTTP"


class Unauthenticated(ServiceError):
    """The request carries no valid API key."""

    status = 401
    title = "A valid API key is required"

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail, headers={"WWW-Authenticate": "Bearer"})


class Forbidden(ServiceError):
    """The caller may not do this."""

    status = 403
    title = "Not allowed"


class NotFound(ServiceError):
    """The resource does not exist, or belongs to another tenant."""

    status = 404
    title = "Not found"


class MethodNotAllowed(ServiceError):
    """The path exists, but not with this method."""

    status = 405
    title = "Method not allowed"


class RequestTimeout(ServiceError):
    """The client stopped sending its request, or sends it too slowly."""

    status = 408
    title = "The request did not arrive in time"


class Conflict(ServiceError):
    """The resource is in a state that does not allow the request."""

    status = 409
    title = "The request conflicts with the current state"


class Gone(ServiceError):
    """The resource existed and was deleted."""

    status = 410
    title = "No longer available"


class IdempotencyMismatch(ServiceError):
    """An idempotency key was sent again with a different request."""

    status = 422
    title = "The Idempotency-Key belongs to a different request"


class BodyTooLarge(ServiceError):
    """The request body exceeds the limit of the endpoint."""

    status = 413
    title = "The request body is too large"


class RangeNotSatisfiable(ServiceError):
    """The requested byte range lies outside the file."""

    status = 416
    title = "The range lies outside the file"


class TooManyRequests(ServiceError):
    """The caller has to wait. `Retry-After` says how long."""

    status = 429
    title = "Too many requests"


class HeaderTooLarge(ServiceError):
    """The header of the request has too many bytes or fields."""

    status = 431
    title = "The header of the request is too large"


class Unavailable(ServiceError):
    """The service cannot handle the request at the moment. `Retry-After` says when to try again."""

    status = 503
    title = "Temporarily unavailable"


class FileDamaged(ServiceError):
    """The storage does not hold a file as it was stored."""

    status = 500
    title = "The file is missing or damaged"


class UnsupportedMedia(ServiceError):
    """The endpoint does not accept the media type of the body."""

    status = 415
    title = "The media type is not supported"
