"""Structured logging. A line holds ids, counts and states, and never an identifier, a body or a header."""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

import structlog

from app.core.settings import Settings

OUTAGE_SECONDS = 60.0  # how often a lasting outage is logged


def configure(settings: Settings) -> None:
    """Set up logging to standard error for this process, including uncaught errors and libraries."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    render = (
        structlog.processors.JSONRenderer()
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _without_exception_message,
    ]
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    _route_standard_logging(level, shared, render)
    sys.excepthook = _uncaught
    threading.excepthook = lambda lost: _uncaught(lost.exc_type, lost.exc_value, lost.exc_traceback)


def where(trace: TracebackType | None) -> list[str]:
    """Return the innermost lines of a traceback: places in the code, without values that a caller sent."""
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(trace)][-8:]


def _without_exception_message(
    _: Any, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Replace an exception by its type and its place in the code. Its message might quote data."""
    problem = event.pop("exc_info", None)
    if problem is True:
        problem = sys.exc_info()
    if isinstance(problem, tuple):
        problem = problem[1]
    if isinstance(problem, BaseException):
        event["kind"], event["where"] = type(problem).__name__, where(problem.__traceback__)
    return event


def _first_line(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Keep the first line of a library's message. Tracebacks and dumps of objects follow on further lines."""
    event["event"] = str(event["event"]).partition("\n")[0]
    return event


def _uncaught(kind: type[BaseException], _: BaseException | None, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt | SystemExit):
        return
    get_logger("process").critical("the process ended with an error", kind=kind.__name__, where=where(trace))


def _route_standard_logging(
    level: int, shared: list[structlog.typing.Processor], render: structlog.typing.Processor
) -> None:
    """Render the messages of libraries that use the standard logging module in the same way."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _first_line],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(level, logging.WARNING))
    logging.getLogger("uvicorn.access").disabled = True  # our middleware logs one line per request


class OutageLog:
    """Logs the outage of a part once, then a count every minute, and that the part is available again.

    Threads may share one. A failure long after the last one is a new outage, even if nobody said that the
    part was available in between.
    """

    def __init__(
        self,
        log: structlog.typing.FilteringBoundLogger,
        part: str,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """Log about this part of the service. `steady` returns monotonic seconds."""
        self._log, self._part, self._steady = log, part, steady
        self._lock = threading.Lock()
        self._failed_at: float | None = None
        self._told_at, self._untold = 0.0, 0

    def failed(self, problem: BaseException) -> None:
        """Note that the part did not answer."""
        with self._lock:
            moment, kind = self._steady(), type(problem).__name__
            if self._failed_at is None or moment - self._failed_at > 2 * OUTAGE_SECONDS:
                self._told_at, self._untold = moment, 0
                self._log.warning(f"{self._part} unavailable", problem=kind)
            else:
                self._untold += 1
                if moment - self._told_at >= OUTAGE_SECONDS:
                    self._log.warning(f"{self._part} still unavailable", problem=kind, times=self._untold)
                    self._told_at, self._untold = moment, 0
            self._failed_at = moment

    def over(self) -> None:
        """Note that the part answered."""
        if self._failed_at is None:  # almost always, so without the lock
            return
        with self._lock:
            self._failed_at = None
            self._log.info(f"{self._part} available again")


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return a logger whose lines name this part of the service."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(part=name)
    return logger
