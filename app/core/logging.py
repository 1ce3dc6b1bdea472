"""Structured logs. A line carries ids, counts and states; never a subject, a body or a header."""

import logging
import sys
import threading
import traceback
from types import TracebackType
from typing import Any

import structlog

from app.settings import Settings


def configure(settings: Settings) -> None:
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
        _place_only,
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
    """The innermost places of a traceback: code, not values, which may be what a caller sent."""
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(trace)][-8:]


def _place_only(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """An exception leaves its kind and its place in the log, never its message."""
    problem = event.pop("exc_info", None)
    if problem is True:
        problem = sys.exc_info()
    if isinstance(problem, tuple):
        problem = problem[1]
    if isinstance(problem, BaseException):
        event["kind"], event["where"] = type(problem).__name__, where(problem.__traceback__)
    return event


def _first_line(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Libraries append tracebacks and the state of objects to what they say, on lines of their own."""
    event["event"] = str(event["event"]).partition("\n")[0]
    return event


def _uncaught(kind: type[BaseException], _: BaseException | None, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt | SystemExit):
        return
    get("process").critical("ended by an error", kind=kind.__name__, where=where(trace))


def _route_standard_logging(
    level: int, shared: list[structlog.typing.Processor], render: structlog.typing.Processor
) -> None:
    """Libraries that log through the standard library come out in the same shape."""
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
    logging.getLogger("uvicorn.access").disabled = True  # the middleware writes one line per request


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(part=name)
    return logger
