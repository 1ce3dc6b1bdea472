"""Forms of the dashboard without a browser: tokens, scopes, mistakes, CSV and the monthly report."""

import csv
import io
import json
import re
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from app.core.clock import new_id, now
from app.db.audit_log import AuditEntry
from app.db.states import TaskState
from app.db.tables import BatchEvent, Erasure, Task
from app.dispatcher.loop import Dispatcher
from app.gateway.auth.scopes import Scope
from app.gateway.dashboard.endpoints import PAGE_MODULES
from app.gateway.dashboard.multipart import MAX_FIELDS_BYTES
from app.services import Services
from tests.integration.dashboard import Visitor
from tests.integration.harness import MANIFEST, dataset
from tests.integration.model_api import Api, registered, work

SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
READ_ONLY = (Scope.ERASURES_READ, Scope.MODELS_READ, Scope.CERTIFICATES_READ, Scope.AUDIT_READ)


@pytest.fixture
def visitor(gateway: TestClient, services: Services) -> Visitor:
    return Visitor(gateway, services, "tenant").signed_in()


def upload(visitor: Visitor, path: str, fields: dict[str, str], file: tuple[str, bytes] | None = None) -> Any:
    """Send a form as a browser does: the fields first, then the file, which may be missing."""
    name, content = file or ("", b"")
    token = {"form_token": visitor.token("/")}
    return visitor.client.post(path, data=token | fields, files={"file": (name, content)})


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@SQLITE
def test_every_form_needs_its_scope_and_its_token(
    gateway: TestClient, services: Services, visitor: Visitor
) -> None:
    """A form that is added without either fails here."""
    reader = Visitor(gateway, services, "tenant", *READ_ONLY).signed_in()
    ids = {"name": "toy", "action": "retry"}
    checked = 0
    for route in [route for module in PAGE_MODULES for route in module.router.routes]:
        if "POST" not in route.methods or route.path in ("/login", "/logout"):
            continue
        path = re.sub(r"\{(\w+)\}", lambda found: ids.get(found.group(1), str(new_id())), route.path)
        token = {"form_token": reader.token("/")}
        assert reader.send(path, token).status_code == 403, path
        wrong = {"form_token": "0" * 64}
        for answer in (
            visitor.send(path, wrong),
            visitor.client.post(path, data=wrong, files={"file": ("a.csv", b"subject_id\na\n")}),
        ):
            assert answer.status_code in (403, 415), path
        checked += 1
    assert checked == 9
    assert visitor.client.get("/v1/erasures", headers=visitor.headers).json()["items"] == []


@SQLITE
def test_a_form_that_is_sent_twice_records_one_request(visitor: Visitor) -> None:
    visitor.client.post("/v1/models", json={"name": "toy", "manifest": MANIFEST}, headers=visitor.headers)
    key = re.search(r'name="key" value="([\w-]+)"', visitor.get("/erasures/new").text)
    assert key is not None
    fields = {"subjects": "ada\r\nbob\r\n\r\n", "reference": "case-1", "key": key[1]}
    first, second = (upload(visitor, "/erasures/new", fields) for _ in range(2))
    assert first.status_code == second.status_code == 303
    assert first.headers["location"] == second.headers["location"]
    (found,) = visitor.client.get("/v1/erasures", headers=visitor.headers).json()["items"]
    assert (found["subjects"], found["reference"]) == (2, "case-1")


@SQLITE
@pytest.mark.parametrize(
    ("fields", "file", "message"),
    [
        ({}, None, "Enter at least one identifier"),
        ({"subjects": "x" * 257}, None, "Line 1 is not an identifier"),
        ({"subjects": "a", "received_on": "2026-02-30"}, None, "not a day of the calendar"),
        ({"subjects": "a", "received_on": "2999-01-01"}, None, "must lie in the past"),
        ({"subjects": "a", "reference": "r" * 201}, None, "Your reference must have at most 200 characters"),
        ({"subjects": "a", "models": "missing"}, None, "At least one of the models does not exist"),
        ({}, ("a.csv", b"name\na\n"), "must name the column subject_id"),
        ({}, ("a.csv", b"subject_id\n"), "contains no subject"),
    ],
)
def test_a_mistake_is_explained_and_nothing_recorded(
    visitor: Visitor, fields: dict[str, str], file: tuple[str, bytes] | None, message: str
) -> None:
    answer = upload(visitor, "/erasures/new", {"reason": "kept text"} | fields, file)
    assert answer.status_code == 422
    assert 'role="alert"' in answer.text
    assert message in answer.text
    assert "kept text" in answer.text
    assert visitor.client.get("/v1/erasures", headers=visitor.headers).json()["items"] == []


