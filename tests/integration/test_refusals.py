"""A change of ε, δ, Δ* or λ after a refusal on the same rows is recorded and stated by the next release."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.db import refusals, transitions
from app.db.manifest import Manifest
from app.db.refusals import RefusedAttempt
from app.db.states import BatchStep, FailureCause, HeldReason
from app.db.tables import Batch, DatasetPart, Job, Model
from app.dispatcher.loop import Dispatcher
from app.gateway.auth.scopes import Scope
from app.services import Services
from tests.integration.harness import MANIFEST, dataset, key_for
from tests.integration.model_api import Api, Headers, newest_statement, work

IMPOSSIBLE = 1e-14
FAILING: dict[str, Any] = {"target_distance": IMPOSSIBLE, "fallback": "fail"}


@pytest.fixture
def api(gateway: TestClient, admin: Headers, services: Services) -> Api:
    assert services.vault, "opened, as every process does when it starts"
    return Api(gateway, admin)


def register(api: Api, services: Services, name: str = "toy", *, seed: int = 7, **change: Any) -> Any:
    """Register a model and return its representation in the API."""
    api.call("POST", "", 201, json={"name": name, "manifest": MANIFEST | change})
    api.call("PUT", f"/{name}/dataset/part0", 201, content=dataset(seed=seed))
    return validate(api, services, name)


def validate(api: Api, services: Services, name: str = "toy") -> Any:
    api.call("POST", f"/{name}/validate", 202)
    work(services)
    return api.call("GET", f"/{name}")


def hold_a_batch(api: Api, services: Services) -> str:
    """Return a ready model whose batch was solved and refused because of an impossible Δ*."""
    assert register(api, services)["state"] == "ready"
    api.call("PATCH", "/toy", json={"policy": FAILING})
    api.erase("s1", "s2")
    work(services)
    with services.database.reading() as session:
        batch = session.scalars(select(Batch)).one()
    assert (batch.state, batch.held_reason) == ("held", "not_certifiable"), batch.error
    return str(batch.id)


def attempts(services: Services) -> list[RefusedAttempt]:
    with services.database.reading() as session:
        return list(session.scalars(select(RefusedAttempt).order_by(RefusedAttempt.id)))


def changed(services: Services, name: str = "toy", **change: Any) -> bool:
    """Return whether a release under the current manifest with this change would state it."""
    with services.database.reading() as session:
        model = session.scalars(select(Model).where(Model.name == name)).one()
        lam = change.pop("lambda", model.manifest["lambda"])
        document = model.manifest | {"lambda": lam, "policy": model.manifest["policy"] | change}
        return refusals.changed_after_refusal(session, model, Manifest.model_validate(document))


def test_a_held_batch_is_recorded_with_what_was_asked_for(api: Api, services: Services) -> None:
    hold_a_batch(api, services)
    (attempt,) = attempts(services)
    assert attempt.choices == (1.0, 1e-5, IMPOSSIBLE, MANIFEST["lambda"])
    assert (attempt.reason, attempt.generation, len(attempt.parts)) == ("not_certifiable", 0, 1)
    with services.database.reading() as session:
        digest = session.scalars(select(DatasetPart.sha256)).one()
    assert digest not in attempt.parts, "a digest of everyone's rows is kept under the deployment key only"


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ({}, False),
        ({"epsilon": 0.5}, True),
        ({"delta": 1e-6}, True),
        ({"target_distance": 1e-3}, True),
        ({"lambda": 0.1}, True),
        ({"batch_subjects": 7, "fallback": "retrain", "method": "retrain", "lifetime_epsilon": 9.0}, False),
    ],
)
def test_a_change_of_a_choice_counts_and_no_other(
    api: Api, services: Services, change: dict[str, Any], counts: bool
) -> None:
    hold_a_batch(api, services)
    assert changed(services, **change) is counts


def test_the_owner_is_told_before_the_next_release(api: Api, services: Services) -> None:
    hold_a_batch(api, services)
    before = api.call("GET", "/toy")
    assert (before["assurance"], before["assurance_notes"]) == ("proved", [])
    after = api.call("PATCH", "/toy", json={"policy": {"target_distance": 1e-3}})
    assert after["assurance"] == "conditional"
    (note,) = after["assurance_notes"]
    assert "after an attempt on the same rows was refused or held" in note


def test_after_a_publication_the_next_batch_starts_clean(api: Api, services: Services) -> None:
    hold_a_batch(api, services)
    assert changed(services, target_distance=1e-3)
    with services.database.writing() as session:
        session.scalars(select(Model)).one().generation += 1  # what every publication does
    assert not changed(services, target_distance=1e-3)


def test_a_batch_that_looked_at_nothing_is_not_recorded(api: Api, services: Services) -> None:
    """A batch cancelled while waiting, or without room in the budget, reveals nothing about the rows."""
    register(api, services)
    api.erase("s1", "s2")
    Dispatcher(services).seal_due()
    with services.database.writing() as session:
        batch = session.scalars(select(Batch)).one()
        transitions.cancel(session, session.get_one(Job, batch.job_id), batch, batch.sealed_at)
    assert attempts(services) == []
    with services.database.writing() as session:
        batch = session.scalars(select(Batch)).one()
        transitions.batch_step(session, batch, BatchStep.RESOLVE, batch.sealed_at)
        transitions.hold_batch(session, batch, HeldReason.BUDGET, "no room", batch.sealed_at)
    assert attempts(services) == []


@pytest.mark.parametrize("end", ["cancelled", "failed", "append refused"])
def test_every_other_way_a_solve_ends_without_a_release_is_recorded(
    api: Api, services: Services, end: str
) -> None:
    register(api, services)
    with services.database.writing() as session:
        model = session.scalars(select(Model)).one()
        batch = transitions.start_append(session, model, model.created_at)
        transitions.batch_step(session, batch, BatchStep.SOLVE, batch.sealed_at)
        job = session.get_one(Job, batch.job_id)
        if end == "cancelled":
            transitions.hold_batch(session, batch, HeldReason.CANCELLED, end, batch.sealed_at)
        elif end == "failed":
            job.attempt = 9
            transitions.attempt_failed(
                session,
                job,
                cause=FailureCause.UNEXPECTED,
                error="killed",
                now=batch.sealed_at,
                max_attempts=1,
                backoff=0.0,
            )
        else:
            transitions.refuse_append(session, batch, "not certifiable", batch.sealed_at)
    assert [attempt.reason for attempt in attempts(services)] == [end]
    assert changed(services, delta=1e-6)


def test_a_retry_that_is_held_before_it_solves_again_adds_nothing(api: Api, services: Services) -> None:
    hold_a_batch(api, services)
    with services.database.writing() as session:
        batch = session.scalars(select(Batch)).one()
        transitions.retry(session, batch, batch.policy | {"target_distance": 1.0}, batch.sealed_at)
        transitions.hold_batch(session, batch, HeldReason.CANCELLED, "", batch.sealed_at)
    assert len(attempts(services)) == 1
    assert not changed(services)


def test_a_rejected_registration_counts_until_it_is_published(api: Api, services: Services) -> None:
    policy = MANIFEST["policy"] | FAILING
    assert register(api, services, policy=policy)["state"] == "rejected"
    assert [attempt.reason for attempt in attempts(services)] == ["rejected"]
    api.call("PATCH", "/toy", json={"policy": {"target_distance": 1e-3}})
    assert validate(api, services)["assurance"] == "conditional"


def test_new_rows_for_a_rejected_model_are_another_matter(api: Api, services: Services) -> None:
    register(api, services, policy=MANIFEST["policy"] | FAILING)
    api.put("dataset/part0", dataset(seed=99))
    api.call("PATCH", "/toy", json={"policy": {"target_distance": 1e-3}})
    assert validate(api, services)["assurance"] == "proved"


def test_a_rejection_for_the_files_is_no_look_at_the_rows(api: Api, services: Services) -> None:
    register(api, services, width=5)
    assert attempts(services) == []


def test_the_same_rows_under_another_name_do_not_hide_a_refusal(api: Api, services: Services) -> None:
    register(api, services, policy=MANIFEST["policy"] | FAILING)
    change: dict[str, Any] = {"lambda": 0.5}
    assert register(api, services, "again", **change)["assurance"] == "conditional"
    assert register(api, services, "other", seed=99, **change)["assurance"] == "proved"


def test_retiring_the_refused_model_does_not_hide_it_either(api: Api, services: Services) -> None:
    register(api, services, policy=MANIFEST["policy"] | FAILING)
    api.call("DELETE", "/toy")
    assert register(api, services, "again")["assurance"] == "conditional"


def test_another_tenant_is_not_concerned(api: Api, services: Services, gateway: TestClient) -> None:
    register(api, services, policy=MANIFEST["policy"] | FAILING)
    stranger = Api(gateway, key_for(services, "strangers", Scope.ADMIN))
    assert register(stranger, services, "theirs")["assurance"] == "proved"


def test_the_certificate_says_that_the_policy_was_changed_after_a_refusal(
    api: Api, services: Services
) -> None:
    """The changed release states it. The next one, for other people under the same policy, does not."""
    batch_id = hold_a_batch(api, services)
    api.call("PATCH", "/toy", json={"policy": {"target_distance": 1e-3}})
    answer = api.gateway.post(f"/v1/batches/{batch_id}/retry", headers=api.headers)
    assert answer.status_code == 202, answer.text
    work(services)
    said = newest_statement(services).predicate
    assert (said.version, said.guarantee.assurance, said.noise.data_independent) == (1, "conditional", False)
    assert "choices-after-refusal" in said.guarantee.assumptions
    api.erase("s3", "s4")
    work(services)
    said = newest_statement(services).predicate
    assert (said.version, said.guarantee.assurance, said.noise.data_independent) == (2, "proved", True)
    assert "choices-after-refusal" not in said.guarantee.assumptions


def test_a_retry_under_the_same_choices_is_as_good_as_the_first_try(api: Api, services: Services) -> None:
    batch_id = hold_a_batch(api, services)
    api.call("PATCH", "/toy", json={"policy": {"fallback": "retrain", "method": "retrain"}})
    api.gateway.post(f"/v1/batches/{batch_id}/retry", headers=api.headers)
    work(services)
    assert {attempt.choices[2] for attempt in attempts(services)} == {IMPOSSIBLE}
    assert not changed(services)
