"""What can follow a batch that is on hold or failed: approve, discard or retry, and the ledger afterwards."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.core.clock import new_id, now
from app.db import transitions
from app.db.states import FailureCause, JobKind, JobState
from app.db.tables import Job
from app.services import Services
from lethe.certificate.cli import run_verify
from tests.integration.harness import UNREACHABLE, dataset
from tests.integration.model_api import Api, Headers, registered, work
from worker.batch.publish import publish
from worker.context import JobContext
from worker.engine import noise

PUBLISH = "worker.batch.run.publish"
STRICT = {"quality_gate": {"max_f1_drop": 0.0, "max_loss_rise": 0.0}}


@pytest.fixture
def api(gateway: TestClient, admin: Headers) -> Api:
    return Api(gateway, admin)


def _held(api: Api, services: Services, **policy: Any) -> tuple[Api, str]:
    """A model whose quality gate holds every release, and its held batch."""
    ready = registered(api, services)
    ready.call("PATCH", "/toy", 200, json={"policy": {"quality_gate": UNREACHABLE} | policy})
    ready.erase("s1", "s2")
    work(services)
    (batch,) = [b for b in _get(ready, "/v1/batches")["items"] if b["state"] == "held"]
    return ready, batch["id"]


def _get(api: Api, path: str) -> Any:
    answer = api.gateway.get(path, headers=api.headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def _post(api: Api, path: str, status: int = 202) -> Any:
    answer = api.gateway.post(path, headers=api.headers)
    assert answer.status_code == status, answer.text
    return answer.json()


def _draw(services: Services) -> list[str]:
    return [path for path in services.storage.list("attempts") if path.endswith(".safetensors")]


def test_approving_publishes_exactly_the_draw_that_was_held(
    api: Api, services: Services, tmp_path: Path
) -> None:
    ready, batch_id = _held(api, services)
    shown = _get(ready, f"/v1/batches/{batch_id}")
    assert shown["held_reason"] == "quality_gate"
    assert shown["waiting_for"] == "a decision: quality_gate"
    assert ready.call("GET", "/toy/versions")[0]["number"] == 0, "nothing is published"
    held = {path: b"".join(services.storage.read(path)) for path in _draw(services)}

    _post(ready, f"/v1/batches/{batch_id}/retry", 409)
    _post(ready, f"/v1/batches/{batch_id}/approve")
    _post(ready, f"/v1/batches/{batch_id}/approve", 409)
    work(services)

    shown = _get(ready, f"/v1/batches/{batch_id}")
    assert (shown["state"], shown["version"]) == ("completed", 1)
    download = api.gateway.get("/v1/models/toy/versions/1/checkpoint", headers=api.headers).content
    assert download in held.values()
    assert _verifies(ready, shown["certificate_id"], download, tmp_path) == 0


def test_outcomes_are_told_only_once_the_version_is_published_and_purged(
    api: Api, services: Services
) -> None:
    ready, batch_id = _held(api, services)
    (erasure,) = _get(ready, "/v1/erasures")["items"]
    assert erasure["tasks"][0]["outcomes"] == {}
    _post(ready, f"/v1/batches/{batch_id}/approve")
    work(services)
    (erasure,) = _get(ready, "/v1/erasures")["items"]
    assert erasure["tasks"][0]["outcomes"] == {"erased": 2}


def test_discarding_destroys_the_draw_and_counts_it(api: Api, services: Services, tmp_path: Path) -> None:
    ready, batch_id = _held(api, services)
    before = ready.call("GET", "/toy/ledger")
    _post(ready, f"/v1/batches/{batch_id}/discard")
    work(services)
    shown = _get(ready, f"/v1/batches/{batch_id}")
    assert (shown["state"], shown["error"]) == ("failed", "the draw was discarded by its owner")
    ledger = ready.call("GET", "/toy/ledger")
    assert [entry["mechanism"] for entry in ledger["entries"]] == ["discarded"]
    assert ledger["running_epsilon"] == pytest.approx(1.0)
    assert ledger["releases_left"] == before["releases_left"] - 1

    ready.call("PATCH", "/toy", 200, json={"policy": {"quality_gate": None}})
    _post(ready, f"/v1/batches/{batch_id}/retry")
    work(services)
    shown = _get(ready, f"/v1/batches/{batch_id}")
    assert (shown["state"], shown["version"]) == ("completed", 1)
    ledger = ready.call("GET", "/toy/ledger")
    assert [entry["mechanism"] for entry in ledger["entries"]] == ["discarded", "tr"]
    assert ledger["running_epsilon"] > 1.2
    assert ledger["entries"][1]["subjects_epsilon"] == pytest.approx(ledger["running_epsilon"])
    download = api.gateway.get("/v1/models/toy/versions/1/checkpoint", headers=api.headers).content
    assert _verifies(ready, shown["certificate_id"], download, tmp_path) == 0


def test_a_spent_budget_holds_the_batch_until_it_may_retrain(
    api: Api, services: Services, tmp_path: Path
) -> None:
    ready = registered(api, services)
    ready.call("PATCH", "/toy", 200, json={"policy": {"lifetime_epsilon": 1.0, "fallback": "fail"}})
    ready.erase("s1", "s2")
    work(services)
    ready.erase("s3", "s4")
    work(services)
    (second, first) = _get(ready, "/v1/batches")["items"]
    assert (first["state"], second["state"], second["held_reason"]) == ("completed", "held", "budget")
    assert ready.call("GET", "/toy/ledger")["releases_left"] == 0

    ready.call("PATCH", "/toy", 200, json={"policy": {"fallback": "retrain"}})
    _post(ready, f"/v1/batches/{second['id']}/retry")
    work(services)
    shown = _get(ready, f"/v1/batches/{second['id']}")
    assert shown["state"] == "completed", shown
    ledger = ready.call("GET", "/toy/ledger")
    assert [entry["mechanism"] for entry in ledger["entries"]] == ["tr", "retrain"]
    assert (ledger["running_epsilon"], ledger["releases_left"]) == (0.0, 1)
    assert [round(entry["subjects_epsilon"], 6) for entry in ledger["entries"]] == [1.0, 0.0]
    download = api.gateway.get("/v1/models/toy/versions/2/checkpoint", headers=api.headers).content
    assert _verifies(ready, shown["certificate_id"], download, tmp_path) == 0


def test_a_scored_draw_is_never_drawn_again(
    api: Api, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that dies between scoring and publishing leaves its draw to the next one.

    Nobody has to decide about it, however few errors of its own the batch may have.
    """
    ready = registered(api, services)
    ready.erase("s1", "s2")
    draws: list[int] = []
    real_noised = noise.noised

    def counted(w: Any, **scale: float) -> Any:
        draws.append(len(w))
        return real_noised(w, **scale)

    def dying(*_: Any) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(noise, "noised", counted)
    monkeypatch.setattr(PUBLISH, dying)
    with pytest.raises(RuntimeError, match="killed"):
        work(services)
    kept = {path: b"".join(services.storage.read(path)) for path in _draw(services)}
    _give_up(services, max_attempts=1, cause=FailureCause.PROCESS_ENDED)
    monkeypatch.setattr(PUBLISH, publish)
    work(services)

    (batch,) = _get(ready, "/v1/batches")["items"]
    assert (batch["state"], len(draws)) == ("completed", 1)
    download = api.gateway.get("/v1/models/toy/versions/1/checkpoint", headers=api.headers).content
    assert download in kept.values()
    assert _verifies(ready, batch["certificate_id"], download, tmp_path) == 0


