"""The audit log: every change is recorded with its author, in one transaction, and edits are noticed."""

import csv
import io
import json
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from app.db import audit_log
from app.db.audit_log import Action, AuditEntry, AuditHead
from app.db.states import ModelState
from app.gateway.auth import service as access
from app.gateway.auth.scopes import Scope
from app.gateway.main import ROUTERS
from app.services import Services
from lethe.certificate.audit_log import (
    Actor,
    AuditLogHeads,
    AuditLogInvalid,
    AuditLogReport,
    entry_hash,
    first_hash,
    read_entries,
    verify_audit_log,
)
from lethe.certificate.keys import SigningKey
from tests.integration.harness import MANIFEST, dataset, key_for, set_state
from worker import main as worker
from worker.signing import load_signer

ORIGIN = "lethe"
NDJSON = {"Accept": "application/x-ndjson"}
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def tenant_of(services: Services, admin: dict[str, str]) -> UUID:
    with services.database.reading() as session:
        caller = access.authenticate(session, admin["Authorization"].partition(" ")[2])
    assert caller is not None
    return caller.tenant_id


def actions(gateway: TestClient, admin: dict[str, str]) -> list[str]:
    """Return the actions in the order in which they happened."""
    page = gateway.get("/v1/audit-log?limit=200", headers=admin).json()
    return [entry["action"] for entry in reversed(page["items"])]


def verified(gateway: TestClient, admin: dict[str, str]) -> AuditLogReport:
    """Export and verify the log as an auditor does."""
    exported = gateway.get("/v1/audit-log", headers=admin | NDJSON)
    heads = gateway.get("/v1/audit-log/heads", headers=admin)
    assert (exported.status_code, heads.status_code) == (200, 200)
    return verify_audit_log(
        read_entries(exported.content.splitlines()), AuditLogHeads.read(heads.content, "heads")
    )


def sign(services: Services) -> int:
    with services.database.writing() as session:
        return audit_log.sign_heads(
            session, load_signer(services.settings), ORIGIN, interval=timedelta(seconds=0)
        )


# What is recorded


def test_changes_are_recorded_with_the_key_that_made_them(
    gateway: TestClient, admin: dict[str, str], services: Services
) -> None:
    key = gateway.post(
        "/v1/api-keys", json={"name": "intake", "scopes": ["erasures:write"]}, headers=admin
    ).json()
    gateway.post("/v1/models", json={"name": "toy", "manifest": MANIFEST}, headers=admin)
    gateway.put("/v1/models/toy/dataset/part0", content=dataset(rows=20), headers=admin)
    set_state(services, ModelState.READY)
    intake = {"Authorization": f"Bearer {key['secret']}"}
    body = {"subjects": ["secret-person", "other"], "reference": "case-77", "reason": "my reason"}
    erasure = gateway.post("/v1/erasures", json=body, headers=intake).json()
    gateway.post(f"/v1/erasures/{erasure['id']}/extend", json={"reason": "complex"}, headers=intake)
    gateway.delete(f"/v1/erasures/{erasure['id']}?reason=my+withdrawal", headers=intake)
    gateway.delete(f"/v1/api-keys/{key['id']}", headers=admin)

    entries = gateway.get("/v1/audit-log", headers=admin).json()["items"][::-1]
    assert [entry["action"] for entry in entries] == [
        *("api-key.created", "api-key.created", "model.created", "file.uploaded"),
        *("erasure.requested", "erasure.extended", "erasure.withdrawn", "api-key.revoked"),
    ]
    assert [entry["actor"]["kind"] for entry in entries] == ["system"] + ["api-key"] * 7
    assert {entry["actor"]["name"] for entry in entries[4:7]} == {"intake"}
    assert entries[4]["actor"]["id"] == key["id"]
    assert entries[4]["target"] == f"erasure/{erasure['id']}"
    assert entries[4]["details"] == {"subjects": 2, "models": ["toy"]}
    assert [entry["sequence"] for entry in entries] == list(range(8))
    text_of_log = json.dumps(entries)
    for private in ("secret-person", "case-77", "my reason", "complex", "my withdrawal", key["secret"]):
        assert private not in text_of_log


