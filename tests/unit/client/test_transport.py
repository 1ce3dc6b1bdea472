"""Retries, errors and responses, without a network. Each test runs on the blocking and the async driver."""

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

import lethe
from lethe import AsyncLethe, Lethe, Retry
from lethe.client.event_stream import EventParser

Answers = Callable[[httpx.Request], httpx.Response]
Call = Callable[[Answers, Callable[[Any], Any]], Any]
BATCH: dict[str, Any] = {
    "id": str(uuid4()),
    "model": "toy",
    "state": "completed",
    "summary": "Completed.",
    "decisions": [],
    "decided": None,
    "sealed_because": "age",
    "subjects": 1,
    "attempt": 1,
    "sealed_at": "2026-01-01T00:00:00Z",
    "step": None,
    "records": None,
    "waiting_for": None,
    "shift": None,
    "progress": None,
    "held_reason": None,
    "error": None,
    "warnings": [],
    "version": None,
    "certificate_id": None,
    "completed_at": None,
}


@pytest.fixture(params=["blocking", "async"])
def call(request: pytest.FixtureRequest, slept: list[float]) -> Call:
    """Call a client whose server is a function. Iterators are read to their end."""

    def blocking(answers: Answers, use: Callable[[Any], Any]) -> Any:
        with Lethe("http://x", "k", transport=httpx.MockTransport(answers)) as lethe:
            result = use(lethe)
            return list(result) if inspect.isgenerator(result) else result

    async def asynchronous(answers: Answers, use: Callable[[Any], Any]) -> Any:
        async with AsyncLethe("http://x", "k", transport=httpx.MockTransport(answers)) as lethe:
            result = use(lethe)
            return [item async for item in result] if inspect.isasyncgen(result) else await result

    if request.param == "blocking":
        return blocking
    return lambda answers, use: asyncio.run(asynchronous(answers, use))


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record pauses instead of making them."""
    pauses: list[float] = []

    async def record(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("lethe.client.operations.time.sleep", pauses.append)
    monkeypatch.setattr("lethe.client.operations.asyncio.sleep", record)
    return pauses


class Script:
    """Returns these responses one after the other, and repeats the last one. Exceptions are raised."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers, self.seen = list(answers), list[httpx.Request]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer.stream, httpx.ByteStream):  # a response can be read only once
            return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)
        return answer


def _problem(status: int, **headers: str) -> httpx.Response:
    document = {"type": "urn:lethe:problem:x", "title": "No", "status": status, "detail": "why"}
    return httpx.Response(status, json=document, headers=headers)


@pytest.mark.parametrize(
    "trouble", [httpx.ConnectError("refused"), httpx.ReadError("cut"), *map(_problem, (429, 502, 503, 504))]
)
def test_temporary_failures_are_retried(call: Call, slept: list[float], trouble: Any) -> None:
    script = Script(trouble, trouble, httpx.Response(200, json=BATCH))
    assert call(script, lambda lethe: lethe.batches.get("b")).model == "toy"
    assert len(script.seen) == 3
    assert 0.125 <= slept[0] <= 0.25
    assert 0.25 <= slept[1] <= 0.5


@pytest.mark.parametrize("trouble", [httpx.ReadError("cut"), _problem(502), _problem(504), _problem(500)])
def test_a_request_that_may_have_been_processed_is_not_repeated(call: Call, trouble: Any) -> None:
    script = Script(trouble, httpx.Response(202, json=BATCH))
    with pytest.raises((lethe.Unreachable, lethe.ServerError)):
        call(script, lambda lethe: lethe.batches.retry("b"))
    assert len(script.seen) == 1


@pytest.mark.parametrize("trouble", [httpx.ConnectError("refused"), _problem(503), _problem(429)])
def test_a_request_that_was_not_processed_is_always_repeated(call: Call, trouble: Any) -> None:
    script = Script(trouble, httpx.Response(202, json=BATCH))
    call(script, lambda lethe: lethe.batches.retry("b"))
    assert len(script.seen) == 2


def test_retry_after_sets_the_pause_up_to_a_limit(call: Call, slept: list[float]) -> None:
    script = Script(_problem(503, **{"Retry-After": "7"}), httpx.Response(200, json=BATCH))
    call(script, lambda lethe: lethe.batches.get("b"))
    assert 7 <= slept[0] <= 7.25
    too_long = Script(_problem(503, **{"Retry-After": "3600"}))
    with pytest.raises(lethe.ServerError):
        call(too_long, lambda lethe: lethe.batches.get("b"))
    assert len(too_long.seen) == 1


def test_retries_are_limited(call: Call, slept: list[float]) -> None:
    script = Script(httpx.ConnectError("refused"))
    with pytest.raises(lethe.Unreachable, match="nothing answers at http://x"):
        call(script, lambda lethe: lethe.batches.get("b"))
    assert len(script.seen) == Retry().times + 1
    assert len(slept) == Retry().times


