"""A real server with clients that send slowly, stop sending or disconnect in the middle of a file."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from fastapi.testclient import TestClient
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.testing import capture_logs

from app.core.settings import Settings
from app.gateway.auth.scopes import Scope as Permission
from app.gateway.main import build_server, create_app
from app.gateway.server import DrainState
from app.gateway.uploads import body_chunks
from app.services import Services
from tests import eventually
from tests.integration.harness import MANIFEST, key_for

SENDERS = 44  # more than the threads that all other endpoints share
SLOTS, UPLOADS = 40, 30  # one tenant gets three quarters of the slots


class Gateway:
    """Counts the requests for which the gateway waits for more of the body."""

    def __init__(self, settings: Settings) -> None:
        self.app: ASGIApp = create_app(settings)
        self.port = 0
        self.waiting_for_body = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def counted() -> Message:
            nonlocal started
            self.waiting_for_body += started
            try:
                return await receive()
            finally:
                self.waiting_for_body -= started
                started = True

        await self.app(scope, counted if scope["type"] == "http" else receive, send)


@contextmanager
def served(settings: Settings) -> Iterator[Gateway]:
    gateway = Gateway(settings)
    server = build_server(gateway, settings.model_copy(update={"port": 0}), DrainState())
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    eventually(lambda: server.started, every=0.01)
    try:
        gateway.port = server.servers[0].sockets[0].getsockname()[1]
        yield gateway
    finally:
        server.should_exit = True
        thread.join()


def begin(port: int, admin: dict[str, str], path: str, method: str = "PUT") -> socket.socket:
    """Announce a megabyte and send ten bytes."""
    sender = socket.create_connection(("127.0.0.1", port))
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nContent-Type: text/csv\r\n"
    sender.sendall((head + f"Authorization: {admin['Authorization']}\r\n\r\n").encode() + b"0123456789")
    return sender


@pytest.fixture
def model(gateway: TestClient, admin: dict[str, str]) -> None:
    """Create a model, before a server with short time limits is started."""
    body = {"name": "toy", "manifest": MANIFEST}
    assert gateway.post("/v1/models", json=body, headers=admin).status_code == 201


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_slow_senders_keep_nobody_else_waiting(
    settings: Settings, admin: dict[str, str], model: None
) -> None:
    patient = settings.model_copy(update={"max_uploads": SLOTS, "upload_idle_seconds": 3600.0})
    with served(patient) as gateway:
        port = gateway.port
        senders = [begin(port, admin, f"/v1/models/toy/dataset/p{n}") for n in range(SENDERS // 2)]
        senders += [begin(port, admin, "/v1/erasures/bulk", "POST") for _ in range(SENDERS // 2)]
        eventually(lambda: gateway.waiting_for_body >= UPLOADS)
        for path in ("/healthz", "/v1/models", "/v1/erasures"):
            assert httpx.get(f"http://127.0.0.1:{port}{path}", headers=admin, timeout=120).status_code == 200
        for sender in senders:
            sender.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_tenant_whose_uploads_all_hang_leaves_room_for_another(
    settings: Settings, services: Services, admin: dict[str, str], model: None
) -> None:
    other = key_for(services, "another tenant", Permission.ADMIN)
    patient = settings.model_copy(update={"max_uploads": 4, "upload_idle_seconds": 3600.0})
    with served(patient) as gateway:
        senders = [begin(gateway.port, admin, f"/v1/models/toy/dataset/p{n}") for n in range(6)]
        eventually(lambda: gateway.waiting_for_body >= 3)
        answer = httpx.post(
            f"http://127.0.0.1:{gateway.port}/v1/erasures/bulk",
            content=b"subject_id\np1\n",
            headers=other | {"Content-Type": "text/csv"},
            timeout=120,
        )
        assert answer.status_code == 202
        for sender in senders:
            sender.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_sender_who_falls_silent_is_sent_away(
    settings: Settings, services: Services, admin: dict[str, str], model: None
) -> None:
    hasty = settings.model_copy(update={"upload_idle_seconds": 0.3})
    with served(hasty) as gateway, begin(gateway.port, admin, "/v1/models/toy/dataset/p0") as sender:
        sender.settimeout(120)
        answer = b"".join(iter(lambda: sender.recv(4096), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408")
    assert json.loads(body)["type"] == "urn:lethe:problem:request-timeout"
    assert services.storage.list("datasets") == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_beyond_the_files_received_at_once_the_answer_is_to_come_back(
    settings: Settings, admin: dict[str, str], model: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sender keeps its place for an hour. The second does not wait for it."""
    monkeypatch.setattr("app.gateway.uploads.body_chunks", lambda request, _: body_chunks(request, 3600.0))
    few = settings.model_copy(update={"max_uploads": 1, "upload_idle_seconds": 0.1})
    with served(few) as gateway, begin(gateway.port, admin, "/v1/models/toy/dataset/p0"):
        eventually(lambda: gateway.waiting_for_body)
        url = f"http://127.0.0.1:{gateway.port}/v1/models/toy/dataset/p1"
        answer = httpx.put(url, content=b"x", headers=admin, timeout=120)
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_sender_who_goes_away_is_no_error(
    settings: Settings, admin: dict[str, str], model: None, caplog: pytest.LogCaptureFixture
) -> None:
    with capture_logs() as lines, served(settings) as gateway:
        begin(gateway.port, admin, "/v1/models/toy/dataset/p0").close()
        eventually(lambda: 499 in {line.get("status") for line in lines})
    assert {line["log_level"] for line in lines} <= {"info"}
    assert "Exception" not in caplog.text


def answer_of(sender: socket.socket) -> tuple[bytes, str]:
    """Return the status line and the problem type of the answer on a connection that is then closed."""
    sender.settimeout(120)
    head, _, body = b"".join(iter(lambda: sender.recv(4096), b"")).partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], json.loads(body)["type"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_endless_header_is_refused_and_half_a_request_is_given_up(settings: Settings) -> None:
    hasty = settings.model_copy(update={"body_seconds": 0.2})
    start = b"GET /healthz HTTP/1.1\r\nHost: "
    with served(hasty) as gateway:
        address = ("127.0.0.1", gateway.port)
        with socket.create_connection(address) as endless:
            # Not one byte more: unread bytes would make the system drop the answer.
            endless.sendall(start + b"a" * (hasty.max_header_bytes - len(start)))
            refused = (b"HTTP/1.1 431 Request Header Fields Too Large", "urn:lethe:problem:header-too-large")
            assert answer_of(endless) == refused
        with socket.create_connection(address) as pending:
            head = b"POST /v1/erasures HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 9"
            pending.sendall(head + b"\r\n\r\n{")
            timeout = (b"HTTP/1.1 408 Request Timeout", "urn:lethe:problem:request-timeout")
            assert answer_of(pending) == timeout