@ON_SQLITE
def test_a_change_of_policy_is_recorded_with_its_values(gateway: TestClient, admin: dict[str, str]) -> None:
    gateway.post("/v1/models", json={"name": "toy", "manifest": MANIFEST}, headers=admin)
    patch = {"policy": {"epsilon": 0.5}, "annotations": {"note": "free text"}}
    assert gateway.patch("/v1/models/toy", json=patch, headers=admin).status_code == 200
    entry = gateway.get("/v1/audit-log?action=model.changed", headers=admin).json()["items"][0]
    assert entry["details"]["fields"] == ["annotations", "policy"]
    assert entry["details"]["policy"]["epsilon"]["after"] == 0.5
    assert "free text" not in json.dumps(entry)


@ON_SQLITE
def test_a_change_that_is_refused_leaves_no_entry(gateway: TestClient, admin: dict[str, str]) -> None:
    erasure = gateway.post("/v1/erasures", json={"subjects": ["p"]}, headers=admin).json()
    before = actions(gateway, admin)
    refused = gateway.delete(f"/v1/erasures/{erasure['id']}", headers=admin)  # it has no task to withdraw
    assert refused.status_code == 409
    assert gateway.post("/v1/models/none/validate", headers=admin).status_code == 404
    assert actions(gateway, admin) == before


def test_a_repeated_request_is_recorded_once(gateway: TestClient, admin: dict[str, str]) -> None:
    for _ in range(3):
        gateway.post("/v1/erasures", json={"subjects": ["p"]}, headers=admin | {"Idempotency-Key": "k"})
    assert actions(gateway, admin).count(Action.ERASURE_REQUESTED) == 1


