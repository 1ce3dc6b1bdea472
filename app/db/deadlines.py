"""Deadlines for a PostgreSQL server that accepts connections but does not answer.

A thread that waits for such a server cannot be stopped from outside. So the connections of a gateway give up
by themselves: if the server sends no answer in time, the connection is closed and the caller gets an
`OperationalError`. The time counts from the last answer, so work of many statements may take as long as it
needs, while everything it takes to get a connection has one deadline together.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.abc import PQGen

GRACE_SECONDS = 1.0  # the server itself ends a statement before that, and the connection remains usable
REFUSED_SECONDS = (
    1.0  # after a deadline has passed, requests that queued behind the threads need not wait too
)
CONNECT_SECONDS = 2.0  # the shortest deadline of the driver for a new connection
POLL_SECONDS = 0.1  # how often the driver lets Python handle signals


class DatabaseHangs(psycopg.OperationalError):
    """The server did not answer in time. Whether it carried out the statement is unknown."""


class AnswerDeadline:
    """How long each thread waits for an answer of the server."""

    def __init__(self, seconds: float, steady: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._steady = seconds, steady
        self._thread = threading.local()
        self._refused_until = -math.inf

    def begin(self) -> None:
        """Start to wait in this thread. Raise `DatabaseHangs` if the server failed to answer a moment ago."""
        if self._steady() < self._refused_until:
            raise DatabaseHangs("the database did not answer a moment ago")
        self.extend(self.seconds)

    def extend(self, seconds: float) -> None:
        """Let this thread wait for this many seconds for each answer, until it begins something new."""
        self._thread.seconds = seconds
        self.restart()

    def restart(self) -> None:
        """Give this thread the full time again, because the server has answered."""
        seconds = getattr(self._thread, "seconds", self.seconds)
        self._thread.ends_at = self._steady() + seconds + GRACE_SECONDS

    def seconds_left(self) -> float:
        """Return how long this thread may still wait."""
        return max(0.0, getattr(self._thread, "ends_at", math.inf) - self._steady())

    def give_up(self) -> DatabaseHangs:
        """Return the error for a server that did not answer, and refuse what begins within a second."""
        self._refused_until = self._steady() + REFUSED_SECONDS
        return DatabaseHangs("the database does not answer")


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed if the server does not answer before the deadline."""

    deadline: AnswerDeadline

    @classmethod
    def open(cls, deadline: AnswerDeadline, *arguments: Any, **options: Any) -> "BoundedConnection":
        """Connect, within what is left of the deadline. The driver waits for two seconds at least."""
        left = deadline.seconds_left()
        if left <= 0:
            raise deadline.give_up()
        limit = max(CONNECT_SECONDS, min(left, float(options.get("connect_timeout", left))))
        try:
            connection = cls.connect(*arguments, **options | {"connect_timeout": math.ceil(limit)})
        except psycopg.errors.ConnectionTimeout:
            raise deadline.give_up() from None
        connection.deadline = deadline
        deadline.restart()
        return connection

    def wait(self, gen: "PQGen[Any]", interval: float = POLL_SECONDS, timeout: float | None = None) -> Any:
        """Wait for an answer. Between two units of work, a connection may be idle for any time."""
        deadline = self.deadline
        if deadline.seconds_left() <= 0:
            deadline.restart()
        left = deadline.seconds_left()
        try:
            answer = super().wait(gen, interval, left if timeout is None else min(timeout, left))
        except psycopg.OperationalError:
            if deadline.seconds_left() > 0:
                raise
            self.close()
            raise deadline.give_up() from None
        deadline.restart()
        return answer
