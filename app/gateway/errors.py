"""One error family. Each error knows its HTTP status and its problem type (RFC 9457)."""

from collections.abc import Sequence
from typing import Any


class ServiceError(Exception):
    status = 500
    title = "Internal error"

    def __init__(self, detail: str = "", *, headers: dict[str, str] | None = None, **extra: Any) -> None:
        super().__init__(detail or self.title)
        self.detail = detail
        self.headers = headers or {}
        self.extra = extra

    @property
    def kind(self) -> str:
        """`NotFound` → `urn:lethe:problem:not-found`."""
        words = "".join("-" + c.lower() if c.isupper() else c for c in type(self).__name__)
        return f"urn:lethe:problem:{words.lstrip('-')}"

    def problem(self, instance: str = "") -> dict[str, Any]:
        document = {"type": self.kind, "title": self.title, "status": self.status, "detail": self.detail}
        if instance:
            document["instance"] = instance
        return document | self.extra


class InvalidRequest(ServiceError):
    status = 422
    title = "The request does not fit the schema"

    def __init__(self, detail: str = "", errors: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(detail)
        if errors:
            self.extra["errors"] = list(errors)


class Unauthenticated(ServiceError):
    status = 401
    title = "An API key is needed"

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail, headers={"WWW-Authenticate": "Bearer"})


class Forbidden(ServiceError):
    status = 403
    title = "Not allowed"


class NotFound(ServiceError):
    status = 404
    title = "Not found"


class MethodNotAllowed(ServiceError):
    status = 405
    title = "Method not allowed"


class RequestTimeout(ServiceError):
    status = 408
    title = "The body did not arrive in time"


class Conflict(ServiceError):
    status = 409
    title = "The request conflicts with the present state"


class Gone(ServiceError):
    status = 410
    title = "No longer available"


class IdempotencyMismatch(ServiceError):
    status = 422
    title = "The Idempotency-Key was used for another request"


class BodyTooLarge(ServiceError):
    status = 413
    title = "The body is too large"


class RangeNotSatisfiable(ServiceError):
    status = 416
    title = "The range lies outside the file"


class Unavailable(ServiceError):
    status = 503
    title = "Temporarily unavailable"


class UnsupportedMedia(ServiceError):
    status = 415
    title = "The media type is not taken here"