# Endpoints that change something the audit log is not about, with the reason.
NOT_RECORDED: dict[tuple[str, str], str] = {}
RECORDED: dict[tuple[str, str], Action] = {
    ("POST", "/v1/erasures"): Action.ERASURE_REQUESTED,
    ("POST", "/v1/erasures/bulk"): Action.ERASURE_REQUESTED,
    ("DELETE", "/v1/erasures/{erasure_id}"): Action.ERASURE_WITHDRAWN,
    ("POST", "/v1/erasures/{erasure_id}/extend"): Action.ERASURE_EXTENDED,
    ("POST", "/v1/erasures/{erasure_id}/receipts/acknowledge"): Action.RECEIPTS_ACKNOWLEDGED,
    ("POST", "/v1/batches/{batch_id}/approve"): Action.BATCH_APPROVED,
    ("POST", "/v1/batches/{batch_id}/discard"): Action.BATCH_DISCARDED,
    ("POST", "/v1/batches/{batch_id}/retry"): Action.BATCH_RETRIED,
    ("POST", "/v1/batches/{batch_id}/cancel"): Action.BATCH_CANCELLED,
    ("POST", "/v1/models"): Action.MODEL_CREATED,
    ("PATCH", "/v1/models/{name}"): Action.MODEL_CHANGED,
    ("DELETE", "/v1/models/{name}"): Action.MODEL_RETIRED,
    ("POST", "/v1/models/{name}/validate"): Action.MODEL_REGISTERED,
    ("POST", "/v1/models/{name}/append"): Action.MODEL_APPENDED,
    ("POST", "/v1/models/{name}/flush"): Action.MODEL_FLUSHED,
    **{
        ("PUT", f"/v1/models/{{name}}/{file}"): Action.FILE_UPLOADED
        for file in ("dataset/{part}", "holdout/{part}", "weights", "anchor", "representation", "tokenizer")
    },
    **{
        ("DELETE", f"/v1/models/{{name}}/{file}"): Action.FILE_DELETED
        for file in ("dataset/{part}", "holdout/{part}", "weights", "anchor", "representation", "tokenizer")
    },
    **{
        ("POST", f"/v1/models/{{name}}/{file}/import"): Action.FILE_IMPORTED
        for file in ("dataset", "holdout", "representation", "tokenizer")
    },
    ("POST", "/v1/models/{name}/evaluations"): Action.EVALUATION_STARTED,
    ("POST", "/v1/models/{name}/advice"): Action.ADVICE_STARTED,
    ("POST", "/v1/certificates/{certificate_id}/audits"): Action.AUDIT_STARTED,
    ("POST", "/v1/webhooks"): Action.WEBHOOK_CREATED,
    ("PATCH", "/v1/webhooks/{webhook_id}"): Action.WEBHOOK_CHANGED,
    ("DELETE", "/v1/webhooks/{webhook_id}"): Action.WEBHOOK_DELETED,
    ("POST", "/v1/webhooks/{webhook_id}/rotate"): Action.WEBHOOK_SECRET_ROTATED,
    ("POST", "/v1/webhooks/{webhook_id}/test"): Action.WEBHOOK_TESTED,
    ("POST", "/v1/webhooks/{webhook_id}/replay"): Action.WEBHOOK_REPLAYED,
    ("POST", "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/replay"): Action.WEBHOOK_REPLAYED,
    ("POST", "/v1/api-keys"): Action.KEY_CREATED,
    ("DELETE", "/v1/api-keys/{key_id}"): Action.KEY_REVOKED,
    ("POST", "/opendsr/v3/requests"): Action.ERASURE_REQUESTED,
    ("DELETE", "/opendsr/v3/requests/{subject_request_id}"): Action.ERASURE_WITHDRAWN,
    ("POST", "/v1/integrations/fides"): Action.ERASURE_REQUESTED,
    # Reading what is confidential is recorded too.
    ("GET", "/v1/erasures/{erasure_id}/receipts"): Action.RECEIPTS_DOWNLOADED,
    ("GET", "/v1/certificates/{certificate_id}/evidence"): Action.EVIDENCE_DOWNLOADED,
    ("GET", "/v1/audit-log"): Action.AUDIT_LOG_EXPORTED,
}


def test_every_endpoint_that_changes_something_has_an_action() -> None:
    """A new endpoint has to be listed here, with its action or with the reason why it has none."""
    changing = {
        (method, route.path)
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in (route.methods or set()) - {"GET", "HEAD"}
    }
    listed = {place for place in RECORDED if place[0] != "GET"} | NOT_RECORDED.keys()
    assert changing == listed
    unused = set(Action) - set(RECORDED.values())
    by_people = {Action.SIGNED_IN, Action.SIGNED_OUT}
    by_lethe = {Action.EVIDENCE_DELETED, Action.REPORTS_DELETED}
    assert unused == by_people | by_lethe


@ON_SQLITE
def test_webhooks_are_recorded_without_their_url(gateway: TestClient, admin: dict[str, str]) -> None:
    hook = gateway.post(
        "/v1/webhooks", json={"url": "https://hooks.example/secret-path"}, headers=admin
    ).json()
    where = f"/v1/webhooks/{hook['id']}"
    gateway.patch(where, json={"enabled": True}, headers=admin)
    gateway.post(f"{where}/rotate", json={"overlap_hours": 1}, headers=admin)
    delivery = gateway.post(f"{where}/test", headers=admin).json()
    assert delivery["state"] == "pending"
    gateway.post(f"{where}/replay", headers=admin)
    gateway.delete(where, headers=admin)
    assert actions(gateway, admin)[1:] == [
        *("webhook.created", "webhook.changed", "webhook.secret-rotated"),
        *("webhook.tested", "webhook.replayed", "webhook.deleted"),
    ]
    assert "secret-path" not in gateway.get("/v1/audit-log", headers=admin).text