def test_a_draw_that_cannot_be_published_waits_for_its_owner(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = registered(api, services)
    ready.erase("s1", "s2")

    def dying(*_: Any) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(PUBLISH, dying)
    with pytest.raises(RuntimeError):
        work(services)
    _give_up(services, max_attempts=1)
    monkeypatch.setattr(PUBLISH, publish)
    (batch,) = _get(ready, "/v1/batches")["items"]
    assert (batch["state"], batch["held_reason"]) == ("held", "unpublished")
    _post(ready, f"/v1/batches/{batch['id']}/discard")
    work(services)
    assert [e["mechanism"] for e in ready.call("GET", "/toy/ledger")["entries"]] == ["discarded"]


def _give_up(services: Services, *, max_attempts: int, cause: FailureCause = FailureCause.UNEXPECTED) -> None:
    with services.database.writing() as session:
        job = session.scalars(select(Job).where(Job.state == JobState.RUNNING)).one()
        transitions.attempt_failed(
            session,
            job,
            cause=cause,
            error="killed",
            now=now(),
            max_attempts=max_attempts,
            backoff=0.0,
        )


def test_a_retraining_is_not_compared_with_the_previous_version(api: Api, services: Services) -> None:
    """It is a function of the retained rows alone, and a comparison would change that."""
    ready = registered(api, services)
    strict = STRICT | {"target_distance": 1.0, "method": "retrain"}
    ready.call("PATCH", "/toy", 200, json={"policy": strict})
    ready.erase("s1", "s2")
    work(services)
    (batch,) = _get(ready, "/v1/batches")["items"]
    assert batch["state"] == "completed"


def test_parts_keep_their_order_when_they_are_rewritten(api: Api, services: Services) -> None:
    """A retrained model must not depend on who was erased, so the other rows keep their order."""
    api.create()
    for number in range(3):
        api.put(f"dataset/part{number}", dataset(rows=30, seed=number))
    api.call("POST", "/toy/validate", 202)
    work(services)
    api.erase("s1", "s2")
    work(services)
    with services.database.reading() as session:
        job = session.scalars(select(Job).where(Job.kind == JobKind.UNLEARN)).one()
    context = JobContext.load(services, job.id, new_id())
    assert [part.name for part in context.parts()] == ["part0", "part1", "part2"]


def test_a_trace_with_undefined_ratios_is_valid_evidence(api: Api, services: Services) -> None:
    """Near the end ρ is NaN, because rounding hides the decrease it divides by."""
    ready = registered(api, services)
    ready.call("PATCH", "/toy", 200, json={"policy": {"target_distance": 1e-10}})
    ready.erase("s1", "s2")
    work(services)
    (batch,) = _get(ready, "/v1/batches")["items"]
    assert batch["state"] == "completed", batch["error"]
    where = f"/v1/certificates/{batch['certificate_id']}/evidence"
    assert any(step["ratio"] is None for step in _get(ready, where)["trace"])


def _verifies(api: Api, certificate_id: str, model: bytes, folder: Path) -> int:
    (folder / "m.safetensors").write_bytes(model)
    for end in ("pack", "evidence"):
        where = f"/v1/certificates/{certificate_id}/{end}"
        answer = api.gateway.get(where, headers=api.headers)
        (folder / f"{end}.json").write_bytes(answer.content)
    said: list[str] = []
    code = run_verify(
        pack=folder / "pack.json",
        model=folder / "m.safetensors",
        evidence=folder / "evidence.json",
        write=said.append,
    )
    return code if code == 0 else pytest.fail("\n".join(said))
