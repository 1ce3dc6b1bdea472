"""Server-sent events (WHATWG HTML, 9.2), taken up again where they broke off."""

import json
from collections.abc import Callable

import httpx

from client.answers import Event
from client.errors import BadAnswer
from client.flow import Flow, Item, Items, Request, Sleep, read
from client.requests import Retry, answered, unreachable

LONGEST = 1 << 20


class Parser:
    """Bytes in, events out."""

    def __init__(self) -> None:
        self._rest = b""
        self._id, self._kind = "", "message"
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Event]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST:
            raise BadAnswer("an event without end")
        return [event for line in lines if (event := self._line(line.removesuffix(b"\r"))) is not None]

    def _line(self, line: bytes) -> Event | None:
        if not line:
            return self._event()
        name, _, value = line.decode(errors="replace").partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            self._id = value
        elif name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
        return None

    def _event(self) -> Event | None:
        kind, lines = self._kind, self._data
        self._kind, self._data = "message", []
        if not lines:
            return None
        try:
            data = json.loads("\n".join(lines))
        except ValueError:
            raise BadAnswer("an event that is not JSON") from None
        return Event(id=self._id, kind=kind, data=data)


def follow(url: str, *, ended: Callable[[], Flow[bool]], retry: Retry, after: str = "") -> Items[Event]:
    """Events until the server has no more; `ended` tells that from a stream that was cut."""
    broken = 0
    while True:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": after} if after else {})
        answer = yield from answered(Request("GET", url, headers=headers), retry, unread=True)
        parser, problem = Parser(), None
        try:
            while chunk := (yield from read(answer)):
                for event in parser.feed(chunk):
                    after, broken = event.id or after, 0
                    yield Item(event)
        except httpx.TransportError as cut:
            problem = cut
        if problem is None and (yield from ended()):
            return
        broken += 1
        if broken > retry.times:
            raise unreachable(problem or httpx.ReadError("the stream ends again and again"))
        yield Sleep(retry.pause(broken - 1))