@ON_SQLITE
def test_a_command_on_the_server_is_recorded_with_the_account(services: Services) -> None:
    with audit_log.acting_as(audit_log.operator()), services.database.writing() as session:
        key = access.create_key(session, tenant="t", name="k", scopes=[Scope.ADMIN])
    with services.database.reading() as session:
        entry = session.scalars(audit_log.entries(key.record.tenant_id)).one().exported
    assert (entry.actor.kind, entry.action) == ("operator", Action.KEY_CREATED)
    assert audit_log.current_actor() == audit_log.SYSTEM


# Who may read it


@ON_SQLITE
def test_other_scopes_are_refused(gateway: TestClient, services: Services) -> None:
    for scope in set(Scope) - {Scope.AUDIT_READ, Scope.ADMIN}:
        key = key_for(services, "t", scope)
        for path in ("/v1/audit-log", "/v1/audit-log/heads"):
            assert gateway.get(path, headers=key).status_code == 403, (path, scope)
            assert gateway.get(path).status_code == 401


@ON_SQLITE
def test_another_tenant_sees_nothing_of_it(
    gateway: TestClient, services: Services, admin: dict[str, str]
) -> None:
    gateway.post("/v1/models", json={"name": "toy", "manifest": MANIFEST}, headers=admin)
    sign(services)
    other = key_for(services, "other", Scope.AUDIT_READ)
    assert [e["action"] for e in gateway.get("/v1/audit-log", headers=other).json()["items"]] == [
        "api-key.created"
    ]
    exported = gateway.get("/v1/audit-log", headers=other | NDJSON).text
    assert "toy" not in exported
    assert gateway.get("/v1/audit-log/heads", headers=other).json()["heads"] == []


# Formats


