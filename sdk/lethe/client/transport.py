"""One exchange with the service: sending with retries, turning errors into exceptions, parsing responses."""

import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import count
from random import SystemRandom
from typing import Any, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from lethe.certificate.validation import validation_message
from lethe.client.errors import BadAnswer, Unreachable, api_error
from lethe.client.operations import Procedure, Reply, Request, Sleep, send

T = TypeVar("T")
NOT_PROCESSED = (429, 503)  # the service refused before it did anything, so every request can be repeated
OUTCOME_UNKNOWN = (502, 504)  # a proxy lost the response, so only repeatable requests can be repeated
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True)
class Retry:
    """How often the client retries a request, and how long it pauses in between.

    All durations are in seconds. If the service sends `Retry-After`, that pause is used instead. A
    `Retry-After` of more than `longest_retry_after` ends the retries.
    """

    times: int = 5
    first_pause: float = 0.25
    longest_pause: float = 10.0
    longest_retry_after: float = 60.0

    def pause(self, attempt: int, retry_after: float | None = None) -> float:
        """Return the pause after an attempt, numbered from 0.

        Pauses grow exponentially. They are jittered, so that clients that failed together do not all come
        back at the same moment.
        """
        random = SystemRandom()
        if retry_after is not None:
            return retry_after + random.uniform(0.0, self.first_pause)
        return min(self.longest_pause, self.first_pause * 2.0**attempt) * random.uniform(0.5, 1.0)


def exchange(request: Request, retry: Retry, *, stream: bool = False) -> Procedure[Reply]:
    """Send a request, with retries, and return the successful reply.

    Raises `Unreachable` if no response arrives, and an `ApiError` if the service refuses.
    """
    for attempt in count():
        last = attempt >= retry.times
        try:
            reply = yield from send(request, stream=stream)
        except httpx.TransportError as error:
            if last or not (request.repeatable or isinstance(error, NOT_SENT)):
                raise unreachable(error) from error
            yield Sleep(retry.pause(attempt))
            continue
        retry_after = _retry_after(reply.response.headers)
        too_long = (retry_after or 0) > retry.longest_retry_after
        if last or too_long or not _can_repeat(request, reply.response.status_code):
            return _checked(reply)
        yield Sleep(retry.pause(attempt, retry_after))
    raise AssertionError("the loop ends with a return or an error")


def unreachable(error: httpx.TransportError) -> Unreachable:
    """Return the error that says in plain words why no response arrived."""
    return Unreachable(_describe_failure(error, _origin(error)))


def _describe_failure(error: httpx.TransportError, origin: str) -> str:
    causes = list(_causes(error))
    match error:
        case httpx.UnsupportedProtocol():
            return f"{origin} does not start with http:// or https://"
        case httpx.TimeoutException():
            return f"{origin} did not answer in time"
        case httpx.ConnectError() if any(isinstance(cause, ssl.SSLError) for cause in causes):
            return f"the TLS certificate of {origin} is not valid or not trusted"
        case httpx.ConnectError() if any(isinstance(cause, socket.gaierror) for cause in causes):
            return f"the host name in {origin} is not known"
        case httpx.ConnectError():
            return f"nothing answers at {origin}"
        case _:
            return f"the connection to {origin} broke"


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _origin(error: httpx.TransportError) -> str:
    """Return the scheme and host of the request. Its path might contain a name."""
    try:
        url = error.request.url
    except RuntimeError:  # the request is not known
        return "the service"
    return f"{url.scheme}://{url.netloc.decode()}"


def parse(response: httpx.Response, kind: type[T]) -> T:
    """Parse the JSON body of a response as `kind`. Raises `BadAnswer`, which never quotes the body."""
    try:
        return TypeAdapter(kind).validate_json(response.content)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = "/".join(str(step) for step in first["loc"]) or "the body"
        problem = f"{place} {validation_message(first)}"
        raise BadAnswer(f"the response of {response.request.url.path} cannot be read ({problem})") from None


def _checked(reply: Reply) -> Reply:
    if reply.response.is_success:
        return reply
    raise api_error(reply.response.status_code, _problem(reply.response))


def _problem(response: httpx.Response) -> Mapping[str, Any]:
    try:
        document = json.loads(response.content)
    except ValueError:
        document = None
    if isinstance(document, dict) and "json" in response.headers.get("content-type", ""):
        return document
    return {"title": f"HTTP {response.status_code} {response.reason_phrase}".strip()}


def _can_repeat(request: Request, status: int) -> bool:
    return status in NOT_PROCESSED or (status in OUTCOME_UNKNOWN and request.repeatable)


def _retry_after(headers: httpx.Headers) -> float | None:
    """Return the seconds of a `Retry-After` header, which holds seconds or a date (RFC 9110, 10.2.3)."""
    value = headers.get("retry-after", "")
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
