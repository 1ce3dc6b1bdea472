"""Retries, refusals and answers, without a network; each on the blocking and on the awaiting driver."""

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

import client
from client import AsyncLethe, Lethe, Retry
from client.events import Parser

Answers = Callable[[httpx.Request], httpx.Response]
Call = Callable[[Answers, Callable[[Any], Any]], Any]
BATCH = {
    "id": str(uuid4()),
    "model": "toy",
    "state": "completed",
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
    "version": None,
    "certificate_id": None,
    "completed_at": None,
}


@pytest.fixture(params=["blocking", "awaiting"])
def call(request: pytest.FixtureRequest, slept: list[float]) -> Call:
    """Use a client whose server is a function; iterators are read to their end."""

    def blocking(answers: Answers, use: Callable[[Any], Any]) -> Any:
        with Lethe("http://x", "k", transport=httpx.MockTransport(answers)) as lethe:
            result = use(lethe)
            return list(result) if inspect.isgenerator(result) else result

    async def awaiting(answers: Answers, use: Callable[[Any], Any]) -> Any:
        async with AsyncLethe("http://x", "k", transport=httpx.MockTransport(answers)) as lethe:
            result = use(lethe)
            return [item async for item in result] if inspect.isasyncgen(result) else await result

    if request.param == "blocking":
        return blocking
    return lambda answers, use: asyncio.run(awaiting(answers, use))


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses, noted instead of taken."""
    pauses: list[float] = []

    async def noted(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("client.drivers.time.sleep", pauses.append)
    monkeypatch.setattr("client.drivers.asyncio.sleep", noted)
    return pauses


class Script:
    """Answers one after the other, the last one for ever; an exception is raised."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers, self.seen = list(answers), list[httpx.Request]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer.stream, httpx.ByteStream):  # a response is used up by being read
            return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)
        return answer


def _problem(status: int, **headers: str) -> httpx.Response:
    document = {"type": "urn:lethe:problem:x", "title": "No", "status": status, "detail": "why"}
    return httpx.Response(status, json=document, headers=headers)


@pytest.mark.parametrize(
    "trouble", [httpx.ConnectError("refused"), httpx.ReadError("cut"), *map(_problem, (429, 502, 503, 504))]
)
def test_what_may_pass_is_tried_again(call: Call, slept: list[float], trouble: Any) -> None:
    script = Script(trouble, trouble, httpx.Response(200, json=BATCH))
    assert call(script, lambda lethe: lethe.batches.get("b")).model == "toy"
    assert len(script.seen) == 3
    assert 0.125 <= slept[0] <= 0.25
    assert 0.25 <= slept[1] <= 0.5


@pytest.mark.parametrize("trouble", [httpx.ReadError("cut"), _problem(502), _problem(504), _problem(500)])
def test_what_might_be_done_twice_is_not_sent_again(call: Call, trouble: Any) -> None:
    script = Script(trouble, httpx.Response(202, json=BATCH))
    with pytest.raises((client.Unreachable, client.ServerError)):
        call(script, lambda lethe: lethe.batches.retry("b"))
    assert len(script.seen) == 1


@pytest.mark.parametrize("trouble", [httpx.ConnectError("refused"), _problem(503), _problem(429)])
def test_what_was_never_begun_is_sent_again_whatever_it_is(call: Call, trouble: Any) -> None:
    script = Script(trouble, httpx.Response(202, json=BATCH))
    call(script, lambda lethe: lethe.batches.retry("b"))
    assert len(script.seen) == 2


def test_the_server_says_how_long_to_wait(call: Call, slept: list[float]) -> None:
    script = Script(_problem(503, **{"Retry-After": "7"}), httpx.Response(200, json=BATCH))
    call(script, lambda lethe: lethe.batches.get("b"))
    assert 7 <= slept[0] <= 7.25
    too_long = Script(_problem(503, **{"Retry-After": "3600"}))
    with pytest.raises(client.ServerError):
        call(too_long, lambda lethe: lethe.batches.get("b"))
    assert len(too_long.seen) == 1