@ON_SQLITE
def test_pages_follow_each_other(gateway: TestClient, admin: dict[str, str]) -> None:
    for _ in range(4):
        gateway.post("/v1/erasures", json={"subjects": ["p"]}, headers=admin)
    seen: list[int] = []
    cursor = ""
    while True:
        page = gateway.get(f"/v1/audit-log?limit=2{cursor}", headers=admin).json()
        seen += [entry["sequence"] for entry in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == [4, 3, 2, 1, 0]


@ON_SQLITE
def test_the_csv_export_runs_no_formula(
    gateway: TestClient, services: Services, admin: dict[str, str]
) -> None:
    gateway.post("/v1/api-keys", json={"name": "=cmd()", "scopes": ["admin"]}, headers=admin)
    key = gateway.post("/v1/api-keys", json={"name": "=HYPERLINK", "scopes": ["admin"]}, headers=admin).json()
    formula = {"Authorization": f"Bearer {key['secret']}"}
    gateway.post("/v1/erasures", json={"subjects": ["p"]}, headers=formula)
    answer = gateway.get("/v1/audit-log", headers=admin | {"Accept": "text/csv"})
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert answer.headers["content-type"].startswith("text/csv")
    assert [row["action"] for row in rows][-2:] == ["erasure.requested", "audit-log.exported"]
    assert rows[-2]["actor_name"] == "'=HYPERLINK"
    assert json.loads(rows[-2]["details"]) == {"subjects": 1, "models": []}
    assert not any(cell.startswith("=") for row in rows for cell in row.values())


# Append-only


@pytest.mark.parametrize("change", ["update", "delete", "truncate"])
@pytest.mark.parametrize("table", [AuditEntry, AuditHead])
def test_the_database_refuses_to_change_an_entry(
    services: Services, admin: dict[str, str], table: type[Any], change: str
) -> None:
    sign(services)
    statements: dict[str, Any] = {
        "update": update(table).values(tenant_id=tenant_of(services, admin)),
        "delete": delete(table),
        "truncate": text(f"TRUNCATE {table.__tablename__}"),
    }
    with services.database.reading() as session:
        before = len(session.scalars(select(table)).all())
        assert before
    with pytest.raises(DBAPIError) as refusal, services.database.writing() as session:
        session.execute(statements[change])
    if change != "truncate" or not services.database.is_sqlite:  # SQLite has no TRUNCATE
        assert "append-only" in str(refusal.value.orig)
    with services.database.reading() as session:
        assert len(session.scalars(select(table)).all()) == before


def test_entries_written_at_the_same_time_form_one_chain(
    gateway: TestClient, services: Services, admin: dict[str, str]
) -> None:
    tenant_id, threads, each = tenant_of(services, admin), 4, 5
    start = threading.Barrier(threads)

    def write() -> None:
        start.wait()
        for number in range(each):
            with services.database.writing() as session:
                audit_log.record(session, tenant_id, Action.MODEL_FLUSHED, f"model/{number}")

    running = [threading.Thread(target=write) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert verified(gateway, admin).entries == threads * each + 2  # the key, and the export itself


# Edits are noticed


@pytest.fixture
def signed(gateway: TestClient, services: Services, admin: dict[str, str]) -> UUID:
    """Record some entries, sign the head, and remove the triggers, as an intruder could."""
    for _ in range(3):
        gateway.post("/v1/erasures", json={"subjects": ["p"]}, headers=admin)
    assert sign(services) == 1
    assert sign(services) == 0, "the log has not grown"
    with services.database.writing() as session:
        if services.database.is_sqlite:
            session.execute(text("DROP TRIGGER audit_log_refuse_update"))
            session.execute(text("DROP TRIGGER audit_log_refuse_delete"))
        else:
            session.execute(text("ALTER TABLE audit_log DISABLE TRIGGER USER"))
    return tenant_of(services, admin)


@ON_SQLITE
def test_an_unchanged_log_verifies_and_says_what_is_signed(
    gateway: TestClient, admin: dict[str, str], signed: UUID
) -> None:
    assert verified(gateway, admin) == AuditLogReport(entries=5, covered=4, heads=1)


def _change(session: Any, tenant_id: UUID) -> None:
    row = session.get_one(AuditEntry, (tenant_id, 1))
    row.entry = row.entry.replace('"subjects":1', '"subjects":2')


def _remove(session: Any, tenant_id: UUID) -> None:
    session.delete(session.get_one(AuditEntry, (tenant_id, 1)))


def _cut(session: Any, tenant_id: UUID) -> None:
    session.execute(delete(AuditEntry).where(AuditEntry.tenant_id == tenant_id, AuditEntry.sequence >= 2))


def _rewrite(session: Any, tenant_id: UUID) -> None:
    """Compute a new, consistent chain without the second entry."""
    rows = session.scalars(audit_log.entries(tenant_id).order_by(AuditEntry.sequence)).all()
    kept = [row for row in rows if row.sequence != 1]
    session.execute(delete(AuditEntry).where(AuditEntry.tenant_id == tenant_id))
    session.expunge_all()
    previous = first_hash(str(tenant_id))
    for sequence, row in enumerate(kept):
        entry = row.exported.entry.model_copy(update={"sequence": sequence}).to_bytes()
        previous = entry_hash(previous, entry)
        session.execute(
            insert(AuditEntry).values(
                tenant_id=tenant_id, sequence=sequence, at=row.at, action=row.action,
                entry=entry.decode(), hash=previous,
            )
        )  # fmt: skip


@pytest.mark.parametrize(
    ("edit", "finding"),
    [
        (_change, "entry 1 was changed"),
        (_remove, "entry 1 is missing"),
        (_cut, "not those whose head was signed|the log ends after"),
        (_rewrite, "not those whose head was signed"),
    ],
)
def test_an_edit_is_noticed(
    gateway: TestClient,
    services: Services,
    admin: dict[str, str],
    signed: UUID,
    edit: Callable[[Any, UUID], None],
    finding: str,
) -> None:
    with services.database.writing() as session:
        edit(session, signed)
    for _ in range(3):  # the log continues after the edit
        gateway.post("/v1/erasures", json={"subjects": ["p"]}, headers=admin)
    with pytest.raises(AuditLogInvalid, match=finding):
        verified(gateway, admin)


@ON_SQLITE
def test_heads_signed_by_an_unknown_key_prove_nothing(
    gateway: TestClient, admin: dict[str, str], signed: UUID
) -> None:
    from lethe.certificate.keys import KeySet, PublicKey

    stranger = SigningKey.generate()
    keys = KeySet(
        keys=(PublicKey(key_id=stranger.key_id, pem=stranger.public_pem, valid_from=0, valid_until=None),)
    )
    exported = gateway.get("/v1/audit-log", headers=admin | NDJSON).content.splitlines()
    heads = AuditLogHeads.read(gateway.get("/v1/audit-log/heads", headers=admin).content, "heads")
    with pytest.raises(AuditLogInvalid, match="cannot be verified"):
        verify_audit_log(read_entries(exported), heads, keys)


@ON_SQLITE
def test_heads_of_another_tenant_are_refused(
    gateway: TestClient, services: Services, admin: dict[str, str], signed: UUID
) -> None:
    other = key_for(services, "other", Scope.AUDIT_READ)
    sign(services)
    own = AuditLogHeads.read(gateway.get("/v1/audit-log/heads", headers=admin).content, "heads")
    theirs = AuditLogHeads.read(gateway.get("/v1/audit-log/heads", headers=other).content, "heads")
    exported = gateway.get("/v1/audit-log", headers=admin | NDJSON).content.splitlines()
    with pytest.raises(AuditLogInvalid, match="another tenant"):
        verify_audit_log(read_entries(exported), own.model_copy(update={"heads": theirs.heads}))


# Signing


def test_the_signed_heads_are_leaves_of_the_certificate_log(
    gateway: TestClient, services: Services, admin: dict[str, str]
) -> None:
    worker.sign_audit_logs(services)
    worker.sign_audit_logs(services)  # not due again
    head = gateway.get("/v1/log/checkpoint", headers=admin).text
    assert head.split("\n")[1] == "1"
    metrics = gateway.get("/metrics").text
    assert "lethe" in metrics
    with services.database.reading() as session:
        from app.gateway.metrics.collector import collect_log

        values = {family.name: family.samples[0].value for family in collect_log(session)}
    assert values == {"lethe_log_size": 1.0, "lethe_log_consistent": 1.0}


@ON_SQLITE
def test_a_rolled_back_certificate_log_is_not_continued(services: Services, admin: dict[str, str]) -> None:
    worker.sign_audit_logs(services)
    with services.database.writing() as session:
        session.execute(text("DELETE FROM log_nodes"))
        session.execute(text("UPDATE log_head SET size = 0"))
        audit_log.record(session, tenant_of(services, admin), Action.MODEL_FLUSHED, "model/m")
    sooner = services.settings.model_copy(update={"audit_log_seconds": 1e-9})
    later = Services(sooner)
    worker.sign_audit_logs(later)
    later.close()
    with services.database.reading() as session:
        assert len(session.scalars(select(AuditHead)).all()) == 1


@ON_SQLITE
def test_the_actor_of_a_person_is_kept(services: Services, admin: dict[str, str]) -> None:
    person = Actor(kind="person", id="p-5f3a", name="Ada L.")
    tenant_id = tenant_of(services, admin)
    with audit_log.acting_as(person), services.database.writing() as session:
        audit_log.record(session, tenant_id, Action.SIGNED_IN, "dashboard")
    with services.database.reading() as session:
        newest = session.scalars(audit_log.entries(tenant_id, action=Action.SIGNED_IN)).one()
    assert newest.exported.actor == person
