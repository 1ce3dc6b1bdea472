"""What an attacker may try on the gateway, and outages while requests come in (docs/security.md)."""

import errno
import json
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import redis
from fastapi.testclient import TestClient
from sqlalchemy.engine import make_url

from app.core.settings import Settings
from app.core.storage.folder import Folder
from app.dispatcher.loop import Dispatcher
from app.gateway.auth.scopes import Scope
from app.gateway.main import create_app
from app.services import Services
from tests.chaos.proxy import Link, Proxies
from tests.integration.harness import MANIFEST, dataset, key_for

Headers = dict[str, str]
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

PUBLIC = re.compile(
    r"/(healthz|readyz|metrics|docs.*|redoc|openapi\.json|opendsr/v3/(discovery|certificate\.pem))"
)
# The scope that each endpoint needs. The first pattern that matches decides.
SCOPES: list[tuple[str, Scope | None]] = [
    (r"GET /v1/whoami", None),
    (r"\w+ /v1/api-keys.*", Scope.ADMIN),
    (r"\w+ /v1/webhooks.*", Scope.WEBHOOKS_ADMIN),
    (r"GET .*/(evidence|evaluations|audits|membership)(/.*)?", Scope.AUDIT_READ),
    (r"POST .*/audits", Scope.AUDIT_READ),
    (r"GET /v1/audit-log.*", Scope.AUDIT_READ),
    (r"GET .*/versions/\{number\}/.*", Scope.CHECKPOINTS_READ),
    (r"GET /v1/(certificates|keys|log)(/.*)?", Scope.CERTIFICATES_READ),
    (r"GET /v1/(batches|models|representations)(/.*)?", Scope.MODELS_READ),
    (r"\w+ /v1/(batches|models)(/.*)?", Scope.MODELS_ADMIN),
    (r"GET /(v1/erasures|opendsr/v3/requests)(/.*)?", Scope.ERASURES_READ),
    (r"\w+ /(v1/erasures|opendsr/v3/requests|v1/integrations/fides)(/.*)?", Scope.ERASURES_WRITE),
]


def _endpoints(gateway: TestClient) -> Iterator[tuple[str, str, Scope | None]]:
    paths = gateway.get("/openapi.json").json()["paths"]
    for path, methods in paths.items():
        for method in methods if not PUBLIC.fullmatch(path) else ():
            endpoint = f"{method.upper()} {path}"
            needed = [scope for pattern, scope in SCOPES if re.fullmatch(pattern, endpoint)]
            assert needed, f"say in SCOPES which scope {endpoint} needs"
            yield method.upper(), path, needed[0]


def _filled(path: str) -> str:
    names = {"name": "toy", "part": "p0", "number": "0"}
    return re.sub(r"\{(\w+)\}", lambda match: names.get(match[1], str(uuid4())), path)


@on_sqlite
def test_every_endpoint_opens_to_the_scope_it_needs_and_to_no_other(
    gateway: TestClient, services: Services
) -> None:
    alone = {scope: key_for(services, "scoped", scope) for scope in Scope}
    others = {scope: key_for(services, "scoped", *(set(Scope) - {scope, Scope.ADMIN})) for scope in Scope}
    for method, path, needed in _endpoints(gateway):
        for keys, lacking in (
            (alone[needed or Scope.ERASURES_READ], None),
            (alone[Scope.ADMIN], None),
            (others[needed or Scope.ERASURES_READ], needed),
        ):
            answer = gateway.request(method, _filled(path), headers=keys, json={})
            missing = answer.json().get("scope") if answer.status_code == 403 else None
            assert missing == lacking, (method, path, answer.text)
            assert answer.status_code not in (401, 500), (method, path, answer.text)


def _nested(depth: int) -> bytes:
    return b'{"name":"m","manifest":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"


HOSTILE_MANIFESTS = {
    "nested": _nested(200),
    "very deep": _nested(300_000),
    "unbalanced": b'{"name":"m","manifest":' + b"[" * 300_000 + b"}",
    "long number": b'{"name":"m","manifest":{"width":' + b"9" * 5000 + b"}}",
    "not finite": b'{"name":"m","manifest":{"width":1e999,"lambda":NaN}}',
    "wide": b'{"name":"m","manifest":{' + b",".join(b'"k%d":1' % i for i in range(50_000)) + b"}}",
    "huge shape": json.dumps({"name": "m", "manifest": MANIFEST | {"width": 1 << 62}}).encode(),
    "surrogate": b'{"name":"\\ud800","manifest":{}}',
}
HOSTILE_SUBJECTS = (
    b"[" * 300_000,
    b"[" + b"9" * 5000 + b"]",
    b'["\\ud800"]',
    b"1" * 300_000,
    b"{}" * 1000,
)


