"""Server-sent events (WHATWG HTML, 9.2): parsing a stream, and resuming one that breaks off."""

import json
from collections.abc import Callable

import httpx

from lethe.client.errors import BadAnswer
from lethe.client.operations import Item, ItemStream, Procedure, Request, Sleep, read_chunk
from lethe.client.responses import Event
from lethe.client.transport import Retry, exchange, unreachable

LONGEST_LINE = 1 << 20


class EventParser:
    """Turns the bytes of an event stream into events, however the bytes are split into chunks."""

    def __init__(self) -> None:
        self._rest = b""
        self._id, self._kind = "", "message"
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that are complete after this chunk."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            raise BadAnswer("the event stream contains a line that is too long")
        return [event for line in lines if (event := self._read_line(line.removesuffix(b"\r"))) is not None]

    def _read_line(self, line: bytes) -> Event | None:
        if not line:
            return self._finish_event()
        name, _, value = line.decode(errors="replace").partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            self._id = value
        elif name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
        return None

    def _finish_event(self) -> Event | None:
        kind, lines = self._kind, self._data
        self._kind, self._data = "message", []
        if not lines:
            return None
        try:
            data = json.loads("\n".join(lines))
        except ValueError:
            raise BadAnswer("the event stream contains an event that is not JSON") from None
        return Event(id=self._id, kind=kind, data=data)


def follow_events(
    url: str, *, ended: Callable[[], Procedure[bool]], retry: Retry, after: str = ""
) -> ItemStream[Event]:
    """Yield the events that follow the event `after`, until the server has no more.

    A stream that breaks off is resumed after the last event. `ended` distinguishes the end of the events from
    a stream that was cut.
    """
    failures = 0
    while True:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": after} if after else {})
        reply = yield from exchange(Request("GET", url, headers=headers), retry, stream=True)
        parser, error = EventParser(), None
        try:
            while chunk := (yield from read_chunk(reply)):
                for event in parser.feed(chunk):
                    after, failures = event.id or after, 0
                    yield Item(event)
        except httpx.TransportError as cut:
            error = cut
        if error is None and (yield from ended()):
            return
        failures += 1
        if failures > retry.times:
            raise unreachable(error or httpx.ReadError("the event stream keeps breaking off"))
        yield Sleep(retry.pause(failures - 1))
