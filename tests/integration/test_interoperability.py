"""Requests by OpenDSR and from Fides become erasures, and their callbacks report how they go."""

import base64
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import NameOID
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.core.clock import now
from app.core.opendsr_key import load_opendsr_key
from app.core.settings import Settings, SettingsError
from app.core.webhooks import targets
from app.core.webhooks.sender import Answer, Sender
from app.db.callbacks import RequestCallback
from app.db.states import ModelState
from app.db.tables import Erasure
from app.dispatcher.callbacks import LOOK_AGAIN, PER_TENANT, SENDERS, CallbackCourier
from app.gateway.auth.scopes import Scope
from app.gateway.main import create_app
from app.services import Services
from tests import eventually
from tests.integration.harness import MANIFEST, key_for, set_state
from tests.webhook_receiver import Receiver, receiver

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
HOST = "privacy.example.org"
IDENTITY = {"identity_type": "email", "identity_value": "ada@example.com", "identity_format": "raw"}
Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def write_key(folder: Path, key: Key, host: str = HOST) -> dict[str, Path]:
    """Write a key and a certificate for it, and return the settings that name them."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(moment)
        .not_valid_after(moment + timedelta(days=3650))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = {"opendsr_key_file": folder / "k.pem", "opendsr_certificate_file": folder / "c.pem"}
    files["opendsr_key_file"].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    files["opendsr_certificate_file"].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return files


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    files = write_key(tmp_path, rsa.generate_private_key(65537, 2048))
    return settings.model_copy(update={"public_url": f"https://{HOST}", "webhook_intranet": True, **files})


@pytest.fixture
def there() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


class Reporter:
    """A courier of callbacks whose clock can be moved."""

    def __init__(self, services: Services) -> None:
        self.moment = now()
        sender = Sender(intranet=True, resolve=targets.system_resolver)
        self.courier = CallbackCourier(services, sender=sender, clock=lambda: self.moment, chance=lambda: 0.5)

    def report(self, after: timedelta = LOOK_AGAIN) -> int:
        self.moment += after
        started = self.courier.round()
        self.courier.settle()
        return started


@pytest.fixture
def reporter(services: Services) -> Iterator[Reporter]:
    made = Reporter(services)
    yield made
    made.courier.close()


def dsr(**change: Any) -> dict[str, Any]:
    return {
        "regulation": "gdpr",
        "subject_request_id": str(uuid4()),
        "subject_request_type": "erasure",
        "submitted_time": (now() - timedelta(hours=1)).isoformat(),
        "subject_identities": [IDENTITY],
    } | change


def check_signature(gateway: TestClient, headers: Any, body: bytes) -> None:
    """Verify a signature as a controller does: with the certificate that discovery names."""
    where = gateway.get("/opendsr/v3/discovery").json()["processor_certificate"]
    assert where == f"https://{HOST}/opendsr/v3/certificate.pem"
    certificate = x509.load_pem_x509_certificate(gateway.get("/opendsr/v3/certificate.pem").content)
    assert headers["x-opendsr-processor-domain"] == HOST
    key = certificate.public_key()
    assert isinstance(key, rsa.RSAPublicKey)
    key.verify(base64.b64decode(headers["x-opendsr-signature"]), body, padding.PKCS1v15(), hashes.SHA256())


# OpenDSR


def test_a_request_by_opendsr_becomes_an_erasure_with_a_signed_receipt(
    gateway: TestClient, services: Services, admin: dict[str, str]
) -> None:
    gateway.post("/v1/models", json={"name": "toy", "manifest": MANIFEST}, headers=admin)
    set_state(services, ModelState.READY)
    body = dsr()
    raw = json.dumps(body)
    answer = gateway.post("/opendsr/v3/requests", content=raw, headers=admin)
    assert answer.status_code == 201, answer.text
    check_signature(gateway, answer.headers, answer.content)
    receipt = answer.json()
    assert base64.b64decode(receipt["encoded_request"]).decode() == raw
    assert receipt["subject_request_id"] == body["subject_request_id"]
    again = gateway.post("/opendsr/v3/requests", content=raw, headers=admin)
    assert (again.status_code, again.content) == (201, answer.content)

    where = f"/opendsr/v3/requests/{body['subject_request_id']}"
    status = gateway.get(where, headers=admin)
    check_signature(gateway, status.headers, status.content)
    assert status.json()["request_status"] == "pending"
    (erasure,) = gateway.get("/v1/erasures", headers=admin).json()["items"]
    assert (erasure["jurisdiction"], erasure["subjects"]) == ("GDPR", 1)
    cancelled = gateway.delete(where, headers=admin)
    assert cancelled.status_code == 202
    check_signature(gateway, cancelled.headers, cancelled.content)
    assert gateway.get(where, headers=admin).json()["request_status"] == "cancelled"
    assert gateway.delete(where, headers=admin).status_code == 400
    with services.database.reading() as session:
        assert "ada@example.com" not in str(session.scalars(select(Erasure.reference)).all())


@ON_SQLITE
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"subject_request_type": "access"}, "only erasure is supported"),
        ({"subject_request_type": "portability"}, "only erasure is supported"),
        ({"subject_request_id": "7"}, "subject_request_id"),
        ({"regulation": "hipaa"}, "regulation"),
        ({"subject_identities": []}, "subject_identities"),
        ({"subject_identities": [IDENTITY | {"identity_format": "md5"}]}, "identities.0.identity_format"),
        ({"subject_identities": [IDENTITY | {"identity_type": "ssn"}]}, "identities.0.identity_type"),
        ({"status_callback_urls": ["https://169.254.169.254/"]}, "may not be sent"),
        ({"status_callback_urls": ["ftp://x.example/"]}, "https"),
        ({"submitted_time": "2001-01-01T00:00:00Z"}, "received_at"),
    ],
    ids=str,
)
def test_what_opendsr_cannot_ask_for_is_refused_in_its_own_form(
    gateway: TestClient, admin: dict[str, str], change: dict[str, Any], message: str
) -> None:
    answer = gateway.post("/opendsr/v3/requests", json=dsr(**change), headers=admin)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == 400
    assert message in answer.json()["error"]["message"]
    assert gateway.get("/v1/erasures", headers=admin).json()["items"] == []


@ON_SQLITE
def test_scopes_and_tenants_keep_opendsr_and_fides_apart(
    gateway: TestClient, services: Services, admin: dict[str, str]
) -> None:
    gateway.post("/v1/models", json={"name": "toy", "manifest": MANIFEST}, headers=admin)
    set_state(services, ModelState.READY)
    body = dsr()
    assert gateway.post("/opendsr/v3/requests", json=body, headers=admin).status_code == 201
    where = f"/opendsr/v3/requests/{body['subject_request_id']}"
    fides = {"privacy_request_id": "pri_1", "identity": {"email": "a@b.c"}}
    calls = [
        ("POST", "/opendsr/v3/requests", dsr(), Scope.ERASURES_WRITE),
        ("GET", where, None, Scope.ERASURES_READ),
        ("DELETE", where, None, Scope.ERASURES_WRITE),
        ("POST", "/v1/integrations/fides", fides, Scope.ERASURES_WRITE),
    ]
    for method, path, sent, needed in calls:
        assert gateway.request(method, path, json=sent).status_code == 401
        for scope in set(Scope) - {needed, Scope.ADMIN}:
            key = key_for(services, "t", scope)
            assert gateway.request(method, path, json=sent, headers=key).status_code == 403, (path, scope)
    other = key_for(services, "other", Scope.ADMIN)
    assert gateway.get(where, headers=other).status_code == 404
    assert gateway.delete(where, headers=other).status_code == 404
    same_id = gateway.post("/opendsr/v3/requests", json=body, headers=other)
    assert same_id.status_code == 201, "ids of controllers do not collide"
    assert gateway.get(where, headers=admin).json()["request_status"] == "pending"


def test_an_opendsr_controller_hears_every_change_of_status(
    gateway: TestClient, services: Services, admin: dict[str, str], there: Receiver, reporter: Reporter
) -> None:
    gateway.post("/v1/models", json={"name": "toy", "manifest": MANIFEST}, headers=admin)
    set_state(services, ModelState.READY)
    body = dsr(status_callback_urls=[there.url])
    assert gateway.post("/opendsr/v3/requests", json=body, headers=admin).status_code == 201
    assert reporter.report() == 1
    assert reporter.report() == 0, "nothing has changed"
    gateway.delete(f"/opendsr/v3/requests/{body['subject_request_id']}", headers=admin)
    there.status = 503
    assert reporter.report() == 1
    there.status = 200
    assert reporter.report(timedelta(seconds=6)) == 1
    assert reporter.report(timedelta(days=1)) == 0, "it has ended"
    statuses = [json.loads(got.body)["request_status"] for got in there.received]
    assert statuses == ["pending", "cancelled", "cancelled"]
    for got in there.received:
        check_signature(gateway, got.headers, got.body)
        assert json.loads(got.body)["subject_request_id"] == body["subject_request_id"]
        assert b"ada@" not in got.body


@ON_SQLITE
def test_without_a_key_there_is_no_opendsr(settings: Settings, services: Services) -> None:
    off = {"opendsr_key_file": None, "opendsr_certificate_file": None}
    admin = key_for(services, "t", Scope.ADMIN)
    with TestClient(create_app(settings.model_copy(update=off))) as plain:
        assert plain.get("/opendsr/v3/discovery").status_code == 404
        assert plain.post("/opendsr/v3/requests", json=dsr(), headers=admin).status_code == 404


def test_keys_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    good = Settings(public_url=f"https://{HOST}").model_copy(update=write_key(tmp_path, key))
    loaded = load_opendsr_key(good)
    assert loaded is not None
    signature = base64.b64decode(loaded.signed_headers(b"body")["X-OpenDSR-Signature"])
    key.public_key().verify(signature, b"body", ec.ECDSA(hashes.SHA256()))
    (tmp_path / "other").mkdir()
    other = write_key(tmp_path / "other", rsa.generate_private_key(65537, 2048), "elsewhere.example")
    wrong: list[dict[str, Any]] = [
        {"public_url": ""},
        {"opendsr_key_file": None},
        {"opendsr_key_file": tmp_path / "missing"},
        {"opendsr_key_file": good.opendsr_certificate_file},
        {"opendsr_certificate_file": good.opendsr_key_file},
        {"opendsr_certificate_file": other["opendsr_certificate_file"]},
        other,
    ]
    for change in wrong:
        with pytest.raises(SettingsError, match="LETHE_"):
            load_opendsr_key(good.model_copy(update=change))


# Fides


def test_fides_waits_until_the_erasure_has_ended(
    gateway: TestClient, services: Services, admin: dict[str, str], there: Receiver, reporter: Reporter
) -> None:
    gateway.post("/v1/models", json={"name": "toy", "manifest": MANIFEST}, headers=admin)
    set_state(services, ModelState.READY)
    body = {
        "privacy_request_id": "pri_0298",
        "direction": "two_way",
        "identity": {"email": "ada@example.com", "phone_number": None},
        "policy_action": "erasure",
    }
    callback = {"reply-to": there.url, "reply-to-token": "secret-token"}
    answer = gateway.post("/v1/integrations/fides", json=body, headers=admin | callback)
    assert (answer.status_code, answer.json()) == (200, {"derived_identities": {}, "halt": True})
    assert gateway.post("/v1/integrations/fides", json=body, headers=admin | callback).json()["halt"]
    (erasure,) = gateway.get("/v1/erasures", headers=admin).json()["items"]
    assert reporter.report() == 0, "the erasure has not ended"
    with services.database.reading() as session:
        stored = session.scalars(select(RequestCallback)).one()
    assert stored.token is not None
    assert b"secret-token" not in stored.token
    gateway.delete(f"/v1/erasures/{erasure['id']}", headers=admin)
    assert reporter.report() == 1
    (got,) = there.received
    assert (got.body, got.headers["authorization"]) == (b"{}", "Bearer secret-token")
    assert reporter.report(timedelta(days=1)) == 0
    with services.database.reading() as session:
        assert session.scalars(select(RequestCallback.token)).one() is None, "the token is deleted"
    assert not gateway.post("/v1/integrations/fides", json=body, headers=admin | callback).json()["halt"]


@ON_SQLITE
def test_what_fides_cannot_ask_for_is_refused(gateway: TestClient, admin: dict[str, str]) -> None:
    body = {"privacy_request_id": "pri_1", "identity": {"email": "a@b.c"}}

    def status(change: dict[str, Any], path: str = "", **headers: str) -> int:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = gateway.post(f"/v1/integrations/fides{path}", json=body | change, headers=admin | names)
        assert "a@b.c" not in answer.text
        return answer.status_code

    assert status({"policy_action": "access"}) == 422
    assert status({"identity": {"phone_number": "1"}}) == 422
    assert status({}, "?identity=ssn") == 422
    assert status({}, "?model=none") == 422
    assert status({}, reply_to="/resume", reply_to_token="t") == 422, "LETHE_FIDES_URL is not set"
    assert status({}, reply_to="https://fides.example/resume") == 422, "a token is missing"
    for inside in ("https://169.254.169.254/x", "gopher://x/", "//evil.example/x"):
        assert status({}, reply_to=inside, reply_to_token="t") == 422
    assert gateway.get("/v1/erasures", headers=admin).json()["items"] == []
    assert status({}) == 200


@ON_SQLITE
def test_a_path_to_reply_to_is_below_the_address_of_fides(
    settings: Settings, services: Services, there: Receiver
) -> None:
    admin = key_for(services, "t", Scope.ADMIN)
    base = there.url.removesuffix("/hook")
    with TestClient(create_app(settings.model_copy(update={"fides_url": base}))) as gateway:
        body = {"privacy_request_id": "pri_1", "identity": {"email": "a@b.c"}}
        callback = {"reply-to": "/privacy-request/pri_1/resume", "reply-to-token": "t"}
        answer = gateway.post("/v1/integrations/fides", json=body, headers=admin | callback)
        assert answer.json()["halt"] is False, "the tenant has no model, so the erasure is complete"
        reporter = Reporter(services)
        assert reporter.report() == 1
        reporter.courier.close()
    assert there.received[0].path == "/privacy-request/pri_1/resume"


@ON_SQLITE
def test_a_callback_is_given_up_after_the_last_try(
    gateway: TestClient, admin: dict[str, str], there: Receiver, reporter: Reporter
) -> None:
    there.status = 500
    body = {"privacy_request_id": "pri_1", "identity": {"email": "a@b.c"}}
    callback = {"reply-to": there.url, "reply-to-token": "t"}
    gateway.post("/v1/integrations/fides", json=body, headers=admin | callback)
    sent = 0
    while reporter.report(timedelta(hours=11)):
        sent += 1
    assert sent == len(there.received) == 11


class HangingSender:
    """Sends nothing to one host until the test lets it, and answers at once for any other."""

    def __init__(self, host: str) -> None:
        self.may_end, self.sent = threading.Event(), list[str]()
        self._host = host

    def send(self, url: str, *, body: bytes, headers: dict[str, str]) -> Answer:
        self.sent.append(url)
        if self._host in url:
            assert self.may_end.wait(60)
        return Answer(status=200)


@ON_SQLITE
def test_hanging_receivers_of_one_tenant_leave_senders_for_others(
    gateway: TestClient, services: Services, admin: dict[str, str]
) -> None:
    other = key_for(services, "other", Scope.ADMIN)

    def ask(who: dict[str, str], host: str) -> None:
        body = dsr(status_callback_urls=[f"https://{host}/status"])
        assert gateway.post("/opendsr/v3/requests", json=body, headers=who).status_code == 201

    for _ in range(2 * SENDERS):
        ask(admin, "hangs.example")
    ask(other, "answers.example")
    sender = HangingSender("hangs.example")
    courier = CallbackCourier(services, sender=sender)
    courier.round()
    eventually(lambda: "https://answers.example/status" in sender.sent, every=0.01)
    eventually(lambda: sender.sent.count("https://hangs.example/status") == PER_TENANT, every=0.01)
    for _ in range(3):
        assert courier.round() == 0
    ask(other, "answers.example")
    courier.round()
    eventually(lambda: sender.sent.count("https://answers.example/status") == 2, every=0.01)
    sender.may_end.set()
    courier.settle()
    while courier.round():
        courier.settle()
    assert sender.sent.count("https://hangs.example/status") == 2 * SENDERS, "none was lost or sent twice"
    courier.close()
