"""The request of a webhook goes to the checked address only, under the host name of its URL."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from app.core.webhooks.sender import Answer, Failure, Sender
from app.core.webhooks.targets import Resolve
from tests.webhook_receiver import receiver

NAME = "hooks.internal.example"  # no name server knows it


def sender(resolve: Resolve = lambda *_: ["127.0.0.1"], **options: object) -> Sender:
    return Sender(**{"intranet": True, "resolve": resolve} | options)  # type: ignore[arg-type]


def send(through: Sender, url: str) -> Answer:
    return through.send(url, body=b"{}", headers={"webhook-id": "msg_1"})


def test_the_name_is_resolved_once_and_its_address_dialled() -> None:
    """A name server that would give another answer the second time is not asked again."""
    answers = iter([["127.0.0.1"], ["169.254.169.254"]])
    with receiver() as there:
        assert send(sender(lambda *_: next(answers)), f"http://{NAME}:{there.port}/a?b=1") == Answer(204)
        (got,) = there.received
    assert got.path == "/a?b=1"
    assert got.headers["host"] == f"{NAME}:{there.port}"
    assert got.headers["content-type"] == "application/json"
    assert next(answers) == ["169.254.169.254"]


def test_a_name_that_leads_inside_is_not_dialled() -> None:
    with receiver() as there:
        refusing = sender(intranet=False)
        refused = Answer(failure=Failure.TARGET_REFUSED)
        assert send(refusing, f"https://{NAME}:{there.port}/") == refused
        assert send(refusing, there.url.replace("http:", "https:")) == refused
        assert send(sender(lambda *_: ["127.0.0.1", "169.254.169.254"]), there.url) == refused
        assert not there.received


def test_the_next_address_is_tried_when_the_first_cannot_be_connected_to() -> None:
    with receiver() as there:
        url = f"http://{NAME}:{there.port}/"
        assert send(sender(lambda *_: ["127.0.0.2", "127.0.0.1"]), url) == Answer(204)


def test_no_redirect_is_followed() -> None:
    with receiver() as there, receiver() as elsewhere:
        there.status, there.location = 307, elsewhere.url
        assert send(sender(), there.url) == Answer(307, Failure.BAD_STATUS)
        assert not elsewhere.received


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as there, receiver() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert send(sender(), there.url) == Answer(204)
        assert not proxy.received


@contextmanager
def raw_server(answer: bytes, forever: bytes = b"") -> Iterator[str]:
    """Serve `answer` once, then `forever` repeatedly until the client closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                try:
                    connection.sendall(answer)
                    while forever and not stop.wait(0.02):
                        connection.sendall(forever)
                except OSError:
                    pass

        stop, thread = threading.Event(), threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        stop.set()
        thread.join()


def test_a_dripping_answer_ends_at_the_deadline() -> None:
    with raw_server(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n") as url:
        assert send(sender(deadline=0.3), url) == Answer(failure=Failure.TIMED_OUT)


def test_an_endless_body_is_not_read() -> None:
    endless = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n"
    with raw_server(endless, b"x" * 1000) as url:
        assert send(sender(), url) == Answer(200)


def test_nonsense_and_nobody_are_failures() -> None:
    with raw_server(b"SSH-2.0-OpenSSH\r\n") as url:
        assert send(sender(), url) == Answer(failure=Failure.CONNECTION_FAILED)
    assert send(sender(), url) == Answer(failure=Failure.CONNECTION_FAILED)


@pytest.fixture
def authority(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """Return a self-signed certificate for NAME, and the TLS context of a server that uses it."""
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    moment = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(moment - timedelta(days=1))
        .not_valid_after(moment + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, both = tmp_path / "ca.pem", tmp_path / "both.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    both.write_bytes(pem.read_bytes() + secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return pem, context


def test_the_certificate_must_prove_the_name_not_the_address(authority: tuple[Path, ssl.SSLContext]) -> None:
    ca_file, context = authority
    with receiver(context) as there:
        known = sender(ca_file=ca_file)
        assert send(known, f"https://{NAME}:{there.port}/") == Answer(204)
        failed = Answer(failure=Failure.TLS_FAILED)
        assert send(known, f"https://other.example:{there.port}/") == failed
        assert send(known, there.url) == failed
        assert send(sender(), f"https://{NAME}:{there.port}/") == failed  # an unknown authority
        assert len(there.received) == 1
