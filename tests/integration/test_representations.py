"""Models on raw images and texts: features files are computed, rewritten and purged with their parts."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from onnx import TensorProto, helper
from PIL import Image
from safetensors.numpy import load
from sqlalchemy import select
from tokenizers import Tokenizer

from app.core.clock import now
from app.db import paths, transitions
from app.db.states import FailureCause, JobKind, JobState, PartRole
from app.db.tables import DatasetPart, Job, Model
from app.dispatcher import orphan_sweep
from app.services import Services
from lethe.certificate.cli import run_verify
from lethe.certificate.onnx_file import head_of, join
from tests.integration.dashboard import Visitor
from tests.integration.harness import MANIFEST, dataset
from tests.integration.model_api import Api, Headers, newest_statement, work
from tests.representations import (
    IMAGES,
    TEXTS,
    image_graph,
    image_part,
    mixing_graph,
    model_of,
    pictures,
    png,
    projection,
    raw_part,
    text_graph,
    text_part,
    tokenizer_json,
)
from worker.context import JobContext
from worker.features import FeatureBuilder
from worker.registration import advice_job
from worker.registration.advice import advise
from worker.representation.limits import Limits

pytestmark = pytest.mark.slow  # by the number of its tests
POLICY = MANIFEST["policy"]


@pytest.fixture
def api(gateway: TestClient, admin: Headers) -> Api:
    return Api(gateway, admin)


@pytest.fixture
def ready(api: Api, services: Services) -> Api:
    """A model on images, with two training parts and a holdout."""
    upload_images(api)
    validate(api, services)
    assert api.call("GET", "/toy")["state"] == "ready", api.call("GET", "/toy")["reasons"]
    return api


def upload_images(api: Api, graph: bytes | None = None, **change: Any) -> None:
    api.create(representation=IMAGES, **change)
    api.put("representation", image_graph() if graph is None else graph)
    api.put("dataset/part0", image_part(rows=80))
    api.put("dataset/part1", image_part(rows=40, seed=8, first=10))
    api.put("holdout/h0", image_part(rows=40, subjects=40, seed=9, first=20))


def validate(api: Api, services: Services) -> None:
    api.call("POST", "/toy/validate", 202)
    work(services)


def parts_of(services: Services) -> dict[str, DatasetPart]:
    with services.database.reading() as session:
        return {
            part.name: part
            for part in session.scalars(select(DatasetPart).where(DatasetPart.last_generation.is_(None)))
        }


def table_of(services: Services, path: str) -> pa.Table:
    return pq.read_table(io.BytesIO(b"".join(services.storage.read(path))))


def stored_files(services: Services) -> set[str]:
    return {path for folder in ("datasets", "attempts") for path in services.storage.list(folder)}


def test_features_are_stored_beside_each_part_in_the_order_of_its_rows(
    ready: Api, services: Services
) -> None:
    parts = parts_of(services)
    assert parts.keys() == {"part0", "part1", "h0"}
    for part in parts.values():
        assert part.features_path is not None
        raw, features = table_of(services, part.path), table_of(services, part.features_path)
        assert features.column_names == ["subject_id", "label", "features"]
        assert features.column("subject_id").to_pylist() == raw.column("subject_id").to_pylist()
        assert features.column("label").to_pylist() == raw.column("label").to_pylist()
        assert part.rows_path == part.features_path
    _, pixels = pictures(80)
    expected = (pixels.reshape(80, -1) / np.float32(255)).astype(np.float32) @ projection()
    stored = np.array(table_of(services, parts["part0"].rows_path).column("features").to_pylist())
    assert np.abs(stored - expected).max() < 1e-5
    model = ready.call("GET", "/toy")
    described = model["report"]["representation"]
    assert described["row_check"] in ("rows-run-alone", "batches-compared")
    assert described["digest"] == parts["part0"].features_of
    assert model["progress"] is None


def test_an_erasure_rewrites_and_purges_raw_rows_and_features(
    ready: Api, services: Services, tmp_path: Path
) -> None:
    before = parts_of(services)
    ready.erase("s1", "s2")
    work(services)
    after = parts_of(services)
    for name, part in after.items():
        assert part.features_path is not None
        for path in (part.path, part.features_path):
            people = set(table_of(services, path).column("subject_id").to_pylist())
            assert people.isdisjoint({"s1", "s2"}), name
        raw, features = table_of(services, part.path), table_of(services, part.features_path)
        assert raw.column("subject_id").to_pylist() == features.column("subject_id").to_pylist()
        assert raw.column_names == ["subject_id", "label", "image"]
    assert after["part0"].path != before["part0"].path
    assert after["h0"].features_path == before["h0"].features_path, "nobody there was erased"
    kept = {path for part in after.values() for path in (part.path, part.features_path)}
    others = stored_files(services) - kept
    assert len(others) == 2, "the graph and the weights of version 1"
    stated = newest_statement(services).predicate
    represented = stated.objective.representation
    assert represented is not None
    assert represented.digest == after["part0"].features_of
    assert represented.declaration.licence == "Apache-2.0"
    assert stated.guarantee.assurance == "proved"
    assert "rows-represented-independently" in stated.guarantee.assumptions
    assert "representation-training-data" in stated.guarantee.not_covered
    _verify(ready, tmp_path, str(stated.certificate_id))


def _verify(api: Api, folder: Path, certificate_id: str) -> None:
    pack = api.gateway.get(f"/v1/certificates/{certificate_id}/pack", headers=api.headers).content
    weights = api.gateway.get("/v1/models/toy/versions/1/checkpoint", headers=api.headers).content
    (folder / "pack.json").write_bytes(pack)
    (folder / "model.safetensors").write_bytes(weights)
    output: list[str] = []
    code = run_verify(pack=folder / "pack.json", model=folder / "model.safetensors", write=output.append)
    assert code == 0, output
    assert any("fixed numbers from a test" in line for line in output), output


def test_no_byte_of_an_erased_picture_is_left(api: Api, services: Services) -> None:
    labels, pixels = pictures(60)
    files = [png(picture) for picture in pixels]
    canary = files[10] + b"canary-of-one-picture"  # decoders ignore what follows the last chunk
    files[10] = canary
    people = [f"s{i}" for i in range(60)]
    api.create(representation=IMAGES)
    api.put("representation", image_graph())
    api.put("dataset/part0", raw_part(people, labels, "image", pa.array(files, pa.binary())))
    validate(api, services)
    features = table_of(services, parts_of(services)["part0"].rows_path).column("features")[10]
    erased = np.array(features.as_py(), np.float32)
    api.erase("s10", "s11")
    work(services)
    tables = 0
    for path in stored_files(services):
        content = b"".join(services.storage.read(path))
        assert b"canary-of-one-picture" not in content, path
        if content.startswith(b"PAR1"):
            tables += 1
            table = pq.read_table(io.BytesIO(content))
            if "features" in table.column_names:
                rows = np.array(table.column("features").to_pylist(), np.float32)
                assert not (rows == erased).all(1).any(), path
            else:
                assert canary not in table.column("image").to_pylist(), path
    assert tables == 2, "the part and its features"


def test_appended_parts_are_represented_and_filtered(api: Api, services: Services) -> None:
    upload_images(api, policy=POLICY | {"suppression_list": True})
    validate(api, services)
    api.erase("s1", "s2")
    work(services)
    api.put("dataset/part2", image_part(rows=40, seed=10))
    batch_id = api.call("POST", "/toy/append", 202)["batch_id"]
    work(services)
    assert api.batch(batch_id)["state"] == "completed", api.batch(batch_id)
    part = parts_of(services)["part2"]
    assert part.features_path is not None
    for path in (part.path, part.features_path):
        people = table_of(services, path).column("subject_id").to_pylist()
        assert len(people) == 40 - 4
        assert not {"s1", "s2"} & set(people)


def test_an_append_of_broken_pictures_is_refused_and_leaves_the_model_as_it_was(
    ready: Api, services: Services
) -> None:
    labels, pixels = pictures(5)
    files = [png(picture) for picture in pixels]
    files[3] = files[3][:40]
    people = [f"n{i}" for i in range(5)]
    ready.put("dataset/part2", raw_part(people, labels, "image", pa.array(files, pa.binary())))
    batch_id = ready.call("POST", "/toy/append", 202)["batch_id"]
    work(services)
    batch = ready.batch(batch_id)
    assert batch["state"] == "failed", batch
    assert "dataset part2: row 3: " in batch["error"], batch["error"]
    assert ready.call("GET", "/toy")["generation"] == 0


def test_a_crash_repeats_at_most_one_part(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_images(api)
    api.call("POST", "/toy/validate", 202)
    written: list[str] = []
    write = FeatureBuilder._write

    def dying(self: FeatureBuilder, part: DatasetPart, target: Path, progress: Any) -> None:
        written.append(part.name)
        write(self, part, target, progress)
        if len(written) == 2:
            raise OSError("the machine stops here")

    monkeypatch.setattr(FeatureBuilder, "_write", dying)
    with pytest.raises(OSError, match="stops here"):
        work(services)
    first, second = written
    with services.database.writing() as session:
        job = session.scalars(select(Job).where(Job.kind == JobKind.REGISTER)).one()
        transitions.attempt_failed(
            session, job, cause=FailureCause.UNEXPECTED, error="", now=now(), max_attempts=3, backoff=0.0
        )
        job.run_after = now()
        assert job.state == JobState.WAITING
    work(services)
    assert api.call("GET", "/toy")["state"] == "ready"
    assert written.count(first) == 1
    assert written.count(second) == 2
    assert len(written) == 4


def test_features_that_another_job_has_recorded_meanwhile_are_kept(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_images(api)
    write = FeatureBuilder._write
    rival = "datasets/rival"

    def overtaken(self: FeatureBuilder, part: DatasetPart, target: Path, progress: Any) -> None:
        write(self, part, target, progress)
        if part.name == "h0":
            stored = services.storage.write(rival, [target.read_bytes()])
            with services.database.writing() as session:
                current = session.get_one(DatasetPart, part.id)
                current.features_path, current.features_of = stored.path, self.digest
                current.features_sha256, current.features_size = stored.sha256, stored.size

    monkeypatch.setattr(FeatureBuilder, "_write", overtaken)
    validate(api, services)
    assert api.call("GET", "/toy")["state"] == "ready", api.call("GET", "/toy")["reasons"]
    parts = parts_of(services)
    assert parts["h0"].features_path == rival
    recorded = {path for part in parts.values() for path in (part.path, part.features_path)}
    assert len(stored_files(services) - recorded) == 2, "the graph and the weights of version 0"


def test_progress_names_the_part_the_percentage_and_the_time_left(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_images(api)
    monkeypatch.setattr("worker.context.PROGRESS_SECONDS", 0.0)
    seen: list[Any] = []
    report = JobContext.progress

    def spying(self: JobContext, data: Any) -> None:
        report(self, data)
        with services.database.reading() as session:
            seen.append(session.scalars(select(Model.progress)).one())

    monkeypatch.setattr(JobContext, "progress", spying)
    validate(api, services)
    features = [entry for entry in seen if entry["step"] == "features"]
    assert features[0]["percent"] == 0
    assert features[-1]["percent"] == 100
    assert features[-1]["rows"] == features[-1]["total"] == 160
    assert {entry["part"] for entry in features} == {"part0", "part1", "h0"}
    assert features[-1]["eta_seconds"] == 0


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (b"not a graph", "representation: "),
        (mixing_graph(), "representation: "),
    ],
)
def test_a_graph_that_cannot_be_used_rejects_the_model(
    api: Api, services: Services, graph: bytes, reason: str
) -> None:
    upload_images(api, graph)
    validate(api, services)
    model = api.call("GET", "/toy")
    assert model["state"] == "rejected"
    assert any(text.startswith(reason) for text in model["reasons"]), model["reasons"]
    assert all(part.features_path is None for part in parts_of(services).values())


def test_a_text_that_makes_the_tokenizer_take_all_memory_rejects_the_model(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.features._LIMITS", Limits(memory_bytes=1 << 29))
    tokenizer = json.loads(tokenizer_json())
    expansion = {"type": "Replace", "pattern": {"String": "x"}, "content": "x" * 1000}
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [expansion] * 4}
    texts = ["red rose"] * 30
    texts[20] = "x"  # the check of the graph does not see this row
    people = [f"n{i}" for i in range(30)]
    api.create(representation=TEXTS)
    api.put("representation", text_graph())
    api.put("tokenizer", json.dumps(tokenizer).encode())
    api.put("dataset/part0", text_part())
    api.put("dataset/part1", raw_part(people, np.zeros(30, int), "text", pa.array(texts)))
    validate(api, services)
    model = api.call("GET", "/toy")
    assert model["state"] == "rejected"
    (reason,) = model["reasons"]
    assert reason.startswith("dataset part1: ")
    assert "memory" in reason
    assert parts_of(services)["part0"].features_path is not None, "the other part is kept"


def test_a_damaged_part_is_named(api: Api, services: Services) -> None:
    upload_images(api)
    content = bytearray(image_part(rows=200, seed=4))
    content[1000:3000] = bytes(2000)
    api.put("dataset/part2", bytes(content))
    validate(api, services)
    model = api.call("GET", "/toy")
    assert model["state"] == "rejected"
    assert model["reasons"] == ["dataset part2: the file is damaged: its rows cannot be read"]


def test_every_problem_of_the_rows_is_named_at_once(api: Api, services: Services) -> None:
    upload_images(api)
    labels, pixels = pictures(5)
    people = [f"n{i}" for i in range(5)]
    wrong_size = [png(picture[:4]) for picture in pixels]
    api.put("dataset/part2", raw_part(people, labels, "image", pa.array(wrong_size, pa.binary())))
    api.put("holdout/h1", raw_part(people, labels, "image", pa.array([b"no image"] * 5, pa.binary())))
    validate(api, services)
    reasons = api.call("GET", "/toy")["reasons"]
    assert any(reason.startswith("dataset part2: row 0: ") for reason in reasons), reasons
    assert any(reason.startswith("holdout h1: row 0: ") for reason in reasons), reasons


def test_a_part_without_the_raw_column_is_named(api: Api, services: Services) -> None:
    upload_images(api)
    api.put("dataset/part2", text_part(rows=10))
    validate(api, services)
    assert "dataset part2: the column image is missing" in api.call("GET", "/toy")["reasons"]


def test_a_width_that_the_graph_does_not_give_is_refused_with_the_right_one(
    api: Api, services: Services
) -> None:
    upload_images(api, width=7)
    validate(api, services)
    assert any("set width to 6" in reason for reason in api.call("GET", "/toy")["reasons"])


def test_another_graph_recomputes_the_features_and_deletes_the_old_ones(api: Api, services: Services) -> None:
    upload_images(api, width=6)
    api.put("dataset/broken", b"no Parquet")
    validate(api, services)
    assert api.call("GET", "/toy")["state"] == "rejected"
    api.call("DELETE", "/toy/dataset/broken", 204)
    labels, _ = pictures(3)
    api.put(
        "dataset/broken",
        raw_part(["x", "y", "z"], labels, "image", pa.array([b"", b"", b""], pa.binary())),
    )
    validate(api, services)
    first = parts_of(services)["part0"]
    assert first.features_path is not None, "the other parts are kept"
    api.call("DELETE", "/toy/dataset/broken", 204)
    api.put("representation", image_graph(seed=5))
    validate(api, services)
    assert api.call("GET", "/toy")["state"] == "ready", api.call("GET", "/toy")["reasons"]
    second = parts_of(services)["part0"]
    assert second.features_of != first.features_of
    assert not services.storage.exists(first.features_path)


def test_features_go_with_a_part_that_is_deleted_or_replaced(api: Api, services: Services) -> None:
    upload_images(api)
    api.put("dataset/bad", raw_part(["x"], np.zeros(1, int), "image", pa.array([b"no image"], pa.binary())))
    validate(api, services)
    assert api.call("GET", "/toy")["state"] == "rejected"
    before = parts_of(services)
    api.call("DELETE", "/toy/dataset/part0", 204)
    api.put("dataset/part1", image_part(rows=20, seed=8, first=10))
    for name in ("part0", "part1"):
        features = before[name].features_path
        assert features is not None
        assert not services.storage.exists(features), name
    assert parts_of(services)["h0"].features_path == before["h0"].features_path


def test_a_model_that_no_longer_has_a_representation_is_fitted_on_its_own_rows(
    api: Api, services: Services
) -> None:
    api.create(representation=VECTORS | {"input": {"kind": "vector", "width": 6}})
    api.put("representation", vector_graph(6))
    api.put("dataset/part0", dataset(rows=90))
    api.put("dataset/bad", dataset(rows=20, classes=6))  # labels that the manifest does not have
    validate(api, services)
    assert api.call("GET", "/toy")["state"] == "rejected"
    features = parts_of(services)["part0"].features_path
    assert features is not None
    api.call("DELETE", "/toy/dataset/bad", 204)
    api.call("PATCH", "/toy", json={"representation": None})
    validate(api, services)
    assert api.call("GET", "/toy")["state"] == "ready", api.call("GET", "/toy")["reasons"]
    part = parts_of(services)["part0"]
    assert part.rows_path == part.path
    assert not services.storage.exists(features)


def test_a_text_model_needs_its_tokenizer_and_learns_from_texts(api: Api, services: Services) -> None:
    api.create(representation=TEXTS)
    api.put("representation", text_graph())
    api.put("dataset/part0", text_part())
    api.put("holdout/h0", text_part(rows=60, seed=3))
    api.call("POST", "/toy/validate", 409)
    api.put("tokenizer", tokenizer_json())
    validate(api, services)
    model = api.call("GET", "/toy")
    assert model["state"] == "ready", model["reasons"]
    assert model["report"]["representation"]["row_check"] == "rows-run-alone"
    features = np.array(
        table_of(services, parts_of(services)["part0"].rows_path).column("features").to_pylist()
    )
    assert np.abs(np.linalg.norm(features, axis=1) - 1).max() < 1e-6
    api.erase("s1", "s2")
    work(services)
    represented = newest_statement(services).predicate.objective.representation
    assert represented is not None
    assert represented.tokenizer_sha256 is not None
    batches = api.gateway.get("/v1/batches", headers=api.headers).json()["items"]
    assert batches[0]["state"] == "completed"


VECTORS = {
    "input": {"kind": "vector", "width": 10},
    "outputs": ["first", "second"],
    "normalisation": "unit",
    "origin": "fixed numbers from a test",
    "licence": "Apache-2.0",
}


def vector_graph(width: int = 10) -> bytes:
    """Return a graph with two outputs that are joined."""
    matrices = np.random.default_rng(2).normal(size=(2, width, 3)).astype(np.float32)
    return model_of(
        [
            helper.make_node("MatMul", ["x", "one"], ["first"]),
            helper.make_node("MatMul", ["x", "two"], ["wide"]),
            helper.make_node("Tanh", ["wide"], ["second"]),
        ],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", width])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in ("first", "second")],
        {"one": matrices[0], "two": matrices[1]},
    )


def raw_inputs(table: pa.Table) -> list[dict[str, np.ndarray]]:
    """Return the raw rows of a part as someone who serves the exported model would prepare them."""
    if "image" in table.column_names:
        pictures = [Image.open(io.BytesIO(image)) for image in table.column("image").to_pylist()]
        pixels = np.stack([np.asarray(picture) for picture in pictures])
        return [{"image": (pixels[:, None] / 255).astype(np.float32)}]
    if "text" in table.column_names:
        tokenizer = Tokenizer.from_str(tokenizer_json().decode())
        encodings = map(tokenizer.encode, table.column("text").to_pylist())
        return [{"input_ids": np.array([encoding.ids], np.int64)} for encoding in encodings]
    return [{"x": np.array(table.column("features").to_pylist(), np.float32)}]


@pytest.mark.parametrize("kind", ["image", "text", "vector"])
def test_an_exported_model_agrees_with_the_head_on_the_stored_features(
    api: Api, services: Services, kind: str
) -> None:
    if kind == "image":
        upload_images(api)
    elif kind == "text":
        api.create(representation=TEXTS)
        api.put("representation", text_graph())
        api.put("tokenizer", tokenizer_json())
        api.put("dataset/part0", text_part())
    else:
        api.create(representation=VECTORS)
        api.put("representation", vector_graph())
        api.put("dataset/part0", dataset(rows=90, width=10))
    validate(api, services)
    api.erase("s1", "s2")
    work(services)
    graph = api.gateway.get("/v1/models/toy/representation/content", headers=api.headers).content
    weights = api.gateway.get("/v1/models/toy/versions/1/checkpoint", headers=api.headers).content
    session = ort.InferenceSession(join(graph, head_of(weights, newest_statement(services).predicate)))
    part, head = parts_of(services)["part0"], load(weights)
    served = np.concatenate(
        [session.run(["logits"], inputs)[0] for inputs in raw_inputs(table_of(services, part.path))]
    )
    features = np.array(table_of(services, part.rows_path).column("features").to_pylist())
    scores = features @ head["weight"].T + head["bias"]
    assert len(scores) == len(served) > 50
    assert np.abs(served - scores).max() <= 1e-5


def test_advice_computes_the_features_of_the_holdout_alone_and_registration_reuses_them(
    api: Api, services: Services
) -> None:
    upload_images(api)
    where = api.call("POST", "/toy/advice", 202)["id"]
    work(services)
    advice = api.call("GET", f"/toy/advice/{where}")
    assert advice["state"] == "completed", advice
    assert advice["result"]["rows"] == 20, "those of the people without training rows"
    features = {name: part.features_path for name, part in parts_of(services).items()}
    assert features["h0"] is not None
    assert features["part0"] is features["part1"] is None
    validate(api, services)
    assert api.call("GET", "/toy")["state"] == "ready"
    assert parts_of(services)["h0"].features_path == features["h0"]


def test_another_graph_voids_the_advice(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_images(api)

    def change_and_advise(*args: Any, **options: Any) -> Any:
        api.put("representation", image_graph(seed=5))
        return advise(*args, **options)

    monkeypatch.setattr(advice_job, "advise", change_and_advise)
    where = api.call("POST", "/toy/advice", 202)["id"]
    work(services)
    advice = api.call("GET", f"/toy/advice/{where}")
    assert (advice["state"], advice["error"]) == ("failed", advice_job.CHANGED)


def test_reports_read_the_features(ready: Api, services: Services) -> None:
    ready.erase("s1", "s2")
    work(services)
    ready.call("POST", "/toy/evaluations", 202)
    certificate = newest_statement(services).predicate.certificate_id
    started = ready.gateway.post(f"/v1/certificates/{certificate}/audits", headers=ready.headers)
    assert started.status_code == 202, started.text
    work(services)
    evaluation = ready.call("GET", "/toy/evaluations")["items"][0]
    assert evaluation["state"] == "completed", evaluation
    audits = ready.gateway.get(f"/v1/certificates/{certificate}/audits", headers=ready.headers).json()
    assert audits["items"][0]["state"] == "completed", audits
    assert audits["items"][0]["result"]["retained_data"] == "match", audits


def test_a_held_draw_keeps_its_rewritten_features_until_it_is_published(api: Api, services: Services) -> None:
    upload_images(api, policy=POLICY | {"quality_gate": {"max_loss": 1e-6}})
    validate(api, services)
    api.erase("s1", "s2")
    work(services)
    batch = api.gateway.get("/v1/batches", headers=api.headers).json()["items"][0]
    assert batch["state"] == "held", batch
    before = stored_files(services)
    orphan_sweep.sweep(services)
    assert stored_files(services) == before
    approved = api.gateway.post(f"/v1/batches/{batch['id']}/approve", headers=api.headers)
    assert approved.status_code in (200, 202), approved.text
    work(services)
    assert api.batch(batch["id"])["state"] == "completed"
    part = parts_of(services)["part0"]
    assert part.features_path is not None
    assert "s1" not in table_of(services, part.features_path).column("subject_id").to_pylist()


def test_a_retired_model_leaves_nothing(ready: Api, services: Services) -> None:
    with services.database.reading() as session:
        model_id = session.scalars(select(Model.id)).one()
    assert services.storage.list(paths.uploaded(model_id))
    ready.call("DELETE", "/toy")
    assert stored_files(services) == set()


def test_the_holdout_may_lack_people(api: Api, services: Services) -> None:
    labels, pixels = pictures(20)
    upload_images(api)
    table = pa.table({"label": labels, "image": pa.array([png(p) for p in pixels], pa.binary())})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    api.put("holdout/h1", sink.getvalue())
    validate(api, services)
    assert api.call("GET", "/toy")["state"] == "ready", api.call("GET", "/toy")["reasons"]
    part = next(part for part in parts_of(services).values() if part.name == "h1")
    assert part.role == PartRole.HOLDOUT
    assert table_of(services, part.rows_path).column_names == ["label", "features"]


def test_pages_show_the_representation_and_how_far_its_features_are(
    services: Services, gateway: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    visitor = Visitor(gateway, services, "owner").signed_in()
    owner = Api(gateway, visitor.headers)
    monkeypatch.setattr("worker.context.PROGRESS_SECONDS", 0.0)
    pages: list[str] = []
    places = ["/models/toy"]
    report = JobContext.progress

    def visiting(self: JobContext, data: Any) -> None:
        report(self, data)
        if data["step"] == "features" and not data["rows"]:
            pages.extend(visitor.get(path).raise_for_status().text for path in places)

    monkeypatch.setattr(JobContext, "progress", visiting)
    upload_images(owner)
    validate(owner, services)
    assert "Computing the features of h0: 0 % done." in pages[0]
    ready_page = visitor.get("/models/toy").text
    assert "Computing the features" not in ready_page
    digest = owner.call("GET", "/toy")["representation"]["digest"]
    for text in ("fixed numbers from a test", "Apache-2.0", "images", digest, "Rows were run in batches"):
        assert text in ready_page, text
    owner.put("dataset/part2", image_part(rows=40, seed=10))
    batch_id = owner.call("POST", "/toy/append", 202)["batch_id"]
    places[:], pages[:] = ["/", f"/batches/{batch_id}"], []
    work(services)
    assert owner.batch(batch_id)["state"] == "completed"
    assert len(pages) == 2
    assert all("Computing the features of part2: 0 % done." in page for page in pages)
