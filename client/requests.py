"""One request and its answer: what is tried again, how long to wait, what a refusal becomes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import count
from random import SystemRandom
from typing import Any, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from client.errors import BadAnswer, Unreachable, api_error
from client.flow import Answer, Flow, Request, Sleep, send

T = TypeVar("T")
REFUSED = (429, 503)  # said before anything was done: safe to try again, whatever was asked
LOST = (502, 504)  # a proxy's word: what became of the request is not known
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True)
class Retry:
    """How often a request is tried again, and with what pauses. The server's `Retry-After` goes first."""

    times: int = 5
    first: float = 0.25
    longest: float = 10.0
    patience: float = 60.0  # a longer `Retry-After` is not waited for

    def pause(self, attempt: int, asked: float | None = None) -> float:
        """Exponential, with jitter: callers that failed together shall not come back together."""
        own = min(self.longest, self.first * 2.0**attempt) * SystemRandom().uniform(0.5, 1.0)
        return own if asked is None else asked + SystemRandom().uniform(0.0, self.first)


def answered(request: Request, retry: Retry, *, unread: bool = False) -> Flow[Answer]:
    """The answer, after as many attempts as it takes; a refusal is raised."""
    for attempt in count():
        last = attempt >= retry.times
        try:
            answer = yield from send(request, unread=unread)
        except httpx.TransportError as problem:
            if last or not (request.repeatable or isinstance(problem, NOT_SENT)):
                raise unreachable(problem) from problem
            yield Sleep(retry.pause(attempt))
            continue
        response = answer.response
        asked = _retry_after(response.headers)
        if last or not _worth_repeating(request, response.status_code) or (asked or 0) > retry.patience:
            return _accepted(answer)
        yield Sleep(retry.pause(attempt, asked))
    raise AssertionError("unreachable")


def unreachable(problem: httpx.TransportError) -> Unreachable:
    return Unreachable(f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__)


def parsed(response: httpx.Response, kind: type[T]) -> T:
    """The answer's JSON as `kind`."""
    try:
        return TypeAdapter(kind).validate_json(response.content)
    except ValidationError as problem:
        first = problem.errors(include_input=False)[0]
        raise BadAnswer(f"{response.request.url.path}: {first['loc']}: {first['msg']}") from None


def _accepted(answer: Answer) -> Answer:
    response = answer.response
    if response.is_success:
        return answer
    raise api_error(response.status_code, _problem(response))


def _problem(response: httpx.Response) -> Mapping[str, Any]:
    try:
        document = json.loads(response.content)
    except ValueError:
        document = None
    if isinstance(document, dict) and "json" in response.headers.get("content-type", ""):
        return document
    return {"title": f"HTTP {response.status_code} {response.reason_phrase}".strip()}


def _worth_repeating(request: Request, status: int) -> bool:
    return status in REFUSED or (status in LOST and request.repeatable)


def _retry_after(headers: httpx.Headers) -> float | None:
    """Seconds or a date (RFC 9110, 10.2.3); None when it is neither."""
    value = headers.get("retry-after", "")
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
