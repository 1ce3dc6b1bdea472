"""How a gateway stops: it says that it is not ready, serves on until balancers noticed, then closes its door.

Whoever was let in is answered; streams are ended, and their listeners come back elsewhere.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from app import logs

log = logs.get("gateway")


class Drain:
    """How far this gateway is in stopping."""

    def __init__(self, linger: float = 0.0) -> None:
        self._linger = linger
        self._since: float | None = None

    def begin(self) -> None:
        self._since = self._since or time.monotonic()

    @property
    def begun(self) -> bool:
        return self._since is not None

    @property
    def closing(self) -> bool:
        """The time in which balancers were to notice is over."""
        return self._since is not None and time.monotonic() - self._since >= self._linger


class Server(uvicorn.Server):
    """Ends with exit code 0 when it was asked to end: uvicorn by itself would die of the signal it caught."""

    def __init__(self, config: uvicorn.Config, drain: Drain) -> None:
        super().__init__(config)
        self._drain = drain

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del sig, frame
        if self._drain.begun:  # asked twice: now
            self.should_exit = True
        self._drain.begin()

    async def on_tick(self, counter: int) -> bool:
        if self._drain.closing and not self.should_exit:
            log.info("closing")
            self.should_exit = True
        return await super().on_tick(counter)
