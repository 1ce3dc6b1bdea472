"""Tracing from request to publication, if an OpenTelemetry collector is configured.

Without a collector, nothing of OpenTelemetry is imported and the tracer does nothing. The trace context is
stored in SQL, as a W3C `traceparent` on the erasure and on the job, because gateway, dispatcher and attempts
are separate processes and queue messages carry ids only. Spans hold ids, counts and states, like log lines.
Messages of exceptions are left out.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from app.core.settings import Settings, SettingsError
from app.core.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span

EXPORT_SECONDS = 3.0  # short, so that an unavailable collector does not delay the end of an attempt
MOST_LINKS = 100
# The extra `tracing` in pyproject.toml, with the module that each package provides.
REQUIREMENTS = {
    "opentelemetry-exporter-otlp-proto-http>=1.30": "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry-sdk>=1.30": "opentelemetry.sdk",
}
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

Attribute = str | int | UUID | None


class Tracer(Protocol):
    """Records spans."""

    enabled: bool

    def span(
        self, name: str, *, parent: str | None = None, links: Iterable[str] = (), **attributes: Attribute
    ) -> AbstractContextManager[str | None]:
        """Record a span around a block and yield its `traceparent`, to continue the trace elsewhere."""

    def stage(self, name: str) -> None:
        """Begin a stage within the current span and end the previous one. The span's end ends the last."""

    def close(self) -> None:
        """Send the remaining spans."""


class NoTracer:
    """A tracer that does nothing, for installations without a collector."""

    enabled = False

    def span(
        self, name: str, *, parent: str | None = None, links: Iterable[str] = (), **attributes: Attribute
    ) -> AbstractContextManager[str | None]:
        """Do nothing around the block."""
        del name, parent, links, attributes
        return nullcontext()

    def stage(self, name: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class OtlpTracer:
    """A tracer that sends spans to a collector in the background.

    If the collector is not available, spans are lost but no work is affected.
    """

    enabled = True

    def __init__(self, endpoint: str) -> None:
        """Send to the collector at this URL, by OTLP over HTTP."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_SECONDS)
        resource = Resource.create({"service.name": "lethe", "service.version": VERSION})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
        self._tracer = self._provider.get_tracer("lethe", VERSION)
        self._stage: Span | None = None

    @contextmanager
    def span(
        self, name: str, *, parent: str | None = None, links: Iterable[str] = (), **attributes: Attribute
    ) -> Iterator[str | None]:
        """Record a span around a block and yield its `traceparent`, to continue the trace elsewhere."""
        from opentelemetry.trace import Status, StatusCode

        with self._tracer.start_as_current_span(
            name,
            context=_context(parent),
            links=_links(links),
            attributes={
                f"lethe.{key}": _plain(value) for key, value in attributes.items() if value is not None
            },
            record_exception=False,  # its message might quote data
            set_status_on_exception=False,
        ) as span:
            try:
                yield traceparent(span)
            except BaseException as problem:
                span.set_status(Status(StatusCode.ERROR, type(problem).__name__))
                raise
            finally:
                self._end_stage()

    def stage(self, name: str) -> None:
        """Begin a stage within the current span and end the previous one. The span's end ends the last."""
        self._end_stage()
        self._stage = self._tracer.start_span(name)

    def _end_stage(self) -> None:
        if self._stage is not None:
            self._stage.end()
            self._stage = None

    def close(self) -> None:
        """Send the remaining spans."""
        self._end_stage()
        self._provider.shutdown()


def open_tracer(settings: Settings) -> Tracer:
    """Return the tracer that the settings ask for."""
    if not settings.otlp_endpoint:
        return NoTracer()
    check(settings)
    return OtlpTracer(settings.otlp_endpoint)


def check(settings: Settings) -> None:
    """Raise `SettingsError` if tracing is configured but not installed. Imports nothing to find out."""
    if settings.otlp_endpoint and (missing := [text for text in REQUIREMENTS if not _installed(text)]):
        raise SettingsError(
            "LETHE_OTLP_ENDPOINT: tracing needs OpenTelemetry packages that are not installed: "
            f"pip install {' '.join(repr(text) for text in missing)}"
        )


def _installed(requirement: str) -> bool:
    try:
        return find_spec(REQUIREMENTS[requirement]) is not None
    except ModuleNotFoundError:
        return False


def valid(header: str | None) -> str | None:
    """Return the header if it is a valid `traceparent` (W3C Trace Context, version 00), else None.

    >>> valid("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
    >>> valid("00-someone@example.com") is valid(None) is None
    True
    """
    return header if header is not None and _TRACEPARENT.fullmatch(header) else None


def traceparent(span: "Span") -> str:
    """Return the `traceparent` that continues the trace from this span."""
    from opentelemetry.trace import format_span_id, format_trace_id

    own = span.get_span_context()
    return f"00-{format_trace_id(own.trace_id)}-{format_span_id(own.span_id)}-{int(own.trace_flags):02x}"


def _context(parent: str | None) -> "Context | None":
    """Return the context of a parent. None continues this thread's current span or begins a new trace."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return None if parent is None else TraceContextTextMapPropagator().extract({"traceparent": parent})


def _links(parents: Iterable[str]) -> "list[Link]":
    from opentelemetry.trace import Link, get_current_span

    contexts = [_context(parent) for parent in list(parents)[:MOST_LINKS]]
    return [Link(get_current_span(context).get_span_context()) for context in contexts]


def _plain(value: Attribute) -> str | int:
    return value if isinstance(value, int) else str(value)
