"""Evidence and reports are deleted when the days of the policy are over, and answers say so."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, update

from app.core.clock import new_id, now
from app.db import transitions
from app.db.retention import read_evidence
from app.db.states import JobKind, JobState, ReportKind
from app.db.tables import Batch, Certificate, Job, Model, Report, Tenant
from app.dispatcher import retention
from app.dispatcher.loop import Dispatcher
from app.services import Services
from lethe.certificate.verify import verify
from tests.integration.dashboard import Visitor
from tests.integration.database_files import database_bytes
from tests.integration.harness import MANIFEST, Clocks
from tests.integration.model_api import Api, Headers, registered, work

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
SECRET = "a figure without noise"
KINDS = {
    ReportKind.EVALUATION: "/v1/models/toy/evaluations/{}",
    ReportKind.ADVICE: "/v1/models/toy/advice/{}",
    ReportKind.AUDIT: "/v1/certificates/{}/audits/{}",
    ReportKind.MEMBERSHIP: "/v1/certificates/{}/membership",
}
Release = tuple[Api, str]


@pytest.fixture
def released(gateway: TestClient, admin: Headers, services: Services) -> Release:
    """A model after one erasure, and the id of its certificate."""
    api = registered(Api(gateway, admin), services)
    api.erase("s1", "s2")
    work(services)
    return api, get(api, "/v1/certificates")["items"][0]["id"]


def get(api: Api, path: str, status: int = 200) -> Any:
    answer = api.gateway.get(path, headers=api.headers)
    assert answer.status_code == status, answer.text
    return answer.json()


def add_reports(services: Services, certificate_id: str | None = None) -> dict[ReportKind, str]:
    """Add a completed report of each kind, and return their ids."""
    ids = {}
    with services.database.writing() as session:
        model = session.scalars(select(Model)).one()
        for kind in KINDS:
            job = transitions.create_job(session, JobKind.EVALUATE, model.id, now())
            job.state, job.finished_at = JobState.DONE, now()
            report = Report(kind=kind, model_id=model.id, version=1, job_id=job.id, result={"note": SECRET})
            report.id, report.completed_at = new_id(), now()
            if certificate_id and kind in (ReportKind.AUDIT, ReportKind.MEMBERSHIP):
                report.certificate_id = session.scalars(select(Certificate.id)).one()
            session.add(report)
            ids[kind] = str(report.id)
    return ids


def pass_days(services: Services, clocks: Clocks, dispatcher: Dispatcher, days: float) -> None:
    """Let time pass in hours, as the expiry clock expects, and look for expired things at the end."""
    dispatcher.forget_expired()
    clocks.pass_time(timedelta(days=days))
    dispatcher.forget_expired()


def pieces_left(services: Services, content: bytes) -> int:
    """Return how many pieces of this content are in the files of the database."""
    stored = database_bytes(services)
    return sum(content[start : start + 64] in stored for start in range(0, len(content) - 63, 64))


def test_evidence_is_deleted_when_its_days_are_over_and_the_certificate_verifies_without_it(
    released: Release, services: Services
) -> None:
    api, certificate_id = released
    where = f"/v1/certificates/{certificate_id}"
    evidence = api.gateway.get(f"{where}/evidence", headers=api.headers).content
    clocks = Clocks()
    dispatcher = clocks.dispatcher(services)
    pass_days(services, clocks, dispatcher, 729.9)
    assert pieces_left(services, evidence) > 5
    assert get(api, "/v1/certificates")["items"][0]["evidence_deleted_at"] is None
    pass_days(services, clocks, dispatcher, 0.2)
    gone = get(api, f"{where}/evidence", 410)["detail"]
    assert gone == (
        f"The evidence was deleted on {clocks.wall:%Y-%m-%d}, as the policy of the model says "
        "(evidence_days). The certificate itself is kept and still verifies."
    )
    assert get(api, "/v1/certificates")["items"][0]["evidence_deleted_at"] is not None
    here = get(api, f"{where}/verify")
    (line,) = [line for line in here["lines"] if line["number"] == 8]
    assert here["verified"]
    assert line["ok"] is None
    assert f"the evidence was deleted on {clocks.wall:%Y-%m-%d}" in line["detail"]
    offline = verify(get(api, f"{where}/pack"))
    assert offline.verified
    assert [line.detail for line in offline.lines if line.number == 8] == [
        "not checked: no evidence record was given"
    ]
    assert pieces_left(services, evidence) == 0


def test_pages_say_that_evidence_was_deleted(released: Release, services: Services) -> None:
    api, certificate_id = released
    expire_everything(services)
    with services.database.reading() as session:
        tenant = session.scalars(select(Tenant.name)).one()
    visitor = Visitor(api.gateway, services, tenant).signed_in()
    model = visitor.get("/models/toy").text
    assert "their evidence was deleted, as the policy says" in model
    assert "The evidence of certificates is deleted after 730 days" in model
    assert "the evidence was deleted on" in visitor.get(f"/certificates/{certificate_id}").text


def expire_everything(services: Services) -> None:
    """Let the longest retention pass."""
    clocks = Clocks()
    pass_days(services, clocks, clocks.dispatcher(services), 4000)


def test_figures_of_reports_are_deleted_when_their_days_are_over(
    released: Release, services: Services
) -> None:
    api, certificate_id = released
    ids = add_reports(services, certificate_id)
    clocks = Clocks()
    dispatcher = clocks.dispatcher(services)
    pass_days(services, clocks, dispatcher, 364.9)
    assert SECRET.encode() in database_bytes(services)
    with services.database.reading() as session:
        assert session.scalar(select(func.count(Report.deleted_at))) == 0
    pass_days(services, clocks, dispatcher, 0.2)
    for kind, path in KINDS.items():
        numbers = [certificate_id, ids[kind]] if "certificates" in path else [ids[kind]]
        detail = get(api, path.format(*numbers), 410)["detail"]
        assert f"were deleted on {clocks.wall:%Y-%m-%d}, as the policy of the model says" in detail
        assert ("Start a new one" in detail) == (kind != ReportKind.MEMBERSHIP)
    (listed,) = get(api, "/v1/models/toy/evaluations")["items"]
    assert (listed["state"], listed["result"]) == ("deleted", None)
    assert listed["deleted_at"] is not None
    assert SECRET.encode() not in database_bytes(services)


def test_the_audit_log_says_what_was_deleted(released: Release, services: Services) -> None:
    api, certificate_id = released
    add_reports(services, certificate_id)
    expire_everything(services)
    entries = get(api, "/v1/audit-log?limit=2")["items"]
    assert {(entry["action"], entry["target"]) for entry in entries} == {
        ("evidence.deleted", "model/toy"),
        ("reports.deleted", "model/toy"),
    }
    assert {entry["actor"]["kind"] for entry in entries} == {"system"}
    assert [certificate_id] in [entry["details"]["ids"] for entry in entries]


def test_the_policy_decides_and_a_change_applies_to_what_is_stored(
    released: Release, services: Services
) -> None:
    api, certificate_id = released
    api.call("PATCH", "/toy", json={"policy": {"evidence_days": 10, "report_days": 5}})
    add_reports(services, certificate_id)
    clocks = Clocks()
    dispatcher = clocks.dispatcher(services)
    pass_days(services, clocks, dispatcher, 6)
    get(api, f"/v1/certificates/{certificate_id}/membership", 410)
    get(api, f"/v1/certificates/{certificate_id}/evidence")
    pass_days(services, clocks, dispatcher, 5)
    get(api, f"/v1/certificates/{certificate_id}/evidence", 410)


@pytest.mark.parametrize("field", ["evidence_days", "report_days"])
def test_a_period_is_between_a_day_and_ten_years(field: str, gateway: TestClient, admin: Headers) -> None:
    api = Api(gateway, admin)
    for days in (0, 3654):
        body = {"name": "toy", "manifest": MANIFEST | {"policy": {field: days}}}
        problem = api.call("POST", "", 422, json=body)
        assert field in str(problem["errors"])


def test_a_clock_that_jumps_ahead_deletes_no_evidence(released: Release, services: Services) -> None:
    clocks = Clocks()
    dispatcher = clocks.dispatcher(services)
    dispatcher.forget_expired()
    clocks.wall = clocks.database = clocks.wall + timedelta(days=4000)
    clocks.pass_time(timedelta(hours=2))
    dispatcher.forget_expired()
    with services.database.reading() as session:
        (certificate,) = session.scalars(select(Certificate))
    assert read_evidence(certificate) is not None


def test_class_drift_is_deleted_with_the_evidence(released: Release, services: Services) -> None:
    with services.database.writing() as session:
        session.execute(update(Batch).values(shift={"kl_retained_original": 0.1}))
    expire_everything(services)
    with services.database.reading() as session:
        assert session.scalars(select(Batch.shift)).all() == [None]


def test_a_step_deletes_a_limited_number_and_the_next_one_goes_on(
    released: Release, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "DELETIONS", 3)
    for _ in range(2):
        add_reports(services)
    with services.database.writing() as session:
        session.execute(update(Job).values(finished_at=now()))
    sweep = retention.RetentionSweep(services.database, lambda: 0.0)
    later, left = now() + timedelta(days=400), []
    for _ in range(3):
        sweep.step(later)
        with services.database.reading() as session:
            left.append(session.scalar(select(func.count()).where(Report.deleted_at.is_(None))))
    assert left == [5, 2, 0]


def test_every_model_is_looked_at_once_an_hour(
    gateway: TestClient, admin: Headers, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MODELS", 2)
    api = Api(gateway, admin)
    for name in ("a", "b", "c"):
        api.call("POST", "", 201, json={"name": name, "manifest": MANIFEST})
    seconds = [0.0]
    looked_at: list[UUID] = []
    sweep = retention.RetentionSweep(services.database, lambda: seconds[0])

    def note(model_id: UUID, _: object) -> int:
        looked_at.append(model_id)
        return 0

    monkeypatch.setattr(sweep, "_delete_expired", note)
    for moment in (0.0, 0.2, 0.4, 3599.0):
        seconds[0] = moment
        sweep.step(now())
    assert len(looked_at) == len(set(looked_at)) == 3
    seconds[0] = 3601.0
    sweep.step(now())
    assert len(looked_at) == 5
