"""Limits on requests that have not arrived yet, on connections without a network."""

import asyncio
import json
from typing import Any

import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.server import ServerState

from app.gateway.server_protocol import MAX_HEADER_FIELDS, LimitedHttp, RequestLimits, close_late

LIMITS = RequestLimits(header_bytes=1000, header_seconds=10.0, body_seconds=50.0, incomplete_requests=3)
JSON_HEADER = b"POST /v1/erasures HTTP/1.1\r\nContent-Length: 9\r\n\r\n"
FILE_HEADER = b"PUT /v1/models/m/weights HTTP/1.1\r\nContent-Length: 9\r\n\r\n"


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose clock the test moves."""

    moment = 100.0

    def time(self) -> float:
        return self.moment


class Wire(asyncio.Transport):
    """Remembers what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.closed = b"", False

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    @property
    def status(self) -> int:
        """The status of the only answer, which must be a problem."""
        head, _, body = self.written.partition(b"\r\n\r\n")
        assert b"content-type: application/problem+json" in head
        assert json.loads(body)["status"] == int(head.split()[1])
        return int(head.split()[1])


class Server:
    """Connections to an application that reads bodies and counts requests."""

    def __init__(self) -> None:
        self.loop, self.requests, self.bodies = Clock(), 0, 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.config = uvicorn.Config(self.app, log_config=None, lifespan="off", interface="asgi3")
        self.config.load()
        self.connections: list[LimitedHttp] = []

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1
        more = True
        while more:
            message: Message = await receive()
            if message["type"] == "http.disconnect":
                return
            more = message["more_body"]
        self.bodies += 1
        await self.gate.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    def connect(self, *data: bytes) -> tuple[LimitedHttp, Wire]:
        wire = Wire()
        made = LimitedHttp(self.config, ServerState(), {}, _loop=self.loop, limits=LIMITS)
        made.connection_made(wire)
        self.connections.append(made)
        for piece in data:
            made.data_received(piece)
        self.run()
        return made, wire

    def run(self) -> None:
        """Let the application continue until it waits."""
        for _ in range(10):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def after(self, seconds: float) -> None:
        self.loop.moment += seconds
        close_late(self.connections, LIMITS, self.loop.moment)


@pytest.fixture
def server() -> Any:
    made = Server()
    yield made
    for connection in made.connections:
        connection.connection_lost(None)
    made.gate.set()
    made.run()
    made.loop.close()


@pytest.mark.parametrize(
    "start", [b"GET /", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nX: ", b"\r\n" * 9, b""]
)
def test_an_endless_header_is_refused_at_its_limit(server: Server, start: bytes) -> None:
    filler = b"\r\n" if start in (b"\r\n" * 9, b"") else b"a"
    _, wire = server.connect(start, *[filler * 100] * 20)
    assert (wire.status, wire.closed, server.requests) == (431, True, 0)


def test_a_long_header_in_one_piece_is_refused(server: Server) -> None:
    _, wire = server.connect(b"GET / HTTP/1.1\r\nX: " + b"a" * 2000 + b"\r\n\r\n")
    assert (wire.status, server.requests) == (431, 0)


def test_a_header_with_too_many_fields_is_refused(server: Server) -> None:
    fields = b"".join(b"a:b\r\n" for _ in range(MAX_HEADER_FIELDS))
    _, wire = server.connect(b"GET / HTTP/1.1\r\n" + fields + b"\r\n")
    assert (server.requests, wire.closed) == (1, False)
    _, wire = server.connect(b"GET / HTTP/1.1\r\n" + fields + b"a:b\r\n\r\n")
    assert (wire.status, wire.closed, server.requests) == (431, True, 1)


def test_each_request_of_a_connection_has_the_whole_limit(server: Server) -> None:
    request = b"GET / HTTP/1.1\r\nX: " + b"a" * 900 + b"\r\n\r\n"
    connection, wire = server.connect(request)
    for _ in range(4):
        connection.data_received(request)
        server.run()
    assert (server.requests, wire.closed) == (5, False)
    long_body = b"POST / HTTP/1.1\r\nContent-Length: 5000\r\n\r\n" + b"a" * 5000
    connection.data_received(long_body)
    server.run()
    assert (server.bodies, wire.closed) == (6, False)


def test_what_is_not_http_is_refused(server: Server) -> None:
    _, wire = server.connect(b"nonsense\r\n\r\n")
    assert (wire.status, wire.closed) == (400, True)


def test_half_a_header_is_given_up(server: Server) -> None:
    half, silent, fresh = (server.connect(data)[1] for data in (b"GET /", b"", b"GET / HTTP/1.1\r\n\r\n"))
    fresh_again = server.connections[2]
    wires = (half, silent, fresh)
    server.after(9.0)
    assert [wire.closed for wire in wires] == [False, False, False]
    fresh_again.data_received(b"GET /")
    server.after(2.0)
    assert [wire.closed for wire in wires] == [True, True, False], "the last clock started again"
    assert (half.status, silent.written) == (408, b"")
    server.after(9.0)
    assert [wire.closed for wire in wires] == [True, True, True]
    assert fresh.written.count(b"HTTP/1.1 ") == 2


def test_a_body_that_does_not_arrive_is_given_up_unless_it_is_a_file(server: Server) -> None:
    (_, pending), (_, file) = server.connect(JSON_HEADER + b"{"), server.connect(FILE_HEADER + b"x")
    server.after(49.0)
    assert not pending.closed
    server.after(2.0)
    assert (pending.status, pending.closed) == (408, True)
    assert not file.closed


def test_if_too_many_requests_are_incomplete_the_oldest_are_given_up(server: Server) -> None:
    wires = []
    for data in (b"GET /", FILE_HEADER, b"GET /", JSON_HEADER, b"", b"GET / HTTP/1.1\r\n\r\n"):
        wires.append(server.connect(data)[1])
        server.after(1.0)
    assert [wire.closed for wire in wires] == [True, False, False, False, False, False]


def test_an_answer_that_is_still_to_come_keeps_its_connection(server: Server) -> None:
    """The client may send its next request early. Refusing that one would cut off the answer."""
    server.gate.clear()
    _, wire = server.connect(b"GET / HTTP/1.1\r\n\r\nGET /")
    server.after(1000.0)
    assert not wire.closed
    server.gate.set()
    server.run()
    assert wire.written.startswith(b"HTTP/1.1 204")