@on_sqlite
def test_a_hostile_manifest_is_refused_as_a_problem(gateway: TestClient, admin: Headers) -> None:
    headers = admin | {"Content-Type": "application/json"}
    for kind, body in HOSTILE_MANIFESTS.items():
        answer = gateway.post("/v1/models", content=body, headers=headers)
        assert answer.status_code == 422, (kind, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        assert len(answer.content) < 20_000, "the answer does not repeat the question"
    assert gateway.get("/v1/models", headers=admin).json()["items"] == []


@on_sqlite
def test_a_hostile_request_is_refused_as_a_problem(gateway: TestClient, admin: Headers) -> None:
    headers = admin | {"Content-Type": "application/json"}
    for subjects in HOSTILE_SUBJECTS:
        answer = gateway.post("/v1/erasures", content=b'{"subjects":' + subjects + b"}", headers=headers)
        assert answer.status_code == 422, (subjects[:20], answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        assert len(answer.content) < 2_000


@on_sqlite
def test_a_full_or_read_only_disk_refuses_an_upload_and_takes_it_later(
    gateway: TestClient, admin: Headers, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.post("/v1/models", json={"name": "toy", "manifest": MANIFEST}, headers=admin)
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO):

        def fail(*_: object, code: int = code) -> None:
            raise OSError(code, "the disk refuses")

        with monkeypatch.context() as patch:
            patch.setattr(Folder, "write", fail)
            answer = gateway.put("/v1/models/toy/dataset/part0", content=dataset(), headers=admin)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5"), answer.text
        assert answer.json()["type"] == "urn:lethe:problem:unavailable"
        assert gateway.get("/v1/models/toy/dataset", headers=admin).json() == []
        assert services.storage.list("datasets") == []
    answer = gateway.put("/v1/models/toy/dataset/part0", content=dataset(), headers=admin)
    assert answer.status_code == 201, answer.text


def _ask(gateway: TestClient, admin: Headers, key: str) -> tuple[int, str]:
    answer = gateway.post(
        "/v1/erasures",
        json={"subjects": ["s1", "s2"], "models": ["toy"]},
        headers=admin | {"Idempotency-Key": key},
    )
    return answer.status_code, str(answer.json().get("id", ""))


def _register(gateway: TestClient, admin: Headers) -> None:
    created = gateway.post("/v1/models", json={"name": "toy", "manifest": MANIFEST}, headers=admin)
    assert created.status_code == 201
    sent = gateway.put("/v1/models/toy/dataset/part0", content=dataset(), headers=admin)
    assert sent.status_code == 201


@on_sqlite
def test_requests_are_accepted_while_redis_is_away(settings: Settings, admin: Headers) -> None:
    away = settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})
    with TestClient(create_app(away)) as gateway:
        _register(gateway, admin)
        status, erasure = _ask(gateway, admin, "k1")
        assert status == 202
        assert gateway.get(f"/v1/erasures/{erasure}", headers=admin).json()["state"] == "received"


@on_sqlite
def test_a_redis_without_memory_delays_jobs_and_loses_none(
    gateway: TestClient, admin: Headers, services: Services
) -> None:
    _register(gateway, admin)
    dispatcher = Dispatcher(services)
    services.redis.config_set("maxmemory", 1)
    try:
        assert gateway.post("/v1/models/toy/validate", headers=admin).status_code == 202
        assert _ask(gateway, admin, "k1")[0] == 202
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            dispatcher.round()
        assert services.queue.get_job_ids() == []
    finally:
        services.redis.config_set("maxmemory", 0)
    dispatcher.round()
    assert len(services.queue.get_job_ids()) == 1, "the registration, which waited in the outbox"


@pytest.fixture
def link(settings: Settings) -> Iterator[Link]:
    """A link to PostgreSQL that a test can cut."""
    proxies = Proxies()
    host = str(make_url(settings.database_url).query["host"])
    yield proxies.link_to_socket("database", str(next(Path(host).glob(".s.PGSQL.*[0-9]"))))
    proxies.close()


@on_postgresql
def test_requests_during_an_outage_of_the_database_are_refused_and_recorded_once_afterwards(
    settings: Settings, admin: Headers, link: Link
) -> None:
    url = make_url(settings.database_url)
    url = url.difference_update_query(["host"]).set(host="127.0.0.1", port=link.port)
    through = settings.model_copy(update={"database_url": url.render_as_string(hide_password=False)})
    with TestClient(create_app(through)) as gateway:
        _register(gateway, admin)
        assert _ask(gateway, admin, "before")[0] == 202
        link.cut()
        for _ in range(3):
            answer = gateway.post(
                "/v1/erasures", json={"subjects": ["s1"]}, headers=admin | {"Idempotency-Key": "k"}
            )
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
            assert answer.json()["type"] == "urn:lethe:problem:unavailable"
        link.heal()
        first, second = _ask(gateway, admin, "k"), _ask(gateway, admin, "k")
        assert first == second
        assert first[0] == 202
        assert len(gateway.get("/v1/erasures", headers=admin).json()["items"]) == 2