def test_patience_ends(call: Call, slept: list[float]) -> None:
    script = Script(httpx.ConnectError("refused"))
    with pytest.raises(client.Unreachable, match="refused"):
        call(script, lambda lethe: lethe.batches.get("b"))
    assert len(script.seen) == Retry().times + 1
    assert len(slept) == Retry().times


def test_refusals_have_their_kind(call: Call) -> None:
    kinds = {
        401: client.Unauthorised,
        403: client.Forbidden,
        404: client.NotFound,
        409: client.Conflict,
        410: client.Gone,
        413: client.Invalid,
        422: client.Invalid,
        418: client.ApiError,
        500: client.ServerError,
    }
    for status, kind in kinds.items():
        with pytest.raises(kind) as caught:
            call(Script(_problem(status)), lambda lethe: lethe.batches.get("b"))
        assert isinstance(caught.value, client.ApiError)
        assert (caught.value.status, caught.value.title, caught.value.detail) == (status, "No", "why")
        assert type(caught.value) is kind


def test_a_refusal_by_someone_else_needs_no_document(call: Call) -> None:
    with pytest.raises(client.NotFound, match="HTTP 404"):
        call(Script(httpx.Response(404, text="<html>")), lambda lethe: lethe.batches.get("b"))


def test_an_answer_in_another_shape_is_said_so(call: Call) -> None:
    for answer in (httpx.Response(200, text="<html>"), httpx.Response(200, json={"id": "secret-thing"})):
        with pytest.raises(client.BadAnswer) as caught:
            call(Script(answer), lambda lethe: lethe.batches.get("b"))
        assert "secret-thing" not in str(caught.value)


def test_fields_of_a_newer_server_are_kept(call: Call) -> None:
    found = call(Script(httpx.Response(200, json=BATCH | {"colour": "red"})), lambda x: x.batches.get("b"))
    assert found.model_dump()["colour"] == "red"


def test_names_stay_in_their_place(call: Call) -> None:
    script = Script(_problem(404))
    with pytest.raises(client.NotFound):
        call(script, lambda lethe: lethe.models.show("a/../b?c"))
    assert script.seen[0].url.raw_path == b"/v1/models/a%2F..%2Fb%3Fc"
    assert script.seen[0].headers["authorization"] == "Bearer k"


def test_an_erasure_keeps_its_key_and_the_next_has_another(call: Call) -> None:
    script = Script(httpx.ReadError("cut"), httpx.ReadError("cut"), _problem(422))
    for _ in range(2):
        with pytest.raises(client.Invalid):
            call(script, lambda lethe: lethe.erasures.create(["p"]))
    keys = [request.headers["idempotency-key"] for request in script.seen]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    with pytest.raises(client.Invalid):
        call(script, lambda lethe: lethe.erasures.bulk(b"", idempotency_key="mine"))
    assert script.seen[-1].headers["idempotency-key"] == "mine"


def test_a_broken_stream_goes_on_after_the_last_event(call: Call) -> None:
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


def test_events_are_read_however_they_are_cut() -> None:
    text = b': hello\r\n\r\nid: 7\r\nevent: a\ndata: {"x":\ndata: 1}\n\nid: 8\ndata:{"y": 2}\n\nid: 9\n\n'
    for size in (1, 3, 1000):
        parser, events = Parser(), []
        for start in range(0, len(text), size):
            events += parser.feed(text[start : start + size])
        assert [(e.id, e.kind, json.dumps(e.data)) for e in events] == [
            ("7", "a", '{"x": 1}'),
            ("8", "message", '{"y": 2}'),
        ]
    with pytest.raises(client.BadAnswer):
        Parser().feed(b"data: {\n\n")


def test_waiting_ends_when_time_is_up(
    call: Call, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("client.resource.time.monotonic", lambda: float(next(clock)))
    script = Script(httpx.Response(200, json=BATCH | {"state": "running"}))
    with pytest.raises(client.TimedOut):
        call(script, lambda lethe: lethe.batches.wait("b", timeout=3))
    assert slept == sorted(slept)


def test_a_body_left_unread_is_closed_when_nobody_goes_on() -> None:
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
        events.close()  # type: ignore[attr-defined]
    assert body.closed
