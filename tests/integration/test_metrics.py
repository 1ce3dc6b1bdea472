"""The metrics: who may read them, that they are right, and that they identify nobody."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete, update

from app.core.clock import new_id, now
from app.core.settings import Settings
from app.db.states import BatchState, FailureCause, HeldReason, JobState, TaskState
from app.db.tables import Batch, Certificate, Job, Lease, Task, Version, WorkerSeen
from app.gateway.main import create_app
from app.gateway.metrics import exposition, models
from app.services import Services
from tests.integration.harness import System, create_model

TOKEN = "a token for the metrics"


@pytest.fixture
def settings(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(exposition, "CACHE_SECONDS", 0.0)
    monkeypatch.setattr(exposition, "CACHE_FACTOR", 0.0)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    return settings.model_copy(update={"metrics_token_file": tmp_path / "token"})


class Scrape:
    def __init__(self, gateway: TestClient) -> None:
        answer = gateway.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 200
        self.text = answer.text

    def __call__(self, name: str, **labels: str) -> float | None:
        for found, inner, value in re.findall(r"(?m)^(\w+)(?:\{(.*)\})? (\S+)$", self.text):
            if found == name and dict(re.findall(r'(\w+)="([^"]*)"', inner)).items() >= labels.items():
                return float(value)
        return None


@pytest.mark.parametrize("given", [None, "Bearer wrong", f"Basic {TOKEN}", "Bearer", f"Bearer {TOKEN}x"])
def test_only_the_metrics_token_gives_access(
    gateway: TestClient, admin: dict[str, str], given: str | None
) -> None:
    for headers in ({} if given is None else {"Authorization": given}, admin):
        answer = gateway.get("/metrics", headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json")


def test_without_a_token_only_http_requests_are_reported(settings: Settings, admin: dict[str, str]) -> None:
    with TestClient(create_app(settings.model_copy(update={"metrics_token_file": None}))) as gateway:
        create_model(gateway, admin, "canary-model")
        text = gateway.get("/metrics").text
    assert {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")} <= {
        "lethe_http_requests_total",
        "lethe_http_requests_created",
        "lethe_http_request_seconds_bucket",
        "lethe_http_request_seconds_count",
        "lethe_http_request_seconds_sum",
        "lethe_http_request_seconds_created",
    }
    assert "canary" not in text


def test_requests_by_time_to_their_deadline(
    gateway: TestClient, admin: dict[str, str], services: Services
) -> None:
    create_model(gateway, admin)
    ages = {"overdue": 40, "1d": 30, "7d": 25, "30d": 3}
    for due, days in ages.items():
        body = {
            "subjects": [f"canary-{due}"],
            "received_at": (now() - timedelta(days=days, hours=10)).isoformat(),
        }
        assert gateway.post("/v1/erasures", json=body, headers=admin).status_code == 202
    scrape = Scrape(gateway)
    counts = {due: scrape("lethe_requests_open", due=due) for due in models.DUE}
    assert sum(value or 0 for value in counts.values()) == 4
    assert (counts["overdue"], counts["later"]) == (1, 0)
    assert counts == {due: scrape("lethe_model_requests_open", model="toy", due=due) for due in models.DUE}
    assert scrape("lethe_requests_failed") == 0
    assert "canary" not in scrape.text
    with services.database.writing() as session:
        session.execute(update(Task).values(state=TaskState.COMPLETED).where(Task.due_at < now()))
        session.execute(update(Task).values(state=TaskState.FAILED).where(Task.due_at > now()))
    scrape = Scrape(gateway)
    assert (scrape("lethe_requests_open", due="overdue"), scrape("lethe_requests_failed")) == (0, 3)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_release_changes_durations_budget_log_and_counts(
    gateway: TestClient, admin: dict[str, str], system: System, services: Services
) -> None:
    create_model(gateway, admin)
    system.settle()
    assert Scrape(gateway)("lethe_model_epsilon_spent", model="toy") == 0
    body = {"subjects": ["s1", "s2", "nobody"]}
    asked = gateway.post("/v1/erasures", json=body, headers=admin).headers["Location"]
    system.settle()
    assert gateway.get(asked, headers=admin).json()["state"] == "completed"
    scrape = Scrape(gateway)
    ledger = gateway.get("/v1/models/toy/ledger", headers=admin).json()
    assert scrape("lethe_model_epsilon_spent", model="toy") == pytest.approx(ledger["running_epsilon"])
    assert scrape("lethe_model_epsilon_cap", model="toy") == ledger["lifetime_epsilon"]
    assert scrape("lethe_releases_total", mechanism="tr") == 1
    assert scrape("lethe_batches", state="completed") == scrape("lethe_recent_batches") == 1
    for stage in ("wait", "resolve", "solve", "certify", "release", "purge", "total"):
        assert scrape("lethe_recent_batch_stage_seconds", stage=stage, quantile="0.5") is not None, stage
    assert (scrape("lethe_log_size"), scrape("lethe_log_consistent")) == (2, 1), (
        "a certificate, and a statement that no data was found"
    )
    assert gateway.post(f"{asked}/receipts/acknowledge", headers=admin).status_code == 200
    assert Scrape(gateway)("lethe_log_consistent") == 1, "the statement is deleted, its log entry stays"
    assert scrape("lethe_http_requests_total", route="/v1/erasures", status="202") == 1
    with services.database.writing() as session:  # changes the database without the service
        session.execute(update(Version).values(certificate_id=None))
        session.execute(delete(Certificate))
    assert Scrape(gateway)("lethe_log_consistent") == 0


def test_workers_dispatcher_and_jobs(gateway: TestClient, admin: dict[str, str], services: Services) -> None:
    quiet = Scrape(gateway)
    assert [
        quiet(f"lethe_{name}") for name in ("workers", "dispatcher_active", "attempt_silence_seconds")
    ] == [
        0,
        0,
        0,
    ]
    assert quiet("lethe_part_up", part="database") == quiet("lethe_part_up", part="redis") == 1
    assert quiet("lethe_queue_messages") == quiet("lethe_jobs_delayed_seconds") == 0
    create_model(gateway, admin)
    with services.database.writing() as session:
        session.add(WorkerSeen(name="w", seen_at=now()))
        session.add(Lease(name="dispatcher", holder=new_id(), expires_at=now() + timedelta(seconds=9)))
        session.execute(
            update(Job).values(
                state=JobState.RUNNING,
                heartbeat_at=now() - timedelta(seconds=77),
                error="not even one row fits into memory",
                failure_cause=FailureCause.OUT_OF_MEMORY,
                faulty_since=now() - timedelta(seconds=3333),
            )
        )
    busy = Scrape(gateway)
    assert busy("lethe_workers") == busy("lethe_dispatcher_active") == 1
    assert 77 <= (busy("lethe_attempt_silence_seconds") or 0) < 100
    assert 3333 <= (busy("lethe_jobs_delayed_seconds") or 0) < 3400
    assert busy("lethe_jobs", kind="register", state="running") == 1
    assert busy("lethe_jobs_failing", kind="register", state="running", reason="out_of_memory") == 1


def test_held_batches_by_reason(gateway: TestClient, admin: dict[str, str], services: Services) -> None:
    create_model(gateway, admin)
    with services.database.writing() as session:
        job = session.query(Job).one()
        session.add(
            Batch(
                model_id=job.model_id,
                job_id=job.id,
                state=BatchState.HELD,
                held_reason=HeldReason.BUDGET,
                sealed_because="count",
                policy={},
                subjects=1,
            )
        )
    scrape = Scrape(gateway)
    assert scrape("lethe_batches_held", reason="budget") == scrape("lethe_batches", state="held") == 1
    assert scrape("lethe_batches_held", reason="quality_gate") == 0


def test_a_part_that_is_down_is_reported_without_an_error(settings: Settings) -> None:
    away = settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})
    with TestClient(create_app(away)) as gateway:
        scrape = Scrape(gateway)
    assert (scrape("lethe_part_up", part="redis"), scrape("lethe_part_up", part="database")) == (0, 1)
    assert scrape("lethe_queue_messages") is None


def test_models_beyond_the_limit_are_counted_but_not_named(
    gateway: TestClient, admin: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "MAX_MODELS", 1)
    for name in ("first", "second"):
        create_model(gateway, admin, name)
    scrape = Scrape(gateway)
    assert (scrape("lethe_models"), scrape("lethe_models_not_shown")) == (2, 1)
    assert scrape("lethe_model_epsilon_cap", model="first") == 8
    assert 'model="second"' not in scrape.text


def test_an_unknown_method_creates_no_series(gateway: TestClient) -> None:
    gateway.request("CANARY", "/healthz")
    text = Scrape(gateway).text
    assert "CANARY" not in text
    assert 'method="other"' in text
