"""The client against a real system: every noun, blocking and awaiting."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import client
from app.access.scopes import Scope
from app.dispatcher import Dispatcher
from certificate.verify import verify
from client import AsyncLethe, Lethe
from client.answers import Erasure, Progress
from tests.integration.client_world import TOY, World, register, world
from tests.integration.harness import dataset

__all__ = ["world"]


@pytest.fixture(scope="module")
def lethe(world: World) -> Iterator[Lethe]:
    with world.sync() as made:
        yield made


@pytest.fixture(scope="module")
def toy(lethe: Lethe) -> str:
    register(lethe, "toy")
    return "toy"


def _erase(lethe: Lethe, model: str, *subjects: str) -> Erasure:
    asked = lethe.erasures.create(subjects, models=[model], reference="case-1")
    lethe.models.flush(model)
    return lethe.erasures.wait(asked.id, timeout=60)


def test_a_whole_erasure_ends_in_a_verified_checkpoint(lethe: Lethe, toy: str, tmp_path: Path) -> None:
    seen: list[Progress] = []
    asked = lethe.erasures.create(["s1", "s2"], models=[toy], reference="case-1")
    assert lethe.models.flush(toy).waiting_subjects >= 2
    done = lethe.erasures.wait(asked.id, timeout=60, tell=seen.append)
    assert done.state == "completed"
    assert seen[-1].erasure == done
    task = done.tasks[0]
    assert task.certificate_id is not None
    assert task.batch_id is not None
    assert task.outcomes == {"erased": 2}

    file = lethe.versions.download(toy, tmp_path / "model.safetensors")
    keys, evidence = lethe.log.keys(), lethe.certificates.evidence(task.certificate_id)
    report = lethe.certificates.verify(task.certificate_id, model=file, keys=keys, evidence=evidence)
    assert report.verified
    assert report.keys == "given"
    pack = lethe.certificates.pack(task.certificate_id)
    assert verify(pack.to_bytes(), model=file).verified
    assert lethe.versions.signature(toy)
    assert lethe.certificates.get(task.certificate_id)
    assert "dsseEnvelope" in lethe.certificates.bundle(task.certificate_id)
    with pytest.raises(client.NotFound):
        lethe.certificates.membership(task.certificate_id)  # the policy asked for none
    assert task.certificate_id in [found.id for found in lethe.certificates.list()]

    batch = lethe.batches.wait(task.batch_id)
    assert (batch.state, batch.version) == ("completed", task.version)
    kinds = [event.kind for event in lethe.batches.events(task.batch_id)]
    assert kinds[0] == "sealed"
    assert kinds[-1] == "completed"
    everything = list(lethe.batches.events(task.batch_id))
    rest = list(lethe.batches.events(task.batch_id, after=everything[2].id))
    assert rest == everything[3:]

    receipts = list(lethe.erasures.receipts(done.id, most=1))
    assert [receipt.ordinal for receipt in receipts] == [0]
    checked = verify(pack, model=file, receipt=json.dumps(receipts[0].receipt).encode(), subject="s1")
    assert checked.verified, checked.failed
    assert lethe.erasures.acknowledge_receipts(done.id).destroyed == 2
    with pytest.raises(client.Gone):
        list(lethe.erasures.receipts(done.id))


def test_reports_ledger_and_log(lethe: Lethe, toy: str) -> None:
    done = _erase(lethe, toy, "s3")
    certificate_id = done.tasks[0].certificate_id
    assert certificate_id is not None
    evaluation = lethe.evaluations.wait(toy, lethe.evaluations.start(toy).id, timeout=60)
    assert evaluation.result is not None
    assert evaluation.result.current.micro_f1 is not None
    assert [found.id for found in lethe.evaluations.list(toy)] == [evaluation.id]
    audit = lethe.audits.wait(certificate_id, lethe.audits.start(certificate_id).id, timeout=60)
    assert audit.result is not None
    assert audit.result.consistent
    assert [found.id for found in lethe.audits.list(certificate_id)] == [audit.id]
    assert lethe.audits.get(certificate_id, audit.id) == audit
    assert lethe.evaluations.get(toy, evaluation.id) == evaluation

    ledger = lethe.models.ledger(toy)
    assert ledger.entries[-1].certificate_id == certificate_id
    head = lethe.log.checkpoint()
    size = int(head.splitlines()[1])
    assert lethe.log.inclusion(size - 1).checkpoint == head
    assert lethe.log.consistency(size).new_size == size


def test_models_are_made_changed_appended_and_retired(lethe: Lethe) -> None:
    register(lethe, "short")
    assert lethe.models.patch("short", {"policy": {"batch_subjects": 7}}).manifest.policy.batch_subjects == 7
    assert [part.part for part in lethe.models.holdings("short")] == ["part0", "h0"]
    lethe.models.upload_part("short", "part1", dataset(rows=30, subjects=9, seed=3))
    assert lethe.models.uploaded("short", "dataset/part1").complete
    batch = lethe.batches.wait(lethe.models.append("short").batch_id, timeout=60)
    assert batch.state == "completed", batch.error
    assert [version.number for version in lethe.versions.list("short")] == [1, 0]
    lethe.models.upload_part("short", "part2", dataset(rows=30, subjects=9, seed=4))
    lethe.models.remove("short", "dataset/part2")
    with pytest.raises(client.Forbidden):
        lethe.models.import_part("short", "part3", "file:///etc/passwd")
    assert lethe.models.retire("short").state == "retired"
    with pytest.raises(client.Gone):
        lethe.versions.download("short", "nowhere")


def test_a_rejected_model_raises_with_its_reasons(lethe: Lethe) -> None:
    lethe.models.create("wide", TOY | {"width": 7})
    lethe.models.upload_part("wide", "part0", dataset())
    lethe.models.validate("wide")
    with pytest.raises(client.ModelRejected) as caught:
        lethe.models.wait_ready("wide", timeout=60)
    assert caught.value.reasons


def test_erasures_are_listed_extended_and_withdrawn(lethe: Lethe, toy: str) -> None:
    asked = lethe.erasures.bulk(
        b"subject_id\nnobody\n", media_type="text/csv", models=[toy], reference="bulk-1"
    )
    assert [found.id for found in lethe.erasures.list(reference="bulk-1", model=toy)] == [asked.id]
    with pytest.raises(client.TimedOut):
        lethe.erasures.wait(asked.id, timeout=0.1)
    assert lethe.erasures.extend(asked.id, "complex").extension_reason == "complex"
    with pytest.raises(client.Conflict):
        lethe.erasures.extend(asked.id, "complex")
    assert lethe.erasures.withdraw(asked.id).state == "withdrawn"
    assert lethe.erasures.wait(asked.id).ended


def test_a_held_batch_is_decided(lethe: Lethe) -> None:
    register(lethe, "gated", quality_gate={"max_loss_rise": 0.0}, target_distance=50.0)
    asked = lethe.erasures.create(["s1"], models=["gated"])
    lethe.models.flush("gated")
    with pytest.raises(client.BatchHeld) as caught:
        lethe.erasures.wait(asked.id, timeout=60)
    with pytest.raises(client.Conflict):
        lethe.batches.retry(caught.value.batch_id)
    lethe.batches.discard(caught.value.batch_id)
    held = lethe.batches.wait(caught.value.batch_id, timeout=60)
    assert held.held_reason != "quality_gate"


def test_a_batch_is_cancelled_and_tried_again(world: World, lethe: Lethe, toy: str) -> None:
    with world.worker:
        asked = lethe.erasures.create(["s4"], models=[toy])
        lethe.models.flush(toy)
        Dispatcher(world.services).seal_due()
        batch_id = lethe.erasures.get(asked.id).tasks[0].batch_id
        assert batch_id is not None
        assert lethe.batches.cancel(batch_id).held_reason == "cancelled"
    with pytest.raises(client.BatchHeld):
        lethe.erasures.wait(asked.id, timeout=60)
    lethe.batches.retry(batch_id)
    assert lethe.erasures.wait(asked.id, timeout=60).state == "completed"


def test_refusals_are_typed_and_carry_the_problem(world: World, lethe: Lethe) -> None:
    with pytest.raises(client.NotFound) as missing:
        lethe.models.show("nobody")
    assert missing.value.type == "urn:lethe:problem:not-found"
    assert missing.value.problem["instance"].startswith("urn:lethe:request:")
    with pytest.raises(client.Invalid) as invalid:
        lethe.models.create("NO", {})
    assert {error["at"] for error in invalid.value.errors} >= {"body/name"}
    with Lethe(world.url, "lethe_wrong") as stranger, pytest.raises(client.Unauthorised):
        stranger.models.show("toy")
    narrow = world.key_for(Scope.ERASURES_READ)
    with Lethe(world.url, narrow) as reader, pytest.raises(client.Forbidden) as forbidden:
        list(reader.models.list())
    assert forbidden.value.problem["scope"] == "models:read"


def test_keys_are_made_and_revoked(world: World, lethe: Lethe) -> None:
    made = lethe.keys.create("intake", ["erasures:write"])
    assert made.secret not in repr(made)
    assert made.id in [key.id for key in lethe.keys.list()]
    assert lethe.keys.revoke(made.id).revoked_at is not None


def test_lists_are_read_page_by_page(lethe: Lethe, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        lethe.models.create(f"page-{number}", TOY)
    monkeypatch.setattr("client.resource.LARGEST_PAGE", 2)
    names = [model.name for model in lethe.models.list()]
    assert names[:3] == ["page-2", "page-1", "page-0"]
    assert len(names) == len(set(names))
    assert [model.name for model in lethe.models.list(most=3)] == names[:3]


def test_the_same_with_await(world: World, tmp_path: Path) -> None:
    async def run(lethe: AsyncLethe) -> None:
        await lethe.models.create("aio", TOY)
        await lethe.models.upload_part("aio", "part0", dataset())
        await lethe.models.validate("aio")
        assert (await lethe.models.wait_ready("aio", timeout=60)).state == "ready"
        assert "aio" in [model.name async for model in lethe.models.list()]
        asked = await lethe.erasures.create(["s1"], models=["aio"])
        await lethe.models.flush("aio")
        states = [step.erasure.state async for step in lethe.erasures.follow(asked.id, timeout=60)]
        assert states[-1] == "completed"
        done = await lethe.erasures.wait(asked.id)
        batch_id, certificate_id = done.tasks[0].batch_id, done.tasks[0].certificate_id
        assert batch_id is not None
        assert certificate_id is not None
        assert [event.kind async for event in lethe.batches.events(batch_id)][-1] == "completed"
        file = await lethe.versions.download("aio", tmp_path / "aio.safetensors")
        assert (await lethe.certificates.verify(certificate_id, model=file)).verified
        with pytest.raises(client.NotFound):
            await lethe.models.show("nobody")

    async def whole() -> None:
        async with world.awaiting() as lethe:
            await run(lethe)

    asyncio.run(whole())
