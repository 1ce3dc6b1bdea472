"""Keys, scopes and tenants: no endpoint ever returns another tenant's row."""

import re
from uuid import UUID, uuid4

import pytest
from fastapi.testclient import TestClient

from app.core.clock import new_id
from app.core.settings import Settings
from app.db.tables import ApiKey, Certificate, Job, Model, Report, Version
from app.db.tables import Batch as BatchRow
from app.gateway.auth.scopes import Scope
from app.gateway.main import create_app
from app.services import Services
from tests.integration.harness import MANIFEST, key_for

PUBLIC = {"/healthz", "/readyz", "/metrics", "/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect"}
PUBLIC |= {
    "/opendsr/v3/discovery",
    "/opendsr/v3/certificate.pem",
}  # controllers read them before they have a key
OPEN_ON_REQUEST = re.compile(r"/v1/(keys|log/.*|certificates/\{certificate_id\}(/pack|/bundle)?)$")

# Valid bodies, so that an endpoint gets as far as checking whose row it is.
BODIES = {
    "extend": {"reason": "x"},
    "import": {"part": "p0", "uri": "file:///nowhere"},
    "representation/import": {"uri": "file:///nowhere"},
    "tokenizer/import": {"uri": "file:///nowhere"},
    "{name}": {"policy": {"epsilon": 1.0}},
    "{webhook_id}": {"enabled": False},
    "rotate": {"overlap_hours": 1},
}


def _routes(gateway: TestClient) -> list[tuple[str, str]]:
    spec = gateway.get("/openapi.json").json()
    return [(method.upper(), path) for path, entry in spec["paths"].items() for method in entry]


def _filled(path: str, values: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match.group(1), "1"), path)


def test_every_endpoint_wants_a_key(gateway: TestClient) -> None:
    for method, path in _routes(gateway):
        if path not in PUBLIC:
            answer = gateway.request(method, _filled(path, {}), json={})
            assert answer.status_code in (401, 422), (method, path, answer.status_code)
            if answer.status_code == 422:  # the path is refused before the caller is checked
                answer = gateway.request(method, _filled(path, _ids()), json={})
                assert answer.status_code == 401, (method, path)
            assert answer.headers["content-type"] == "application/problem+json"


def _ids() -> dict[str, str]:
    some = str(uuid4())
    named = [
        "key_id",
        "batch_id",
        "erasure_id",
        "certificate_id",
        "evaluation_id",
        "advice_id",
        "audit_id",
        "webhook_id",
        "delivery_id",
    ]
    return dict.fromkeys(named, some) | {"name": "toy", "part": "p0", "number": "0"}


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer x", "Basic YTpi", "Bearer lethe_00_x", "Bearer lethe__"]
)
def test_a_malformed_key_is_refused(gateway: TestClient, header: str) -> None:
    assert gateway.get("/v1/models", headers={"Authorization": header}).status_code == 401


def test_a_key_with_one_letter_changed_is_refused(gateway: TestClient, admin: dict[str, str]) -> None:
    good = admin["Authorization"]
    assert gateway.get("/v1/models", headers=admin).status_code == 200
    bad = good[:-1] + ("A" if good[-1] != "A" else "B")
    assert gateway.get("/v1/models", headers={"Authorization": bad}).status_code == 401


def test_a_revoked_key_is_refused(gateway: TestClient, admin: dict[str, str]) -> None:
    body = {"name": "short-lived", "scopes": ["models:read"]}
    made = gateway.post("/v1/api-keys", json=body, headers=admin).json()
    theirs = {"Authorization": f"Bearer {made['secret']}"}
    assert gateway.get("/v1/models", headers=theirs).status_code == 200
    assert gateway.delete(f"/v1/api-keys/{made['id']}", headers=admin).status_code == 200
    assert gateway.get("/v1/models", headers=theirs).status_code == 401


def test_only_a_hash_of_a_key_is_kept(services: Services, admin: dict[str, str]) -> None:
    secret = admin["Authorization"].rpartition("_")[2]
    with services.database.reading() as session:
        rows = session.query(ApiKey).all()
    assert rows
    assert all(secret.encode() not in row.digest and secret not in str(row.scopes) for row in rows)