@SQLITE
def test_a_form_that_is_too_large_or_damaged_is_refused(visitor: Visitor) -> None:
    large = upload(visitor, "/erasures/new", {"subjects": "a\n" * (MAX_FIELDS_BYTES // 2 + 1)})
    assert large.status_code == 413
    head = {"Content-Type": "multipart/form-data; boundary=x"}
    for body in (
        b"",
        b"--x\r\nbroken",
        b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\n\xff\r\n--x--",
    ):
        assert visitor.client.post("/erasures/new", content=body, headers=head).status_code in (403, 422)


@SQLITE
def test_a_model_is_created_from_toml_or_json_and_its_files_are_stored(visitor: Visitor) -> None:
    for name, text in (("one", json.dumps(MANIFEST)), ("two", json.dumps(MANIFEST, indent=1))):
        made = upload(visitor, "/register", {"name": name, "manifest": ""}, ("manifest.json", text.encode()))
        assert made.headers["location"] == f"/models/{name}"
    again = upload(visitor, "/register", {"name": "one", "manifest": json.dumps(MANIFEST)})
    assert again.status_code == 409
    wrong = upload(visitor, "/register", {"name": "No", "manifest": "family = "})
    assert wrong.status_code == 422
    assert "neither TOML nor JSON" in wrong.text
    assert "lower-case letters" in wrong.text
    stored = upload(visitor, "/models/one/files", {"kind": "dataset", "part": "p1"}, ("rows", dataset()))
    assert stored.status_code == 303
    assert "Training rows (Parquet): p1" in visitor.get("/models/one").text
    for fields, file in (({"kind": "dataset"}, None), ({"kind": "other"}, ("rows", b"x"))):
        assert upload(visitor, "/models/one/files", fields, file).status_code == 422
    assert visitor.send("/models/two/validate", {"form_token": visitor.token("/")}).status_code == 409


@SQLITE
def test_search_shows_a_tenant_only_its_own(
    gateway: TestClient, services: Services, visitor: Visitor
) -> None:
    body = {"subjects": ["a"], "reference": "case-1"}
    made = visitor.client.post("/v1/erasures", json=body, headers=visitor.headers).json()
    other = Visitor(gateway, services, "other").signed_in()
    nobody = Visitor(gateway, services, "tenant", Scope.WEBHOOKS_ADMIN).signed_in()
    for text in ("case-1", made["id"]):
        assert visitor.get(f"/search?q={text}").headers["location"] == f"/erasures/{made['id']}"
        for stranger in (other, nobody):
            assert "Nothing was found" in stranger.get(f"/search?q={text}").text


@SQLITE
def test_the_export_has_every_request_and_runs_no_formula(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.gateway.dashboard.erasure_export.ROWS_PER_READ", 2)
    for reference in ("=1+1", "b", "c", "d", "e"):
        body = {"subjects": ["a"], "reference": reference, "jurisdiction": "GDPR"}
        visitor.client.post("/v1/erasures", json=body, headers=visitor.headers)
    answer = visitor.get("/erasures/export.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = read_csv(answer.text)
    assert [row["reference"] for row in rows] == ["e", "d", "c", "b", "'=1+1"]
    assert rows[0]["state"] == "completed", "without a model there is nothing to do"
    assert rows[0]["late_days"] == "0"
    assert [row["reference"] for row in read_csv(visitor.get("/erasures/export.csv?q=c").text)] == ["c"]


class Office:
    """A tenant whose requests were answered in time, late, or not at all."""

    def __init__(self, gateway: TestClient, services: Services) -> None:
        self.visitor = Visitor(gateway, services, "office").signed_in()
        self.services = services
        registered(Api(gateway, self.visitor.headers), services)
        self.in_time = self.ask("s1", "s2")
        work(services)
        self.late = self.ask("s3", "s4", received_at=(now() - timedelta(days=20)).isoformat())
        work(services)
        self.open = self.ask("s5")
        with services.database.writing() as session:
            due = now() - timedelta(days=2.5)
            for erasure in (self.late, self.open):
                session.execute(update(Erasure).where(Erasure.id == UUID(erasure)).values(due_at=due))
                session.execute(update(Task).where(Task.erasure_id == UUID(erasure)).values(due_at=due))
                entered = {"created_at": due - timedelta(days=1)}
                session.execute(update(Erasure).where(Erasure.id == UUID(erasure)).values(entered))

    def ask(self, *subjects: str, **details: Any) -> str:
        body = {"subjects": subjects, "reference": "secret reference", **details}
        answer = self.visitor.client.post("/v1/erasures", json=body, headers=self.visitor.headers)
        return str(answer.json()["id"])


def test_a_late_request_says_so_everywhere(gateway: TestClient, services: Services) -> None:
    office = Office(gateway, services)
    visitor = office.visitor
    shown = visitor.client.get(f"/v1/erasures/{office.late}", headers=visitor.headers).json()
    assert shown["completed_at"] is not None
    assert (shown["late_days"], shown["overdue"]) == (3, False)
    waiting = visitor.client.get(f"/v1/erasures/{office.open}", headers=visitor.headers).json()
    assert (waiting["completed_at"], waiting["late_days"], waiting["overdue"]) == (None, 3, True)
    for path in ("/erasures", f"/erasures/{office.late}"):
        assert "late by 3 days" in visitor.get(path).text
    assert "overdue by 3 days" in visitor.get(f"/erasures/{office.open}").text
    assert "late by" not in visitor.get(f"/erasures/{office.in_time}").text
    rows = {row["request"]: row for row in read_csv(visitor.get("/erasures/export.csv").text)}
    assert [rows[e]["late_days"] for e in (office.in_time, office.late, office.open)] == ["0", "3", "3"]
    _check_report(office, gateway, services)
    _check_letter(office)


def _check_report(office: Office, gateway: TestClient, services: Services) -> None:
    visitor, month = office.visitor, f"{now():%Y-%m}"
    page = visitor.get(f"/reports/{month}").text
    assert "50 % of the 2 completed requests met the deadline." in page
    assert "Its batch started after the deadline." in page
    assert "toy, version 2" in page
    assert "secret reference" not in page
    figures = {
        (row["section"], row["item"]): row for row in read_csv(visitor.get(f"/reports/{month}.csv").text)
    }
    assert figures["requests", "completed"]["value"] == "2"
    assert figures["requests", "completed in time"]["value"] == "1"
    assert figures["late", office.late]["value"] == "3"
    assert figures["overdue", office.open]["note"] == "It waited for its batch."
    assert figures["release", "toy version 1"]["value"] == "1.0"
    other = Visitor(gateway, services, "stranger").signed_in().get(f"/reports/{month}").text
    assert "No request was completed in this month." in other
    assert "toy" not in other
    reader = (
        Visitor(gateway, services, "office", Scope.ERASURES_READ).signed_in().get(f"/reports/{month}").text
    )
    assert "<code>certificates:read</code>" in reader
    assert "version 2" not in reader
    for wrong in ("2026-13", "2999-01", "x", "2026-1"):
        assert visitor.get(f"/reports/{wrong}").status_code == 404


def _check_letter(office: Office) -> None:
    visitor = office.visitor
    letter = visitor.get(f"/erasures/{office.late}/letter/1").text
    assert "3 days after the deadline" in letter
    assert "Version 2 is the first without you." in letter
    assert visitor.get(f"/erasures/{office.late}/letter/2").status_code == 404
    assert visitor.get(f"/erasures/{office.open}/letter/0").status_code == 409
    token = visitor.token("/")
    assert visitor.send(f"/erasures/{office.late}/acknowledge", {"form_token": token}).status_code == 303
    assert visitor.get(f"/erasures/{office.late}/letter/1").status_code == 410
    assert visitor.send(f"/erasures/{office.open}/acknowledge", {"form_token": token}).status_code == 409


@SQLITE
def test_an_outcome_is_shown_only_after_the_purge(gateway: TestClient, services: Services) -> None:
    """A worker writes outcomes before it publishes. Nobody sees them before the task is completed."""
    office = Office(gateway, services)
    with services.database.writing() as session:
        task = update(Task).where(Task.erasure_id == UUID(office.late))
        session.execute(task.values(state=TaskState.RUNNING, near_matches=2))
    shown = office.visitor.client.get(f"/v1/erasures/{office.late}", headers=office.visitor.headers).json()
    assert (shown["tasks"][0]["outcomes"], shown["tasks"][0]["near_matches"]) == ({}, 0)
    assert shown["completed_at"] is None
    page = office.visitor.get(f"/erasures/{office.late}").text
    assert "erased from the model" not in page
    assert f"/erasures/{office.late}/letter" not in page


@SQLITE
def test_the_history_names_who_decided_and_why(gateway: TestClient, services: Services) -> None:
    visitor = Visitor(gateway, services, "tenant").signed_in()
    api = Api(gateway, visitor.headers)
    registered(api, services)
    api.erase("s1", "s2")
    Dispatcher(services).seal_due()
    (batch,) = gateway.get("/v1/batches", headers=visitor.headers).json()["items"]
    token = visitor.token("/")
    assert visitor.send(f"/batches/{batch['id']}/cancel", {"form_token": token}).status_code == 303
    sent = visitor.send(f"/batches/{batch['id']}/retry", {"form_token": token, "reason": " A new\nattempt "})
    assert sent.status_code == 303
    with services.database.reading() as session:
        event = session.scalars(select(BatchEvent).where(BatchEvent.kind == "retry")).one()
        recorded = [row.exported for row in session.scalars(select(AuditEntry).order_by(AuditEntry.sequence))]
    assert event.data == {"by": "test", "why": "A new attempt"}
    assert [entry.action for entry in recorded[-2:]] == ["batch.cancelled", "batch.retried"]
    assert (recorded[-1].actor.kind, recorded[-1].actor.name) == ("api-key", "test")
    assert recorded[-1].details["reason"] == "in the history of the batch"
    assert "A new attempt" not in str(recorded)
    assert "test tried the batch again: “A new attempt”" in visitor.get(f"/batches/{batch['id']}").text
    approve = visitor.send(f"/batches/{batch['id']}/approve", {"form_token": token})
    assert approve.status_code == 422, "a decision about a draw needs a reason"
