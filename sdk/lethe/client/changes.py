"""Waiting for a resource to change: by its stream of changes, or by polling where there is no stream.

The stream sends the resource when it begins and after every change, so nothing is missed between reading the
state and subscribing. A stream that breaks off is resumed after the last event. If the service or a proxy
refuses or holds back streams, the resource is polled instead.
"""

import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from lethe.client.errors import BadAnswer, TimedOut
from lethe.client.event_stream import EventParser
from lethe.client.operations import Effect, Item, Procedure, Reply, Request, Sleep, read_chunk, send
from lethe.client.transport import Retry

T = TypeVar("T")
FIRST_POLL, LONGEST_POLL = 0.2, 2.0  # seconds between polls
MOST_FAILURES = 3  # streams in a row that break off without an event, before polling begins
LONGEST_SILENCE = 15.0  # seconds; the service sends something every 5
LONGEST_STREAM = 3600.0  # seconds that one stream may last before the next one takes over
MOST_STREAMS = 20  # of one client at a time; other waits poll, so that connections remain for requests


class StreamSlots:
    """Limits how many streams of one client are open at a time."""

    def __init__(self, maximum: int = MOST_STREAMS) -> None:
        self._free, self._lock = maximum, threading.Lock()

    def take(self) -> bool:
        """Take a slot. Return False if none is free."""
        with self._lock:
            if self._free == 0:
                return False
            self._free -= 1
            return True

    def give_back(self) -> None:
        """Give a slot back."""
        with self._lock:
            self._free += 1


class Deadline:
    """The time at which a wait ends. Without a timeout, it never does."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._end = None if timeout is None else time.monotonic() + timeout

    @property
    def has_passed(self) -> bool:
        """Whether the time is up."""
        return self._end is not None and time.monotonic() >= self._end

    def left(self, most: float) -> float:
        """Return the seconds that are left, but at most `most`."""
        return most if self._end is None else min(most, self._end - time.monotonic())


class Watch(Generic[T]):
    """One wait for a resource: every change is an item and is passed to `on_change`.

    `fetch` reads the resource for polling, and `url` is its stream of changes.
    """

    def __init__(
        self,
        url: str,
        kind: type[T],
        fetch: Callable[[], Procedure[T]],
        ended: Callable[[T], bool],
        *,
        timeout: float | None,
        on_change: Callable[[T], object] | None = None,
    ) -> None:
        self._url, self._fetch, self._ended = url, fetch, ended
        self._adapter: TypeAdapter[T] = TypeAdapter(kind)
        self._deadline, self._on_change = Deadline(timeout), on_change
        self._value: T | None = None
        self._last_id = ""

    def run(self, slots: StreamSlots, retry: Retry) -> Generator[Effect | Item[T], Any, T]:
        """Wait until the resource has ended and return it. Raises `TimedOut` after the timeout."""
        if not self._deadline.has_passed and slots.take():
            try:
                if (yield from self._read_streams(retry)):
                    return self._current()
            finally:
                slots.give_back()
        yield from self._poll()
        return self._current()

    def _current(self) -> T:
        assert self._value is not None
        return self._value

    def _accept(self, value: T) -> Generator[Effect | Item[T], Any, bool]:
        """Report a value if it is new. Return whether it has ended."""
        if value != self._value:
            self._value = value
            if self._on_change is not None:
                self._on_change(value)
            yield Item(value)
        return self._ended(value)

    def _read_streams(self, retry: Retry) -> Generator[Effect | Item[T], Any, bool]:
        """Read streams until the resource has ended. Return False if it has to be fetched instead.

        That is so as well when the time is up: the last look decides whether the wait has timed out.
        """
        failures = 0
        while failures < MOST_FAILURES and not self._deadline.has_passed:
            before = self._last_id
            try:
                reply = yield from send(self._stream_request(), stream=True)
                if not _is_stream(reply):
                    return False
                if (yield from self._read_stream(reply)):
                    return True
            except httpx.TransportError:
                pass
            except BadAnswer:
                return False
            failures = 0 if self._last_id != before else failures + 1
            yield Sleep(max(0.0, self._deadline.left(retry.pause(failures))))
        return False

    def _stream_request(self) -> Request:
        left = self._deadline.left(LONGEST_STREAM)
        headers = {"Accept": "text/event-stream"}
        if self._last_id:
            headers["Last-Event-ID"] = self._last_id
        silence = min(LONGEST_SILENCE, left + 0.25)  # the service closes the stream when the time is up
        params = {"timeout": max(left, 0.001)}
        return Request("GET", self._url, params, headers=headers, read_timeout=silence)

    def _read_stream(self, reply: Reply) -> Generator[Effect | Item[T], Any, bool]:
        """Read one stream to its end. Return whether the resource has ended."""
        parser = EventParser()
        while chunk := (yield from read_chunk(reply)):
            for event in parser.feed(chunk):
                try:
                    value = self._adapter.validate_python(event.data)
                except ValidationError:
                    raise BadAnswer("the stream of changes cannot be read") from None
                self._last_id = event.id
                if (yield from self._accept(value)):
                    return True
            if self._deadline.has_passed:
                break
        return False

    def _poll(self) -> Generator[Effect | Item[T], Any, None]:
        """Fetch the resource at growing intervals until it has ended."""
        pause = FIRST_POLL
        while not (yield from self._accept((yield from self._fetch()))):
            if self._deadline.has_passed:
                raise self._timed_out()
            yield Sleep(max(0.0, self._deadline.left(pause)))
            pause = min(LONGEST_POLL, pause * 1.3)

    def _timed_out(self) -> TimedOut:
        state = getattr(self._value, "state", None)
        return TimedOut(
            f"it did not finish within {self._deadline.timeout:g} s, and continues on the server"
            + (f" (last state: {state})" if state else "")
        )


def _is_stream(reply: Reply) -> bool:
    content = reply.response.headers.get("content-type", "")
    return reply.response.is_success and content.startswith("text/event-stream")
