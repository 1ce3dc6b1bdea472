"""The membership test of an erasure runs before the purge and never prevents it."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.core.clock import now
from app.db import transitions
from app.db.states import FailureCause, JobKind
from app.db.tables import Job, Report
from app.services import Services
from tests.integration.harness import MANIFEST, dataset
from tests.integration.model_api import Api, Headers, subjects_held, work
from tests.integration.test_reports import erase, get, registered
from worker.batch import membership
from worker.evaluation.membership import membership_report


@pytest.fixture
def api(gateway: TestClient, admin: Headers) -> Api:
    return Api(gateway, admin)


MEMBERSHIP = MANIFEST["policy"] | {"membership_test": True}


def test_a_policy_may_ask_for_a_membership_test_before_the_rows_are_purged(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.create(policy=MEMBERSHIP)
    registered(api, services, dataset(rows=200, subjects=40), dataset(rows=200, subjects=40, seed=8))
    sizes = []

    def watched(forget: Any, unseen: Any, **options: Any) -> Any:
        sizes.append((forget.rows.count, unseen.rows.count))
        return membership_report(forget, unseen, **options)

    monkeypatch.setattr(membership, "membership_report", watched)
    certificate = erase(api, services, *(f"s{i}" for i in range(20)), "nobody")
    found = get(api, f"{certificate}/membership")
    assert (found["state"], found["error"], found["version"]) == ("completed", None, 1)
    result = found["result"]
    assert sizes == [(100, 100)], "the erased rows, and a holdout without theirs"
    assert 40 <= result["members"] == result["unseen"] <= 100
    assert 0 < result["unlearned"]["loss"]["auc"]["value"] < 1
    assert result["retrained"]["fitted"]["tpr"] == {"0.01": None, "0.001": None}
    assert not list((services.settings.data_dir / "scratch").glob("*/"))
    few = erase(api, services, *(f"s{i}" for i in range(20, 30)))
    found = get(api, f"{few}/membership")
    assert (found["state"], found["result"]) == ("failed", None)
    assert "fewer than 20 erased people" in found["error"], "fifty records of ten people"
    # The earlier test was about rows of people who are erased now.
    earlier = api.gateway.get(f"{certificate}/membership", headers=api.headers)
    assert earlier.status_code == 404
    assert "later erasures delete earlier tests" in earlier.json()["detail"]


def test_a_failing_membership_test_does_not_prevent_the_purge(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("row of s1")

    monkeypatch.setattr(membership, "membership_report", broken)
    api.create(policy=MEMBERSHIP)
    registered(api, services, dataset(), dataset(rows=200, subjects=40, seed=8))
    certificate = erase(api, services, *(f"s{i}" for i in range(20)))
    found = get(api, f"{certificate}/membership")
    assert (found["state"], found["error"]) == (
        "failed",
        "the test failed unexpectedly; the worker's log says where",
    )
    assert subjects_held(services)["part0"].isdisjoint({f"s{i}" for i in range(20)})


def test_a_membership_test_that_kills_its_attempt_is_not_repeated(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> Any:
        raise Killed

    monkeypatch.setattr(membership, "membership_report", killed)
    api.create(policy=MEMBERSHIP)
    registered(api, services, dataset(), dataset(rows=200, subjects=40, seed=8))
    with pytest.raises(Killed):
        erase(api, services, *(f"s{i}" for i in range(20)))
    with services.database.writing() as session:
        job = session.scalars(select(Job).where(Job.kind == JobKind.UNLEARN)).one()
        transitions.attempt_failed(
            session, job, cause=FailureCause.UNEXPECTED, error="killed", now=now(), max_attempts=1, backoff=0
        )
    work(services)
    assert subjects_held(services)["part0"].isdisjoint({f"s{i}" for i in range(20)})
    with services.database.reading() as session:
        assert session.scalars(select(Report.error)).all() == [membership.UNFINISHED]
