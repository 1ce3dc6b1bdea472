"""Evaluations and audits are requested, measured in a job, and never delay an erasure."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.core.clock import new_id, now
from app.db import transitions
from app.db.states import FailureCause, JobKind, JobState, PartRole
from app.db.tables import ApiKey, Certificate, DatasetPart, Job, Tenant
from app.gateway.auth.scopes import Scope
from app.services import Services
from tests.integration.harness import MANIFEST, dataset, key_for, parquet
from tests.integration.model_api import Api, Headers, work
from worker.batch import release, run
from worker.engine import noise
from worker.evaluation import replay
from worker.fitting import fit, published_weights
from worker.jobs import JOBS


@pytest.fixture
def api(gateway: TestClient, admin: Headers) -> Api:
    return Api(gateway, admin)


@pytest.fixture
def ready(api: Api, services: Services) -> Api:
    api.create()
    return registered(api, services, dataset(), dataset(rows=90, subjects=40, seed=8))


def registered(api: Api, services: Services, part: bytes, holdout: bytes | None = None) -> Api:
    api.put("dataset/part0", part)
    if holdout is not None:
        api.put("holdout/h0", holdout)
    api.call("POST", "/toy/validate", 202)
    work(services)
    assert api.call("GET", "/toy")["state"] == "ready"
    return api


def ask(api: Api, path: str, status: int = 202, headers: Headers | None = None) -> str:
    answer = api.gateway.post(path, headers=headers or api.headers)
    assert answer.status_code == status, answer.text
    if status == 202:
        assert answer.json()["state"] == "waiting"
        assert answer.headers["Location"] == f"{path}/{answer.json()['id']}"
    return answer.headers.get("Location") or answer.json()["detail"]


def get(api: Api, path: str) -> Any:
    answer = api.gateway.get(path, headers=api.headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def erase(api: Api, services: Services, *subjects: str) -> str:
    """Erase people and return the path of the certificate."""
    asked = api.gateway.post("/v1/erasures", json={"subjects": subjects}, headers=api.headers)
    work(services)
    task = get(api, asked.headers["Location"])["tasks"][0]
    assert task["state"] == "completed"
    return f"/v1/certificates/{task['certificate_id']}"


EVALUATIONS = "/v1/models/toy/evaluations"


def test_an_evaluation_compares_the_version_with_retraining_and_leaves_nothing_behind(
    ready: Api, services: Services, capfd: pytest.CaptureFixture[str]
) -> None:
    first = ask(ready, EVALUATIONS)
    assert "in progress" in ask(ready, EVALUATIONS, 409)
    work(services)
    original = get(ready, first)
    assert (original["state"], original["version"], original["result"]["shift"]) == ("completed", 0, None)
    assert original["result"]["seconds"]["current"] is None
    assert original["result"]["delta_f1"]["points"] == 0, "version 0 was trained by the same service"

    erase(ready, services, *(f"s{i}" for i in range(20)))
    files = services.storage.list("attempts") + services.storage.list("datasets")
    second = ask(ready, EVALUATIONS)
    work(services)
    found = get(ready, second)
    result = found["result"]
    assert (found["state"], found["version"], found["error"], result["rows"]) == ("completed", 1, None, 40)
    assert result["current"]["micro_f1"] > 0.8
    assert result["retrained"]["loss"] < 0.8
    assert result["current"]["rmse"] is None
    points = 100 * (result["retrained"]["micro_f1"] - result["current"]["micro_f1"])
    assert result["delta_f1"]["points"] == pytest.approx(points)
    assert result["delta_f1"]["low"] <= points <= result["delta_f1"]["high"]
    assert result["seconds"]["current"] > 0
    assert result["seconds"]["retrained"] > 0
    assert result["shift"]["kl_retained_original"] > 0
    assert [item["id"] for item in get(ready, EVALUATIONS)["items"]] == [found["id"]], (
        "the first knew the erased"
    )

    assert services.storage.list("attempts") + services.storage.list("datasets") == files
    assert not list((services.settings.data_dir / "scratch").glob("*/"))
    public = "".join(capfd.readouterr()) + ready.gateway.get("/metrics").text
    assert str(result["current"]["loss"]) not in public


def test_ridge_is_evaluated_by_rmse(api: Api, services: Services) -> None:
    generator = np.random.default_rng(5)
    features = generator.normal(size=(150, 6))
    targets = features @ np.arange(6.0) + 0.1 * generator.normal(size=150)
    subjects = [f"s{i}" for i in range(150)]
    api.create(family="ridge", classes=None)
    registered(
        api,
        services,
        parquet(subjects[:100], targets[:100], features[:100]),
        parquet(subjects[100:], targets[100:], features[100:]),
    )
    where = ask(api, EVALUATIONS)
    work(services)
    result = get(api, where)["result"]
    assert result["current"]["r_squared"] > 0.9
    assert result["current"]["rmse"] == pytest.approx(result["retrained"]["rmse"], rel=1e-3)
    assert (result["delta_f1"], result["current"]["micro_f1"]) == (None, None)


def test_what_cannot_be_evaluated_or_audited_is_refused_with_the_reason(api: Api, services: Services) -> None:
    api.create()
    assert "uploading" in ask(api, EVALUATIONS, 409)
    registered(api, services, dataset())
    assert "no holdout" in ask(api, EVALUATIONS, 409)
    first = erase(api, services, "s1", "s2")
    erase(api, services, "s3", "s4")
    assert "superseded" in ask(api, f"{first}/audits", 409)
    ask(api, f"/v1/certificates/{new_id()}/audits", 404)
    with services.database.writing() as session:
        last = session.scalars(select(Certificate).order_by(Certificate.chain_index.desc())).first()
        assert last is not None
        discarded = Certificate(
            id=new_id(),
            model_id=last.model_id,
            chain_index=last.chain_index + 1,
            mechanism="discarded",
            envelope=last.envelope,
            digest="0" * 64,
            evidence=last.evidence,
            log_index=last.log_index + 1,
        )
        session.add(discarded)
    assert "discarded" in ask(api, f"/v1/certificates/{discarded.id}/audits", 409)


@pytest.fixture
def no_false_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the level of audits, which is the probability that an honest release is accused by chance."""
    monkeypatch.setattr(replay, "audit", partial(replay.audit, level=1e-12))


