"""A PostgreSQL server that accepts connections but does not answer: every request is answered in time."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from app.core.settings import Settings
from app.db import deadlines
from app.db.session import Database, allow_long_statements
from app.gateway.auth import caller
from app.gateway.main import create_app
from app.services import Services
from tests import eventually
from tests.chaos.proxy import Link, Proxies
from tests.integration.dashboard import Visitor

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
LONGEST_SECONDS = 5.0  # the driver waits for two seconds for a connection, however short the deadline is
PAGES = ("/", "/erasures", "/batches", "/models", "/certificates", "/audit-log", "/search?q=a")
WITHOUT_DATABASE = ("/healthz", "/metrics")


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "GRACE_SECONDS", 0.2)


@pytest.fixture
def link(settings: Settings) -> Iterator[Link]:
    """A proxy between the gateway and the database."""
    proxies, server = Proxies(), make_url(settings.database_url)
    folder = server.query.get("host")
    if isinstance(folder, str) and folder.startswith("/"):
        yield proxies.link_to_socket("database", str(Path(folder) / f".s.PGSQL.{server.port or 5432}"))
    else:
        assert server.host == "127.0.0.1"
        yield proxies.link_to_port("database", server.port or 5432)
    proxies.close()


def _through(link: Link, settings: Settings) -> Settings:
    address = make_url(settings.database_url).difference_update_query(["host"])
    address = address.set(host="127.0.0.1", port=link.port)
    url = address.render_as_string(hide_password=False)
    return settings.model_copy(update={"database_url": url, "database_seconds": 0.2})


def test_every_endpoint_answers_while_the_database_hangs(
    link: Link, settings: Settings, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """API keys stay in the cache, so that it is the endpoints themselves that have to give up."""
    monkeypatch.setattr(caller, "CACHE_SECONDS", 1000.0)
    app = create_app(_through(link, settings))
    with TestClient(app, raise_server_exceptions=False) as gateway:
        visitor = Visitor(gateway, services, "t")
        visitor.sign_in()
        assert gateway.get("/v1/models", headers=visitor.headers).status_code == 200
        link.stall()
        for method, path in _operations(app.openapi()):
            answer = _in_time(lambda m=method, p=path: gateway.request(m, p, headers=visitor.headers))
            expected = (200, 401) if path in WITHOUT_DATABASE else (503,)
            assert answer.status_code in expected, (method, path)
            assert "retry-after" in answer.headers or path in WITHOUT_DATABASE, (method, path)
        for page in PAGES:
            answer = _in_time(lambda p=page: visitor.get(p))
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5"), page
        link.heal()
        eventually(lambda: gateway.get("/v1/models", headers=visitor.headers).status_code == 200)


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every operation that needs no body, with values for its required parameters."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if operation.get("requestBody", {}).get("required") or path.startswith("/opendsr"):
                continue
            filled, query = path, []
            for parameter in operation.get("parameters", ()):
                value = _value(parameter["schema"])
                if parameter["in"] == "path":
                    filled = filled.replace(f"{{{parameter['name']}}}", value)
                elif parameter["in"] == "query" and parameter.get("required"):
                    query.append(f"{parameter['name']}={value}")
            yield method.upper(), filled + ("?" + "&".join(query) if query else "")


def _value(schema: dict[str, Any]) -> str:
    if "enum" in schema or "const" in schema:
        return str(schema.get("const", schema.get("enum", [""])[0]))
    return str(uuid4()) if schema.get("format") == "uuid" else "1"


def _in_time(request: Any) -> Any:
    started = time.monotonic()
    answer = request()
    assert time.monotonic() - started < LONGEST_SECONDS
    return answer


def test_a_statement_that_takes_too_long_is_ended_by_the_server(settings: Settings) -> None:
    """The connection remains usable, and nothing is refused afterwards."""
    database = Database(settings.database_url, answer_seconds=0.1)
    with pytest.raises(OperationalError, match="statement timeout"), database.reading() as session:
        session.execute(text("SELECT pg_sleep(60)"))
    database.check()
    database.close()


def test_work_of_many_statements_may_take_longer_than_one_answer(settings: Settings) -> None:
    database = Database(settings.database_url, answer_seconds=0.3)
    with database.reading() as session:
        for _ in range(4):
            session.execute(text("SELECT pg_sleep(0.2)"))
    database.close()


def test_a_transaction_that_changes_many_rows_may_take_longer(settings: Settings) -> None:
    database = Database(settings.database_url, answer_seconds=0.1)
    with database.writing() as session:
        allow_long_statements(session)
        session.execute(text("SELECT pg_sleep(0.5)"))
    with database.reading() as session:
        assert session.scalar(text("SHOW statement_timeout")) == "100ms"
    database.close()


def test_other_programs_wait_for_as_long_as_it_takes(settings: Settings) -> None:
    database = Database(settings.database_url)
    with database.reading() as session:
        assert session.scalar(text("SHOW statement_timeout")) == "0"
    database.close()
