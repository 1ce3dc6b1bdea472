"""One trace covers the way from request to publication. Without a collector there is no tracing at all."""

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fastapi.testclient import TestClient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from sqlalchemy import select

from app.core import tracing
from app.core.settings import Settings, SettingsError
from app.db.tables import Erasure, Job
from app.gateway.main import create_app
from app.services import Services
from tests import eventually
from tests.integration.harness import System, create_model, environment

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
STAGES = {"resolve", "solve", "certify", "release", "publish", "purge"}
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
OTHER = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01"


class Collector:
    """Receives OTLP over HTTP on loopback, as a collector does."""

    def __init__(self) -> None:
        self.raw: list[bytes] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                collector.raw.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def spans(self) -> list[Span]:
        return [
            span
            for raw in list(self.raw)
            for resource in ExportTraceServiceRequest.FromString(raw).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.close()


@pytest.fixture
def settings(settings: Settings, collector: Collector) -> Settings:
    return settings.model_copy(update={"otlp_endpoint": collector.address})


@pytest.fixture
def system(services: Services, monkeypatch: pytest.MonkeyPatch) -> System:
    given = environment(services.settings) | {"LETHE_OTLP_ENDPOINT": services.settings.otlp_endpoint}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return System(services)


def test_one_trace_leads_from_the_request_to_the_publication(
    gateway: TestClient, admin: dict[str, str], system: System, collector: Collector
) -> None:
    create_model(gateway, admin)
    system.settle()
    for subject, parent in (("s1", f"00-{TRACE}-{CALLER}-01"), ("s2", OTHER)):
        headers = admin | {"traceparent": parent}
        answer = gateway.post("/v1/erasures", json={"subjects": [subject]}, headers=headers)
        assert answer.status_code == 202
    system.settle()
    assert gateway.get(answer.headers["Location"], headers=admin).json()["state"] == "completed"

    wanted = {"accept", "seal", "dispatch", "attempt"} | STAGES

    def spans_of_trace() -> list[Span]:
        spans = [span for span in collector.spans() if span.trace_id.hex() == TRACE]
        return spans if wanted <= {span.name for span in spans} else []

    mine = eventually(spans_of_trace)
    by_name = {span.name: span for span in mine}
    assert set(by_name) == wanted
    assert by_name["accept"].parent_span_id.hex() == CALLER
    assert by_name["seal"].parent_span_id == by_name["accept"].span_id
    assert {by_name[name].parent_span_id for name in ("dispatch", "attempt")} == {by_name["seal"].span_id}
    assert {by_name[name].parent_span_id for name in STAGES} == {by_name["attempt"].span_id}
    assert [link.trace_id.hex() for link in by_name["seal"].links] == [OTHER.split("-")[1]]
    order = [by_name[name] for name in ("resolve", "solve", "certify", "release", "publish", "purge")]
    for before, after in itertools.pairwise(order):
        assert before.end_time_unix_nano <= after.start_time_unix_nano

    keys = {pair.key for span in collector.spans() for pair in span.attributes}
    assert keys == {"lethe.job", "lethe.model", "lethe.kind", "lethe.attempt"}
    assert not any(secret in raw for raw in collector.raw for secret in (b"s1", b"s2", b"lethe_", b"toy"))


def test_what_an_exception_says_is_in_no_span(services: Services, collector: Collector) -> None:
    with pytest.raises(ValueError), services.tracer.span("accept"):
        raise ValueError("canary-person")
    services.tracer.close()
    (span,) = collector.spans()
    assert span.status.message == "ValueError"
    assert not span.events
    assert b"canary" not in b"".join(collector.raw)


def test_a_collector_that_is_away_holds_up_nothing(settings: Settings, admin: dict[str, str]) -> None:
    away = settings.model_copy(update={"otlp_endpoint": "http://127.0.0.1:1"})
    with TestClient(create_app(away)) as gateway:
        answer = gateway.post("/v1/erasures", json={"subjects": ["s1"]}, headers=admin)
        assert answer.status_code == 202


def test_a_malformed_context_is_not_taken_over(
    gateway: TestClient, admin: dict[str, str], services: Services
) -> None:
    headers = admin | {"traceparent": "00-canary@example.com"}
    assert gateway.post("/v1/erasures", json={"subjects": ["s1"]}, headers=headers).status_code == 202
    with services.database.reading() as session:
        stored = session.scalars(select(Erasure.traceparent)).one()
    assert stored is not None
    assert tracing.valid(stored) == stored


def test_without_a_collector_no_context_is_kept(settings: Settings, admin: dict[str, str]) -> None:
    silent = settings.model_copy(update={"otlp_endpoint": ""})
    system = System(Services(silent))
    with TestClient(create_app(silent)) as gateway:
        create_model(gateway, admin)
        headers = admin | {"traceparent": OTHER}
        assert gateway.post("/v1/erasures", json={"subjects": ["s1"]}, headers=headers).status_code == 202
    with system.services.database.reading() as session:
        assert session.scalars(select(Erasure.traceparent)).all() == [None]
        assert session.scalars(select(Job.traceparent)).all() == [None]
    system.services.close()


def test_without_a_collector_nothing_of_it_is_imported(database_url: str) -> None:
    # redis-py imports parts of OpenTelemetry for its own metrics if it is installed.
    code = (
        "import sys, app.gateway.main, app.dispatcher.loop, worker.attempt;"
        "from app.services import Services; from app.core.settings import Settings;"
        "Services(Settings()).tracer.stage('x');"
        "sys.exit(any(name in sys.modules for name in ('opentelemetry.sdk.trace', 'opentelemetry.exporter')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_missing_packages_are_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "find_spec", lambda name: None)
    packages = "pip install 'opentelemetry-exporter-otlp-proto-http>=1.30' 'opentelemetry-sdk>=1.30'"
    with pytest.raises(SettingsError, match=f"not installed: {packages}$"):
        tracing.check(settings)