def test_every_status_has_its_error_class(call: Call) -> None:
    kinds = {
        401: lethe.Unauthorised,
        403: lethe.Forbidden,
        404: lethe.NotFound,
        409: lethe.Conflict,
        410: lethe.Gone,
        413: lethe.Invalid,
        422: lethe.Invalid,
        418: lethe.ApiError,
        500: lethe.ServerError,
    }
    for status, kind in kinds.items():
        with pytest.raises(kind) as caught:
            call(Script(_problem(status)), lambda lethe: lethe.batches.get("b"))
        assert isinstance(caught.value, lethe.ApiError)
        assert (caught.value.status, caught.value.title, caught.value.detail) == (status, "No", "why")
        assert type(caught.value) is kind


def test_an_error_without_a_problem_document_is_understood(call: Call) -> None:
    with pytest.raises(lethe.NotFound, match="HTTP 404"):
        call(Script(httpx.Response(404, text="<html>")), lambda lethe: lethe.batches.get("b"))


def test_an_unreadable_response_raises_without_quoting_it(call: Call) -> None:
    for answer in (httpx.Response(200, text="<html>"), httpx.Response(200, json={"id": "secret-thing"})):
        with pytest.raises(lethe.BadAnswer) as caught:
            call(Script(answer), lambda lethe: lethe.batches.get("b"))
        assert "secret-thing" not in str(caught.value)


def test_fields_of_a_newer_server_are_kept(call: Call) -> None:
    batch = call(Script(httpx.Response(200, json=BATCH | {"colour": "red"})), lambda x: x.batches.get("b"))
    assert batch.model_dump()["colour"] == "red"


def test_names_are_quoted_in_paths(call: Call) -> None:
    script = Script(_problem(404))
    with pytest.raises(lethe.NotFound):
        call(script, lambda lethe: lethe.models.get("a/../b?c"))
    assert script.seen[0].url.raw_path == b"/v1/models/a%2F..%2Fb%3Fc"
    assert script.seen[0].headers["authorization"] == "Bearer k"


def test_retries_of_an_erasure_share_an_idempotency_key(call: Call) -> None:
    script = Script(httpx.ReadError("cut"), httpx.ReadError("cut"), _problem(422))
    for _ in range(2):
        with pytest.raises(lethe.Invalid):
            call(script, lambda lethe: lethe.erasures.create(["p"]))
    keys = [request.headers["idempotency-key"] for request in script.seen]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    with pytest.raises(lethe.Invalid):
        call(script, lambda lethe: lethe.erasures.bulk(b"", idempotency_key="mine"))
    assert script.seen[-1].headers["idempotency-key"] == "mine"


def test_a_broken_stream_resumes_after_the_last_event(call: Call) -> None:
    def lines(*numbers: int) -> bytes:
        return b"".join(b'id: %d\nevent: step\ndata: {"n": %d}\n\n' % (n, n) for n in numbers)

    class Cut(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield lines(1, 2) + b"id: 3\nevent: st"
            raise httpx.ReadError("cut")

        async def __aiter__(self) -> Any:
            for chunk in self:
                yield chunk

    running = httpx.Response(200, json=BATCH | {"state": "running"})
    script = Script(
        *(httpx.Response(200, stream=Cut()), httpx.Response(200, content=lines(3)), running),
        *(httpx.Response(200, content=lines(4)), httpx.Response(200, json=BATCH)),
    )
    events = call(script, lambda lethe: lethe.batches.events("b"))
    assert [event.data["n"] for event in events] == [1, 2, 3, 4]
    asked = [r.headers.get("last-event-id") for r in script.seen if r.url.path.endswith("/events")]
    assert asked == [None, "2", "3"]


def test_events_are_parsed_however_they_are_split() -> None:
    text = b': hello\r\n\r\nid: 7\r\nevent: a\ndata: {"x":\ndata: 1}\n\nid: 8\ndata:{"y": 2}\n\nid: 9\n\n'
    for size in (1, 3, 1000):
        parser, events = EventParser(), []
        for start in range(0, len(text), size):
            events += parser.feed(text[start : start + size])
        assert [(e.id, e.kind, json.dumps(e.data)) for e in events] == [
            ("7", "a", '{"x": 1}'),
            ("8", "message", '{"y": 2}'),
        ]
    with pytest.raises(lethe.BadAnswer):
        EventParser().feed(b"data: {\n\n")


def test_waiting_ends_at_the_timeout(call: Call, slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("lethe.client.changes.time.monotonic", lambda: float(next(clock)))
    script = Script(httpx.Response(200, json=BATCH | {"state": "running"}))
    with pytest.raises(lethe.TimedOut):
        call(script, lambda lethe: lethe.batches.wait("b", timeout=3))
    assert slept == sorted(slept)


def test_abandoning_an_iterator_closes_its_response() -> None:
    class Endless(httpx.SyncByteStream):
        closed = False

        def __iter__(self) -> Iterator[bytes]:
            while True:
                yield b'id: 1\ndata: {"n": 1}\n\n'

        def close(self) -> None:
            self.closed = True

    body = Endless()
    with Lethe("http://x", transport=httpx.MockTransport(Script(httpx.Response(200, stream=body)))) as lethe:
        events = lethe.batches.events("b")
        assert next(events).id == "1"
        assert inspect.isgenerator(events)
        events.close()
    assert body.closed