@pytest.mark.parametrize(
    ("scope", "allowed", "refused"),
    [
        (Scope.ERASURES_READ, "/v1/erasures", "/v1/models"),
        (Scope.MODELS_READ, "/v1/models", "/v1/erasures"),
        (Scope.CERTIFICATES_READ, "/v1/certificates", "/v1/batches"),
    ],
)
def test_a_scope_opens_its_own_door_only(
    gateway: TestClient, services: Services, scope: Scope, allowed: str, refused: str
) -> None:
    headers = key_for(services, "scoped", scope)
    assert gateway.get(allowed, headers=headers).status_code == 200
    answer = gateway.get(refused, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:lethe:problem:forbidden")


def test_reading_is_not_writing(gateway: TestClient, services: Services) -> None:
    headers = key_for(services, "readers", Scope.ERASURES_READ, Scope.MODELS_READ)
    assert gateway.post("/v1/erasures", json={"subjects": ["a"]}, headers=headers).status_code == 403
    body = {"name": "m", "manifest": MANIFEST}
    assert gateway.post("/v1/models", json=body, headers=headers).status_code == 403


def test_no_endpoint_shows_another_tenants_rows(gateway: TestClient, services: Services) -> None:
    owner, stranger = key_for(services, "owner", Scope.ADMIN), key_for(services, "stranger", Scope.ADMIN)
    owned = _belongings(gateway, services, owner)
    for method, path in _routes(gateway):
        if method != "GET" or path in PUBLIC or not path.startswith("/v1/"):
            continue
        answer = gateway.get(_filled(path, owned), headers=stranger, params={"index": 0, "old_size": 0})
        if "{" in path:
            assert answer.status_code == 404, (path, answer.text)
        for value in owned.values():
            assert len(value) < 3 or value not in answer.text, path
    for method, path in _routes(gateway):
        if method != "GET" and "{" in path:
            *_, before, last = path.split("/")
            body = BODIES.get(f"{before}/{last}", BODIES.get(last))
            answer = gateway.request(method, _filled(path, owned), headers=stranger, json=body)
            expected = 403 if path.endswith("/import") else 404  # these settings allow no import
            assert answer.status_code == expected, (method, path, answer.text)


def _belongings(gateway: TestClient, services: Services, owner: dict[str, str]) -> dict[str, str]:
    """Create one row of everything for the owner."""
    body = {"name": "secret-model", "manifest": MANIFEST}
    model_id = UUID(gateway.post("/v1/models", json=body, headers=owner).json()["id"])
    erasure = gateway.post(
        "/v1/erasures", json={"subjects": ["a"], "reference": "r-77"}, headers=owner
    ).json()
    key = gateway.get("/v1/api-keys", headers=owner).json()[0]["id"]
    certificate_id, job_id, batch_id = new_id(), new_id(), new_id()
    with services.database.writing() as session:
        session.add(Job(id=job_id, kind="unlearn", model_id=model_id))
        session.flush()
        session.add(
            BatchRow(
                id=batch_id, model_id=model_id, job_id=job_id, sealed_because="age", policy={}, subjects=1
            )
        )
        session.add(
            Certificate(
                id=certificate_id,
                model_id=model_id,
                chain_index=0,
                mechanism="tr",
                envelope=b"{}",
                digest="0" * 64,
                evidence=b"{}",
                log_index=0,
            )
        )
        session.flush()
        session.add(
            Version(
                model_id=model_id,
                number=1,
                certificate_id=certificate_id,
                generation=0,
                path="p/q",
                sha256="1" * 64,
                size=1,
            )
        )
        assert session.get_one(Model, model_id)
    return {
        "name": "secret-model",
        "erasure_id": erasure["id"],
        "key_id": key,
        "certificate_id": str(certificate_id),
        "batch_id": str(batch_id),
        "number": "1",
        "part": "p0",
        **_webhook(gateway, services, owner),
        "evaluation_id": str(_report(services, model_id, certificate_id, "evaluation", "evaluate")),
        "advice_id": str(_report(services, model_id, certificate_id, "advice", "advise")),
        "audit_id": str(_report(services, model_id, certificate_id, "audit", "audit")),
    }


def _webhook(gateway: TestClient, services: Services, owner: dict[str, str]) -> dict[str, str]:
    body = {"url": "https://owner.example/hook", "event_types": ["batch.completed"]}
    made = gateway.post("/v1/webhooks", json=body, headers=owner)
    assert made.status_code == 201, made.text
    webhook_id = made.json()["id"]
    sent = gateway.post(f"/v1/webhooks/{webhook_id}/test", headers=owner)
    assert sent.status_code in (200, 201, 202), sent.text
    return {"webhook_id": webhook_id, "delivery_id": sent.json()["id"]}


def _report(services: Services, model_id: UUID, certificate_id: UUID, kind: str, job: str) -> UUID:
    job_id, report_id = new_id(), new_id()
    with services.database.writing() as session:
        session.add(Job(id=job_id, kind=job, model_id=model_id))
        session.flush()
        session.add(
            Report(
                id=report_id,
                kind=kind,
                model_id=model_id,
                certificate_id=certificate_id,
                version=1,
                job_id=job_id,
            )
        )
    return report_id


def test_single_certificates_keys_and_log_can_be_opened_to_all_but_no_list(settings: Settings) -> None:
    with TestClient(create_app(settings.model_copy(update={"public_certificates": True}))) as gateway:
        for method, path in _routes(gateway):
            if method != "GET" or not path.startswith("/v1/"):
                continue
            answer = gateway.get(_filled(path, _ids()), params={"index": 0, "old_size": 0})
            assert (answer.status_code == 401) == (OPEN_ON_REQUEST.fullmatch(path) is None), path


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_address_without_a_key_can_read_only_so_much(settings: Settings, admin: dict[str, str]) -> None:
    change = {"public_certificates": True, "public_requests_per_minute_per_address": 2}
    with TestClient(create_app(settings.model_copy(update=change))) as gateway:
        answers = [gateway.get("/v1/keys") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[2].json()["type"] == "urn:lethe:problem:too-many-requests"
        assert 1 <= int(answers[2].headers["Retry-After"]) <= 60
        assert answers[2].headers["RateLimit-Policy"] == '"address";q=2;w=60'
        assert gateway.get("/v1/keys", headers=admin).status_code == 200, "keys have limits of their own"
