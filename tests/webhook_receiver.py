"""An HTTP server that records what it receives and answers as it is told."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    def verified(self, secret: str) -> dict[str, Any]:
        """Verify the message with an independent implementation, which also checks its time."""
        payload: dict[str, Any] = Webhook(secret).verify(self.body, self.headers)
        return payload


@dataclass
class Receiver:
    url: str = ""
    port: int = 0
    status: int = 204
    location: str | None = None
    retry_after: str | None = None
    before_answer: Callable[[], object] = lambda: None
    received: list[Received] = field(default_factory=list)

    def types(self, secret: str) -> list[str]:
        return sorted(message.verified(secret)["type"] for message in self.received)


@contextmanager
def receiver(trust: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    made = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            made.received.append(Received(self.path, headers, body))
            made.before_answer()
            self.send_response(made.status)
            if made.location:
                self.send_header("Location", made.location)
            if made.retry_after:
                self.send_header("Retry-After", made.retry_after)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if trust is not None:
        server.socket = trust.wrap_socket(server.socket, server_side=True)
    made.port = server.server_address[1]
    made.url = f"{'http' if trust is None else 'https'}://127.0.0.1:{made.port}/hook"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
