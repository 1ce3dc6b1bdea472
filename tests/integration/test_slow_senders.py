"""A real server and clients that send slowly, fall silent or go away in the middle of a file."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from structlog.testing import capture_logs

from app.bootstrap import Services
from app.main import create_app
from app.settings import Settings
from tests.integration.harness import MANIFEST

SENDERS = 44  # more than the threads that all other endpoints share


@contextmanager
def served(settings: Settings) -> Iterator[int]:
    config = uvicorn.Config(create_app(settings), port=0, log_config=None, lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def begin(port: int, admin: dict[str, str], path: str, method: str = "PUT") -> socket.socket:
    """Announces a megabyte, sends ten bytes."""
    sender = socket.create_connection(("127.0.0.1", port))
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nContent-Type: text/csv\r\n"
    sender.sendall((head + f"Authorization: {admin['Authorization']}\r\n\r\n").encode() + b"0123456789")
    return sender


def create_model(port: int, admin: dict[str, str]) -> None:
    body = {"name": "toy", "manifest": MANIFEST}
    assert httpx.post(f"http://127.0.0.1:{port}/v1/models", json=body, headers=admin).status_code == 201


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_slow_senders_keep_nobody_else_waiting(settings: Settings, admin: dict[str, str]) -> None:
    with served(settings.model_copy(update={"max_uploads": 30})) as port:
        create_model(port, admin)
        senders = [begin(port, admin, f"/v1/models/toy/dataset/p{n}") for n in range(SENDERS // 2)]
        senders += [begin(port, admin, "/v1/erasures/bulk", "POST") for _ in range(SENDERS // 2)]
        time.sleep(1)
        for path in ("/healthz", "/v1/models", "/v1/erasures"):
            assert httpx.get(f"http://127.0.0.1:{port}{path}", headers=admin, timeout=5).status_code == 200
        for sender in senders:
            sender.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_sender_who_falls_silent_is_sent_away(
    settings: Settings, services: Services, admin: dict[str, str]
) -> None:
    with served(settings.model_copy(update={"upload_idle_seconds": 0.3})) as port:
        create_model(port, admin)
        with begin(port, admin, "/v1/models/toy/dataset/p0") as sender:
            sender.settimeout(10)
            answer = b"".join(iter(lambda: sender.recv(4096), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408")
    assert json.loads(body)["type"] == "urn:lethe:problem:request-timeout"
    assert services.storage.list("datasets") == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_beyond_the_files_received_at_once_the_answer_is_to_come_back(
    settings: Settings, admin: dict[str, str]
) -> None:
    few = settings.model_copy(update={"max_uploads": 1, "upload_idle_seconds": 0.5})
    with served(few) as port:
        create_model(port, admin)
        stop = threading.Event()
        with begin(port, admin, "/v1/models/toy/dataset/p0") as first:

            def drip() -> None:
                while not stop.wait(0.1):
                    first.sendall(b"x")

            dripping = threading.Thread(target=drip)
            dripping.start()
            url = f"http://127.0.0.1:{port}/v1/models/toy/dataset/p1"
            answer = httpx.put(url, content=b"x", headers=admin, timeout=5)
            stop.set()
            dripping.join()
        assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_sender_who_goes_away_is_no_error(
    settings: Settings, admin: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with capture_logs() as lines, served(settings) as port:
        create_model(port, admin)
        begin(port, admin, "/v1/models/toy/dataset/p0").close()
        time.sleep(0.5)
    assert 499 in {line.get("status") for line in lines}
    assert {line["log_level"] for line in lines} <= {"info"}
    assert "Exception" not in caplog.text