@pytest.mark.usefixtures("no_false_alarms")
@pytest.mark.parametrize("method", ["tr", "retrain"])
def test_an_audit_finds_an_honest_release_consistent(method: str, api: Api, services: Services) -> None:
    api.create(policy=MANIFEST["policy"] | {"method": method})
    certificate = erase(registered(api, services, dataset()), services, "s1", "s2")
    where = ask(api, f"{certificate}/audits")
    work(services)
    found = get(api, where)
    assert (found["state"], found["version"]) == ("completed", 1), found["error"]
    result = found["result"]
    assert result["verdict"] == "consistent with an honest release"
    assert result["tests"] == ["length of the noise", "shape of the noise", "lean towards the parent"]
    assert result["retained_data"] == "match"
    assert "The retained rows are those that the certificate commits to." in result["summary"]
    assert "a model that did not move" in {power["alternative"][:25] for power in result["powers"]}
    assert result["replay_distance"] <= MANIFEST["policy"]["target_distance"] / 10
    assert [item["id"] for item in get(api, f"{certificate}/audits")["items"]] == [found["id"]]


def test_an_audit_finds_missing_noise(
    ready: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dishonest:
        dishonest.setattr(noise, "noised", lambda w, *, sigma, step: torch.round(w / step).to(torch.int64))
        certificate = erase(ready, services, "s1", "s2")
    where = ask(ready, f"{certificate}/audits")
    work(services)
    assert get(ready, where)["result"]["verdict"] == "not consistent with an honest release"


@pytest.mark.usefixtures("no_false_alarms")
def test_an_audit_finds_a_model_that_did_not_move(
    ready: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release adds noise to its parent instead of the solved point. The parent is deleted by then."""
    whole = erase(ready, services, "s1", "s2")
    assert audited(ready, services, whole)["verdict"] == "consistent with an honest release"
    write = release.write_draft

    def unmoved(context: Any, resolved: Any, solved: Any, *rest: Any) -> Any:
        solved.w.copy_(published_weights(context, solved.objective))
        return write(context, resolved, solved, *rest)

    with monkeypatch.context() as dishonest:
        dishonest.setattr(run, "write_draft", unmoved)
        certificate = erase(ready, services, *(f"s{i}" for i in range(3, 28)))
    result = audited(ready, services, certificate)
    assert result["verdict"] == "not consistent with an honest release"
    forgetting = next(f for f in result["findings"] if f["check"] == "lean towards the parent")
    assert forgetting["p_value"] < 1e-6


def audited(api: Api, services: Services, certificate: str) -> Any:
    where = ask(api, f"{certificate}/audits")
    work(services)
    found = get(api, where)
    assert found["state"] == "completed", found["error"]
    return found["result"]


@pytest.mark.parametrize("name", ["apart", "zpart"])
def test_an_audit_knows_the_rows_of_an_append_by_their_commitment(
    name: str, ready: Api, services: Services
) -> None:
    erase(ready, services, "s1", "s2")
    ready.put(f"dataset/{name}", dataset(rows=50, subjects=20, seed=5))
    ready.call("POST", "/toy/append", 202)
    work(services)
    certificate = f"/v1/certificates/{newest_certificate(services)}"
    assert audited(ready, services, certificate)["retained_data"] == "match"
    assert audited(ready, services, erase(ready, services, "s3", "s4"))["retained_data"] == "match"


def newest_certificate(services: Services) -> Any:
    with services.database.reading() as session:
        return session.scalars(select(Certificate.id).order_by(Certificate.chain_index.desc())).first()


def test_an_audit_of_other_rows_than_the_certificate_commits_to_fails(ready: Api, services: Services) -> None:
    certificate = erase(ready, services, "s1", "s2")
    with services.database.reading() as session:
        part = session.scalars(select(DatasetPart).where(DatasetPart.role == PartRole.TRAIN)).one()
    services.storage.write(part.path, [dataset(rows=300, subjects=100, seed=99)])
    result = audited(ready, services, certificate)
    assert (result["retained_data"], result["verdict"]) == (
        "mismatch",
        "not consistent with an honest release",
    )
    assert result["summary"].startswith("The retained rows are not those that the certificate commits to")


@pytest.mark.parametrize("moment", ["waiting", "running"])
def test_an_erasure_goes_first_and_the_evaluation_says_to_ask_again(
    moment: str, ready: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ask(ready, EVALUATIONS)
    job = begin(services, JobKind.EVALUATE)
    if moment == "waiting":
        erase(ready, services, "s1", "s2")
    else:

        def meanwhile(*args: Any, **options: Any) -> Any:
            assert not any(p.name == "features.bin" for p in services.settings.data_dir.rglob("*"))
            solution = fit(*args, **options)
            erase(ready, services, "s1", "s2")
            return solution

        monkeypatch.setattr("worker.reports.report.fit", meanwhile)
    JOBS[JobKind.EVALUATE](services, *job)
    found = get(ready, where)
    assert (found["state"], found["error"]) == ("failed", "the model changed; ask again")
    assert found["result"] is None
    assert found["completed_at"] is not None
    monkeypatch.setattr("worker.reports.report.fit", fit)
    again = ask(ready, EVALUATIONS)
    work(services)
    assert get(ready, again)["state"] == "completed"


def test_an_evaluation_whose_attempts_are_used_up_has_failed_and_the_model_is_as_before(
    ready: Api, services: Services
) -> None:
    where = ask(ready, EVALUATIONS)
    job_id, _ = begin(services, JobKind.EVALUATE)
    assert get(ready, where)["state"] == "running"
    with services.database.writing() as session:
        job = session.get_one(Job, job_id)
        transitions.attempt_failed(
            session, job, cause=FailureCause.UNEXPECTED, error="silent", now=now(), max_attempts=1, backoff=1
        )
    found = get(ready, where)
    assert (found["state"], found["error"]) == ("failed", "silent")
    assert ready.call("GET", "/toy")["state"] == "ready"
    erase(ready, services, "s1", "s2")


def test_the_figures_of_audits_and_evaluations_are_for_auditors(ready: Api, services: Services) -> None:
    certificate = erase(ready, services, "s1", "s2")
    audit, evaluation = ask(ready, f"{certificate}/audits"), ask(ready, EVALUATIONS)
    with services.database.reading() as session:
        tenant = session.scalars(select(Tenant.name).join(ApiKey, ApiKey.tenant_id == Tenant.id)).first()
    assert tenant is not None
    reader = key_for(services, tenant, Scope.MODELS_READ)
    auditor = key_for(services, tenant, Scope.AUDIT_READ)
    other = key_for(services, "other", Scope.ADMIN)
    for path, headers, status in [
        (audit, reader, 403),
        (audit, auditor, 200),
        (audit, other, 404),
        (evaluation, reader, 403),
        (EVALUATIONS, reader, 403),
        (evaluation, auditor, 200),
        (evaluation, other, 404),
    ]:
        assert ready.gateway.get(path, headers=headers).status_code == status, path
    assert ready.gateway.get(f"{certificate}/membership", headers=auditor).status_code == 404
    assert ready.gateway.get(f"{certificate}/membership", headers=reader).status_code == 403
    ask(ready, f"{certificate}/audits", 403, reader)
    ask(ready, EVALUATIONS, 403, reader)
    ask(ready, EVALUATIONS, 404, other)


def begin(services: Services, kind: JobKind) -> tuple[Any, Any]:
    """Claim the waiting job of this kind."""
    with services.database.writing() as session:
        job = session.scalars(select(Job).where(Job.kind == kind, Job.state == JobState.WAITING)).one()
        transitions.dispatch(session, job, now())
        assert job.token is not None
        assert transitions.claim(session, job.id, job.token, now())
        return job.id, job.token
