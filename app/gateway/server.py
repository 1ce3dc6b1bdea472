"""Graceful shutdown of a gateway.

On SIGTERM the gateway first reports that it is not ready and keeps serving, so that load balancers have
time to notice. Then it stops accepting connections. Requests that were accepted are answered. Event streams
end, and their clients reconnect to another gateway.
"""

import asyncio
import gc
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from app.core import logging
from app.gateway.server_protocol import RequestLimits, close_late

log = logging.get_logger("gateway")


SWITCH_SECONDS = 0.0005
NEW_OBJECTS = 5_000
TICKS_BETWEEN_CHECKS = 5  # of a tenth of a second each


def tune_interpreter() -> None:
    """Shorten the pauses that Python itself makes. Call this once the application is built.

    A thread that waits for the interpreter has it after `SWITCH_SECONDS`, a tenth of the default. The thread
    that records erasures needs the interpreter several times for each group, between the answers of the
    database. Under load, it would wait longer for its turns than for the database.

    The garbage collector passes over everything that exists already. It never becomes garbage, and looking
    through it stops every request for a tenth of a second. The collector also waits for more new objects
    than by default, because each request makes hundreds.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])


class DrainState:
    """How far this gateway is in its shutdown.

    `linger` is how many seconds it keeps serving after the signal.
    """

    def __init__(self, linger: float = 0.0) -> None:
        self._linger = linger
        self._since: float | None = None

    def start(self) -> None:
        """Start the shutdown. Later calls change nothing."""
        self._since = self._since or time.monotonic()

    @property
    def started(self) -> bool:
        """Whether the shutdown was requested."""
        return self._since is not None

    @property
    def closing(self) -> bool:
        """Whether the time that load balancers have to notice is over."""
        return self._since is not None and time.monotonic() - self._since >= self._linger


class Server(uvicorn.Server):
    """A uvicorn server that exits with code 0 after SIGTERM and gives up requests that do not arrive.

    Plain uvicorn re-raises the signal and dies of it, and never stops waiting for a request.
    """

    def __init__(self, config: uvicorn.Config, drain: DrainState, limits: RequestLimits) -> None:
        super().__init__(config)
        self._drain, self._limits = drain, limits

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install the signal handlers for the lifetime of the server."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start draining at the first signal. Exit without delay at the second."""
        del sig, frame
        if self._drain.started:
            self.should_exit = True
        self._drain.start()

    async def on_tick(self, counter: int) -> bool:
        """Close late connections, and the server once the drain time is over."""
        if counter % TICKS_BETWEEN_CHECKS == 0:
            connections = list(self.server_state.connections)
            close_late(connections, self._limits, asyncio.get_running_loop().time())
        if self._drain.closing and not self.should_exit:
            log.info("closing")
            self.should_exit = True
        return await super().on_tick(counter)
