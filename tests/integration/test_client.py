"""The client against a real service: every group of endpoints, blocking and asynchronous."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.dispatcher.loop import Dispatcher
from app.gateway.auth.scopes import Scope
from lethe import (
    AsyncLethe,
    BatchHeld,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    Lethe,
    ModelRejected,
    NotFound,
    TimedOut,
    Unauthorised,
)
from lethe.certificate.verify import verify
from lethe.client.responses import Erasure, ErasureProgress
from tests.integration.client_world import JOB_SECONDS, TOY, World, register, world
from tests.integration.harness import UNREACHABLE, dataset

__all__ = ["world"]


@pytest.fixture(scope="module")
def lethe(world: World) -> Iterator[Lethe]:
    with world.sync() as client:
        yield client


@pytest.fixture(scope="module")
def toy(lethe: Lethe) -> str:
    register(lethe, "toy")
    return "toy"


def _erase(lethe: Lethe, model: str, *subjects: str) -> Erasure:
    erasure = lethe.erasures.create(subjects, models=[model], reference="case-1")
    lethe.models.flush(model)
    return lethe.erasures.wait(erasure.id, timeout=JOB_SECONDS)


def test_a_whole_erasure_ends_in_verified_weights(lethe: Lethe, toy: str, tmp_path: Path) -> None:
    seen: list[ErasureProgress] = []
    erasure = lethe.erasures.create(["s1", "s2"], models=[toy], reference="case-1")
    assert lethe.models.flush(toy).waiting_subjects >= 2
    done = lethe.erasures.wait(erasure.id, timeout=JOB_SECONDS, on_change=seen.append)
    assert done.state == "completed"
    assert seen[-1].erasure == done
    task = done.tasks[0]
    assert task.certificate_id is not None
    assert task.batch_id is not None
    assert task.outcomes == {"erased": 2}

    file = lethe.versions.download(toy, tmp_path / "model.safetensors")
    keys, evidence = lethe.log.keys(), lethe.certificates.evidence(task.certificate_id)
    report = lethe.certificates.verify(task.certificate_id, weights=file, keys=keys, evidence=evidence)
    assert report.verified
    assert report.keys == "given"
    pack = lethe.certificates.pack(task.certificate_id)
    assert verify(pack.to_bytes(), weights=file).verified
    assert lethe.versions.signature(toy)
    assert lethe.certificates.get(task.certificate_id)
    assert "dsseEnvelope" in lethe.certificates.bundle(task.certificate_id)
    with pytest.raises(NotFound):
        lethe.certificates.membership(task.certificate_id)  # the policy does not ask for one
    assert task.certificate_id in [certificate.id for certificate in lethe.certificates.list()]

    batch = lethe.batches.wait(task.batch_id)
    assert (batch.state, batch.version) == ("completed", task.version)
    kinds = [event.kind for event in lethe.batches.events(task.batch_id)]
    assert kinds[0] == "sealed"
    assert kinds[-1] == "completed"
    everything = list(lethe.batches.events(task.batch_id))
    rest = list(lethe.batches.events(task.batch_id, after=everything[2].id))
    assert rest == everything[3:]

    receipts = list(lethe.erasures.receipts(done.id, limit=1))
    assert [receipt.ordinal for receipt in receipts] == [0]
    checked = verify(pack, weights=file, receipt=json.dumps(receipts[0].receipt).encode(), subject="s1")
    assert checked.verified, checked.failed
    assert lethe.erasures.acknowledge_receipts(done.id).destroyed == 2
    with pytest.raises(Gone):
        list(lethe.erasures.receipts(done.id))


def test_advice_is_measured_before_registration(lethe: Lethe) -> None:
    lethe.models.create("advised", TOY)
    with pytest.raises(Conflict, match="no holdout"):
        lethe.models.advise("advised")
    lethe.models.upload_holdout("advised", "h0", dataset(rows=60, subjects=60, seed=8))
    advice = lethe.models.advise("advised", timeout=JOB_SECONDS)
    result = advice.result
    assert result is not None
    assert result.recommendation is not None
    assert result.recommendation.lam in {cell.lam for cell in result.cells}
    assert {cell.score_name for cell in result.cells} == {"micro_f1"}
    assert "void" in result.warnings[0]
    assert lethe.models.get_advice("advised", advice.id) == advice
    assert list(lethe.models.list_advice("advised")) == [advice]


def test_evaluation_audit_ledger_and_log(lethe: Lethe, toy: str) -> None:
    done = _erase(lethe, toy, "s3")
    certificate_id = done.tasks[0].certificate_id
    assert certificate_id is not None
    evaluation = lethe.evaluations.wait(toy, lethe.evaluations.start(toy).id, timeout=JOB_SECONDS)
    assert evaluation.result is not None
    assert evaluation.result.current.micro_f1 is not None
    assert [other.id for other in lethe.evaluations.list(toy)] == [evaluation.id]
    audit = lethe.audits.wait(certificate_id, lethe.audits.start(certificate_id).id, timeout=JOB_SECONDS)
    assert audit.result is not None
    assert audit.result.consistent
    assert [other.id for other in lethe.audits.list(certificate_id)] == [audit.id]
    assert lethe.audits.get(certificate_id, audit.id) == audit
    assert lethe.evaluations.get(toy, evaluation.id) == evaluation

    ledger = lethe.models.ledger(toy)
    assert ledger.entries[-1].certificate_id == certificate_id
    head = lethe.log.tree_head()
    size = int(head.splitlines()[1])
    assert lethe.log.inclusion(size - 1).checkpoint == head
    assert lethe.log.consistency(size).new_size == size


def test_models_are_created_changed_appended_to_and_retired(lethe: Lethe) -> None:
    register(lethe, "short")
    assert lethe.models.patch("short", {"policy": {"batch_subjects": 7}}).manifest.policy.batch_subjects == 7
    assert [part.part for part in lethe.models.parts("short")] == ["part0", "h0"]
    lethe.models.upload_part("short", "part1", dataset(rows=30, subjects=9, seed=3))
    assert lethe.models.upload_status("short", "dataset/part1").complete
    batch = lethe.batches.wait(lethe.models.append("short").batch_id, timeout=JOB_SECONDS)
    assert batch.state == "completed", batch.error
    assert [version.number for version in lethe.versions.list("short")] == [1, 0]
    lethe.models.upload_part("short", "part2", dataset(rows=30, subjects=9, seed=4))
    lethe.models.delete_file("short", "dataset/part2")
    with pytest.raises(Forbidden):
        lethe.models.import_part("short", "part3", "file:///etc/passwd")
    assert lethe.models.retire("short").state == "retired"
    with pytest.raises(Gone):
        lethe.versions.download("short", "nowhere")


def test_a_rejected_model_raises_with_its_reasons(lethe: Lethe) -> None:
    lethe.models.create("wide", TOY | {"width": 7})
    lethe.models.upload_part("wide", "part0", dataset())
    lethe.models.validate("wide")
    with pytest.raises(ModelRejected) as caught:
        lethe.models.wait_ready("wide", timeout=JOB_SECONDS)
    assert caught.value.reasons


def test_erasures_are_listed_extended_and_withdrawn(lethe: Lethe, toy: str) -> None:
    erasure = lethe.erasures.bulk(
        b"subject_id\nnobody\n", media_type="text/csv", models=[toy], reference="bulk-1"
    )
    assert [match.id for match in lethe.erasures.list(reference="bulk-1", model=toy)] == [erasure.id]
    with pytest.raises(TimedOut, match=r"last state: received"):
        lethe.erasures.wait(erasure.id, timeout=0.1)
    assert lethe.erasures.extend(erasure.id, "complex").extension_reason == "complex"
    with pytest.raises(Conflict):
        lethe.erasures.extend(erasure.id, "complex")
    assert lethe.erasures.withdraw(erasure.id).state == "withdrawn"
    assert lethe.erasures.wait(erasure.id).ended


def test_a_held_batch_waits_for_a_decision(lethe: Lethe) -> None:
    register(lethe, "gated", quality_gate=UNREACHABLE)
    erasure = lethe.erasures.create(["s1"], models=["gated"])
    lethe.models.flush("gated")
    with pytest.raises(BatchHeld) as caught:
        lethe.erasures.wait(erasure.id, timeout=JOB_SECONDS)
    with pytest.raises(Conflict):
        lethe.batches.retry(caught.value.batch_id)
    lethe.batches.discard(caught.value.batch_id)
    held = lethe.batches.wait(caught.value.batch_id, timeout=JOB_SECONDS)
    assert held.held_reason != "quality_gate"


def test_a_batch_is_cancelled_and_retried(world: World, lethe: Lethe, toy: str) -> None:
    with world.worker:
        erasure = lethe.erasures.create(["s4"], models=[toy])
        lethe.models.flush(toy)
        Dispatcher(world.services).seal_due()
        batch_id = lethe.erasures.get(erasure.id).tasks[0].batch_id
        assert batch_id is not None
        assert lethe.batches.cancel(batch_id).held_reason == "cancelled"
    with pytest.raises(BatchHeld):
        lethe.erasures.wait(erasure.id, timeout=JOB_SECONDS)
    lethe.batches.retry(batch_id)
    assert lethe.erasures.wait(erasure.id, timeout=JOB_SECONDS).state == "completed"


def test_errors_are_typed_and_carry_the_problem_document(world: World, lethe: Lethe) -> None:
    with pytest.raises(NotFound) as missing:
        lethe.models.get("nobody")
    assert missing.value.type == "urn:lethe:problem:not-found"
    assert missing.value.problem["instance"].startswith("urn:lethe:request:")
    with pytest.raises(Invalid) as invalid:
        lethe.models.create("NO", {})
    assert {error["at"] for error in invalid.value.errors} >= {"body/name"}
    with Lethe(world.url, "lethe_wrong") as stranger, pytest.raises(Unauthorised):
        stranger.models.get("toy")
    narrow = world.key_for(Scope.ERASURES_READ)
    with Lethe(world.url, narrow) as reader, pytest.raises(Forbidden) as forbidden:
        list(reader.models.list())
    assert forbidden.value.problem["scope"] == "models:read"


def test_keys_are_created_and_revoked(world: World, lethe: Lethe) -> None:
    key = lethe.keys.create("intake", ["erasures:write"])
    assert key.secret not in repr(key)
    assert key.id in [other.id for other in lethe.keys.list()]
    assert lethe.keys.revoke(key.id).revoked_at is not None


def test_lists_are_read_page_by_page(lethe: Lethe, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        lethe.models.create(f"page-{number}", TOY)
    monkeypatch.setattr("lethe.client.endpoints.PAGE_SIZE", 2)
    names = [model.name for model in lethe.models.list()]
    assert names[:3] == ["page-2", "page-1", "page-0"]
    assert len(names) == len(set(names))
    assert [model.name for model in lethe.models.list(limit=3)] == names[:3]


def test_the_asynchronous_client_does_a_whole_erasure(world: World, tmp_path: Path) -> None:
    async def run(lethe: AsyncLethe) -> None:
        await lethe.models.create("aio", TOY)
        await lethe.models.upload_part("aio", "part0", dataset())
        await lethe.models.validate("aio")
        assert (await lethe.models.wait_ready("aio", timeout=JOB_SECONDS)).state == "ready"
        assert "aio" in [model.name async for model in lethe.models.list()]
        erasure = await lethe.erasures.create(["s1"], models=["aio"])
        await lethe.models.flush("aio")
        states = [step.erasure.state async for step in lethe.erasures.follow(erasure.id, timeout=JOB_SECONDS)]
        assert states[-1] == "completed"
        done = await lethe.erasures.wait(erasure.id)
        batch_id, certificate_id = done.tasks[0].batch_id, done.tasks[0].certificate_id
        assert batch_id is not None
        assert certificate_id is not None
        assert [event.kind async for event in lethe.batches.events(batch_id)][-1] == "completed"
        file = await lethe.versions.download("aio", tmp_path / "aio.safetensors")
        assert (await lethe.certificates.verify(certificate_id, weights=file)).verified
        with pytest.raises(NotFound):
            await lethe.models.get("nobody")

    async def whole() -> None:
        async with world.asynchronous() as lethe:
            await run(lethe)

    asyncio.run(whole())
