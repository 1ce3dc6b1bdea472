"""Traces from request to publication, when an OpenTelemetry collector is named in the settings.

Without that setting nothing of OpenTelemetry is imported and every method here does nothing. A context
travels in SQL, as a W3C `traceparent` on the erasure and on the job: gateway, dispatcher and each attempt are
processes of their own, and the queue carries ids only. Spans carry ids, counts and states, as logs do; what
an exception says is left out.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from app.settings import Settings, SettingsError
from app.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span

EXPORT_SECONDS = 3.0  # a collector that is away must not hold up an attempt that ends
MOST_LINKS = 100
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

Attribute = str | int | UUID | None


class Tracer(Protocol):
    enabled: bool

    def span(
        self, name: str, *, parent: str | None = None, links: Iterable[str] = (), **attributes: Attribute
    ) -> AbstractContextManager[str | None]:
        """A span around a block; it yields its own `traceparent`, for whoever comes after."""

    def stage(self, name: str) -> None:
        """The stage before ends, this one begins; the span around them ends the last."""

    def close(self) -> None:
        """Send what is left."""


class NoTracer:
    """What there is without a collector."""

    enabled = False

    def span(
        self, name: str, *, parent: str | None = None, links: Iterable[str] = (), **attributes: Attribute
    ) -> AbstractContextManager[str | None]:
        del name, parent, links, attributes
        return nullcontext()

    def stage(self, name: str) -> None:
        pass

    def close(self) -> None:
        pass


class OtlpTracer:
    """Sends spans to a collector, in the background; one that is away costs spans, never work."""

    enabled = True

    def __init__(self, endpoint: str) -> None:
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
        from opentelemetry.trace import Status, StatusCode

        with self._tracer.start_as_current_span(
            name,
            context=_context(parent),
            links=_links(links),
            attributes={
                f"lethe.{key}": _plain(value) for key, value in attributes.items() if value is not None
            },
            record_exception=False,  # its message may quote data
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
        self._end_stage()
        self._stage = self._tracer.start_span(name)

    def _end_stage(self) -> None:
        if self._stage is not None:
            self._stage.end()
            self._stage = None

    def close(self) -> None:
        self._end_stage()
        self._provider.shutdown()


def open_tracer(settings: Settings) -> Tracer:
    if not settings.otlp_endpoint:
        return NoTracer()
    check(settings)
    return OtlpTracer(settings.otlp_endpoint)


def check(settings: Settings) -> None:
    """Raise when traces are asked for that cannot be made; nothing is imported to find out."""
    if settings.otlp_endpoint and not _installed():
        raise SettingsError("LETHE_OTLP_ENDPOINT: traces need an extra: pip install 'lethe[tracing]'")


def _installed() -> bool:
    try:
        return all(find_spec(f"opentelemetry.{part}") for part in ("sdk", "exporter.otlp.proto.http"))
    except ModuleNotFoundError:
        return False


def valid(header: str | None) -> str | None:
    """A `traceparent` as W3C Trace Context (version 00) spells it, or nothing.

    >>> valid("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
    >>> valid("00-someone@example.com") is valid(None) is None
    True
    """
    return header if header is not None and _TRACEPARENT.fullmatch(header) else None


def traceparent(span: "Span") -> str:
    from opentelemetry.trace import format_span_id, format_trace_id

    own = span.get_span_context()
    return f"00-{format_trace_id(own.trace_id)}-{format_span_id(own.span_id)}-{int(own.trace_flags):02x}"


def _context(parent: str | None) -> "Context | None":
    """None: whatever span is current in this thread, or a trace of its own."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return None if parent is None else TraceContextTextMapPropagator().extract({"traceparent": parent})


def _links(parents: Iterable[str]) -> "list[Link]":
    from opentelemetry.trace import Link, get_current_span

    contexts = [_context(parent) for parent in list(parents)[:MOST_LINKS]]
    return [Link(get_current_span(context).get_span_context()) for context in contexts]


def _plain(value: Attribute) -> str | int:
    return value if isinstance(value, int) else str(value)
