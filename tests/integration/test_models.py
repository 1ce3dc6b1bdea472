"""Models from description to retirement: files, registration, policy, appended rows."""

import base64
import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import load, save
from sqlalchemy import select

from app.bootstrap import Services
from app.clock import now
from app.db import transitions
from app.db.states import JobKind, JobState
from app.db.tables import Batch, Certificate, DatasetPart, Job, Model, Suppression, Upload, Version
from app.dispatcher import Dispatcher
from app.main import create_app
from app.settings import Settings
from certificate import envelope, statement
from tests.integration.harness import MANIFEST, dataset, parquet
from worker.loading import datasets
from worker.pipeline.run import JOBS

Headers = dict[str, str]
CANARY = "canary-person"


def work(services: Services) -> None:
    """The next jobs, in this process; the thin line runs them in processes of their own."""
    dispatcher = Dispatcher(services)
    dispatcher.seal_due()
    with services.database.reading() as session:
        waiting = session.scalars(select(Job).where(Job.state == JobState.WAITING)).all()
    for job in waiting:
        with services.database.writing() as session:
            mine = session.get_one(Job, job.id)
            transitions.dispatch(session, mine, now())
            assert mine.token is not None
            assert transitions.claim(session, mine.id, mine.token, now())
        JOBS[JobKind(mine.kind)](services, mine.id, mine.token)


def weights(value: float = 0.0, *, classes: int = 3, **more: torch.Tensor) -> bytes:
    return save({"weight": torch.full((classes, 6), value), "bias": torch.full((classes,), value)} | more)


class Api:
    def __init__(self, gateway: TestClient, headers: Headers) -> None:
        self.gateway, self.headers = gateway, headers

    def call(
        self, method: str, path: str, status: int = 200, headers: Headers | None = None, **body: Any
    ) -> Any:
        answer = self.gateway.request(
            method, f"/v1/models{path}", headers=self.headers | (headers or {}), **body
        )
        assert answer.status_code == status, answer.text
        if status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
        return answer.json() if answer.content else None

    def create(self, **change: Any) -> None:
        self.call("POST", "", 201, json={"name": "toy", "manifest": MANIFEST | change})

    def put(self, place: str, content: bytes, status: int = 201, headers: Headers | None = None) -> Any:
        return self.call("PUT", f"/toy/{place}", status, headers, content=content)

    def erase(self, *subjects: str) -> None:
        answer = self.gateway.post("/v1/erasures", json={"subjects": subjects}, headers=self.headers)
        assert answer.status_code == 202

    def batch(self, batch_id: str) -> Any:
        return self.gateway.get(f"/v1/batches/{batch_id}", headers=self.headers).json()


@pytest.fixture
def api(gateway: TestClient, admin: Headers) -> Api:
    return Api(gateway, admin)


@pytest.fixture
def ready(api: Api, services: Services) -> Api:
    """A model with a suppression list, registered."""
    api.create(policy=MANIFEST["policy"] | {"suppression_list": True, "max_kl_alert": 1e-9})
    api.put("dataset/part0", dataset())
    api.put("holdout/h0", dataset(rows=30, subjects=40, seed=8))
    api.call("POST", "/toy/validate", 202)
    work(services)
    assert api.call("GET", "/toy")["state"] == "ready", api.call("GET", "/toy")["reasons"]
    return api


def _subjects(services: Services) -> dict[str, set[str]]:
    """Everyone with rows in each live part."""
    with services.database.reading() as session:
        parts = session.scalars(select(DatasetPart)).all()
    return {part.name: set(datasets.subjects(services.storage, part.path)) for part in parts}


def test_registration_reports_what_it_measured(ready: Api, services: Services) -> None:
    report = ready.call("GET", "/toy")["report"]
    assert (report["rows"], report["subjects"], report["holdout_rows"]) == (120, 30, 30)
    assert sum(report["classes"].values()) == 120
    assert report["dimension"] == 21
    assert report["distance_bound"] <= MANIFEST["policy"]["target_distance"]
    assert 0 < report["sigma_relative"] < 0.1
    assert report["warnings"] == ["30 subjects have rows both in the training data and in the holdout"]
    assert [entry | {"size": 0} for entry in ready.call("GET", "/toy/dataset")] == [
        {"part": "part0", "role": "train", "state": "held", "rows": 120, "size": 0},
        {"part": "h0", "role": "holdout", "state": "held", "rows": 30, "size": 0},
    ]
    for place in ("weights", "anchor", "holdout/h1", "dataset/part0"):
        ready.put(place, b"late", 409)


def test_a_rejected_model_says_every_reason_quotes_no_row_and_can_be_mended(
    api: Api, services: Services
) -> None:
    api.create()
    labels, features = np.array([0, 4711, 1]), np.ones((3, 6))
    features[2, 0] = np.nan
    api.put("dataset/part0", parquet([CANARY] * 3, labels, features))
    api.put("dataset/part1", b"not parquet")
    api.put("weights", weights(classes=4))
    api.put("anchor", weights(surplus=torch.zeros(1)))
    api.call("POST", "/toy/validate", 202)
    work(services)
    model = api.call("GET", "/toy")
    assert model["state"] == "rejected"
    assert model["reasons"] == [
        "dataset part0: row 1: the label is not in 0 … 2",
        "dataset part0: row 2: a feature is missing, NaN or infinite",
        "dataset part1: not a Parquet file",
        "weights: weight has the shape (4, 6), expected (3, 6)",
        "weights: bias has the shape (4,), expected (3,)",
        "anchor: there are 1 tensors besides weight, bias",
        "anchor: one was sent, but origins.anchor says zero; declare where it comes from",
    ]
    api.put("dataset/part0", dataset())
    api.call("DELETE", "/toy/dataset/part1", 204)
    api.put("weights", weights(0.5))
    api.put("anchor", weights(0.25))
    api.call("PATCH", "/toy", json={"origins": {"anchor": "a public model"}})
    api.call("POST", "/toy/validate", 202)
    work(services)
    model = api.call("GET", "/toy")
    assert (model["state"], model["reasons"]) == ("ready", [])
    assert model["report"]["weights"] == "uploaded"
    assert "not the objective's optimum" in model["report"]["warnings"][0]
    api.call("GET", "/toy/weights", 404)
    assert api.call("GET", "/toy/anchor")["complete"]
    stored = services.storage.list("datasets")
    assert len(stored) == 2, "the part and the anchor; replaced and registered files are gone"


@pytest.mark.parametrize(
    ("change", "part", "reason"),
    [
        ({}, dataset(rows=0), "the dataset has no rows"),
        ({}, dataset(rows=9, classes=1), "all rows have the same label: there is nothing to tell apart"),
        (
            {"policy": {"target_distance": 1e-14, "delta": 1e-5}},
            dataset(),
            "rounding alone leaves",
        ),
    ],
)
def test_data_that_cannot_be_certified_is_rejected(
    api: Api, services: Services, change: dict[str, Any], part: bytes, reason: str
) -> None:
    api.create(**change)
    api.put("dataset/part0", part)
    api.call("POST", "/toy/validate", 202)
    work(services)
    model = api.call("GET", "/toy")
    assert model["state"] == "rejected"
    assert any(reason in text for text in model["reasons"]), model["reasons"]


def test_the_anchor_is_in_every_objective_and_on_the_certificate(api: Api, services: Services) -> None:
    """λ is so large that whoever forgets the anchor lands near zero."""
    api.create(
        **{"lambda": 50.0, "origins": MANIFEST["origins"] | {"anchor": "public"}},
        policy=MANIFEST["policy"] | {"method": "retrain"},
    )
    api.put("dataset/part0", dataset())
    sent = api.put("anchor", weights(3.0))
    api.call("POST", "/toy/validate", 202)
    work(services)
    api.erase("s1", "s2")
    work(services)
    with services.database.reading() as session:
        version = session.scalars(select(Version).where(Version.state == "current")).one()
    assert version.number == 1
    tensors = load(b"".join(services.storage.read(version.path)))
    assert abs(tensors["weight"].double() - 3.0).max() < 0.1
    predicate = _newest_statement(services).predicate
    assert predicate.mechanism == "retrain"
    assert predicate.objective.anchor_sha256 == sent["sha256"]
    assert predicate.objective.origins.anchor == "public"


def _newest_statement(services: Services) -> statement.Statement:
    with services.database.reading() as session:
        last = session.scalars(select(Certificate).order_by(Certificate.chain_index.desc())).first()
    assert last is not None
    return statement.parse(envelope.parse(last.envelope).payload)


def test_a_sealed_batch_keeps_the_policy_it_was_sealed_under(ready: Api, services: Services) -> None:
    old = ready.call("GET", "/toy")
    ready.erase("s1", "s2")
    Dispatcher(services).seal_due()
    changed = ready.call("PATCH", "/toy", json={"policy": {"target_distance": 1e-3, "epsilon": 0.5}})
    assert changed["sigma"] > old["sigma"]
    work(services)
    with services.database.reading() as session:
        batch = session.scalars(select(Batch)).one()
    assert batch.state == "completed"
    assert batch.policy["target_distance"] == 1e-4
    predicate = _newest_statement(services).predicate
    assert predicate.noise.sigma == old["sigma"]
    assert predicate.guarantee.epsilon == 1.0
    events = ready.gateway.get(f"/v1/batches/{batch.id}/events", headers=ready.headers).text
    assert "event: alert" in events


def test_the_policy_is_validated_as_a_whole_and_the_rest_is_fixed_once_registered(ready: Api) -> None:
    problem = ready.call("PATCH", "/toy", 422, json={"policy": {"epsilon": 9.0}})
    assert problem["errors"][0]["at"] == "body/policy"
    assert "not even one release" in problem["detail"]
    ready.call("PATCH", "/toy", 422, json={"policy": {"surprise": 1}})
    ready.call("PATCH", "/toy", 409, json={"lambda": 1.0})
    ready.call("PATCH", "/toy", json={"policy": {"batch_subjects": 7}})
    back = ready.call("PATCH", "/toy", json={"policy": {"batch_subjects": None}})
    assert back["manifest"]["policy"]["batch_subjects"] == 100
    assert back["manifest"]["policy"]["suppression_list"] is True


def test_an_erased_subject_leaves_holdout_and_staged_parts_and_is_filtered_when_sent_again(
    ready: Api, services: Services
) -> None:
    ready.put("dataset/part1", dataset(rows=40, seed=9))
    ready.put("dataset/broken", b"nobody can search this")
    ready.erase("s1", "s2")
    work(services)
    held = _subjects(services)
    assert held.keys() == {"part0", "h0", "part1"}, "what cannot be searched is not kept"
    assert all(subjects.isdisjoint({"s1", "s2"}) for subjects in held.values())
    with services.database.reading() as session:
        assert len(session.scalars(select(Suppression)).all()) == 2

    ready.put("dataset/part2", dataset(rows=40, seed=10))
    ready.put("dataset/part3", parquet(["s1"], np.array([0]), np.ones((1, 6))))
    batch_id = ready.call("POST", "/toy/append", 202)["batch_id"]
    ready.put("dataset/part4", dataset(), 409)
    ready.call("POST", "/toy/append", 409)
    work(services)
    assert ready.batch(batch_id)["state"] == "completed", ready.batch(batch_id)
    held = _subjects(services)
    assert held.keys() == {"part0", "h0", "part1", "part2"}
    assert all(subjects.isdisjoint({"s1", "s2"}) for subjects in held.values())
    assert ready.call("GET", "/toy")["generation"] == 2
    parts = {entry["part"]: entry for entry in ready.call("GET", "/toy/dataset")}
    assert all(entry["state"] == "held" and entry["rows"] for entry in parts.values())


def test_an_append_is_a_release_that_is_noised_certified_and_counted(ready: Api, services: Services) -> None:
    ready.erase("s1", "s2")
    work(services)
    before = _newest_statement(services).predicate
    ready.put("dataset/part1", dataset(rows=400, seed=11))
    batch_id = ready.call("POST", "/toy/append", 202)["batch_id"]
    work(services)
    after = _newest_statement(services).predicate
    assert (after.version, after.mechanism, after.noise.sigma) == (2, "tr", before.noise.sigma)
    assert (after.deletion_set.subjects, after.deletion_set.records) == (0, 0)
    assert after.lifetime.running_shift == pytest.approx(2**0.5 * before.lifetime.running_shift)
    certificate_id = ready.batch(batch_id)["certificate_id"]
    pack = ready.gateway.get(f"/v1/certificates/{certificate_id}/pack", headers=ready.headers)
    assert pack.status_code == 200
    assert ready.gateway.get("/v1/models/toy/versions/1/checkpoint", headers=ready.headers).status_code == 410


def test_an_append_that_cannot_be_used_fails_and_holds_up_nothing(ready: Api, services: Services) -> None:
    ready.put("dataset/part1", parquet(["x"], np.array([7]), np.ones((1, 6))))
    batch_id = ready.call("POST", "/toy/append", 202)["batch_id"]
    work(services)
    batch = ready.batch(batch_id)
    assert batch["state"] == "failed"
    assert batch["error"] == "dataset part1: row 0: the label is not in 0 … 2"
    assert [entry["state"] for entry in ready.call("GET", "/toy/dataset")] == ["held", "held", "staged"]
    ready.call("DELETE", "/toy/dataset/part1", 204)
    ready.call("POST", "/toy/append", 409)
    assert ready.call("GET", "/toy")["generation"] == 0


def test_retiring_waits_for_nobody_and_ends_downloads(ready: Api, services: Services) -> None:
    ready.erase("nobody", "noone")
    assert "Erasures wait" in ready.call("DELETE", "/toy", 409)["detail"]
    Dispatcher(services).seal_due()
    assert "under way" in ready.call("DELETE", "/toy", 409)["detail"]
    work(services)
    assert ready.call("DELETE", "/toy")["state"] == "retired"
    assert ready.call("DELETE", "/toy")["state"] == "retired"
    ready.call("GET", "/toy/versions/current/checkpoint", 410)
    ready.call("PATCH", "/toy", 409, json={"policy": {}})
    ready.call("POST", "/toy/append", 409)
    ready.put("dataset/part9", b"", 409)
    asked = ready.gateway.post(
        "/v1/erasures", json={"subjects": ["s1"], "models": ["toy"]}, headers=ready.headers
    )
    assert asked.status_code == 422


def _digest(content: bytes) -> Headers:
    return {"Repr-Digest": f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"}


def test_a_file_comes_in_pieces_and_is_put_together(api: Api, services: Services) -> None:
    api.create()
    content = dataset()
    total, step = len(content), len(content) // 3 + 1

    def send(start: int, status: int, end: int | None = None, headers: Headers | None = None) -> Any:
        stop = min(start + step, total) if end is None else end
        piece = {"Content-Range": f"bytes {start}-{stop - 1}/{total}"} | (headers or {})
        return api.put("dataset/part0", content[start : min(start + step, total)], status, piece)

    assert send(step, 409)["received"] == 0
    assert send(0, 202) == {"complete": False, "received": step, "total": total, "sha256": None}
    assert api.call("GET", "/toy/dataset/part0")["received"] == step
    assert send(0, 202)["received"] == step, "byte 0 begins anew"
    assert send(2 * step, 409)["received"] == step
    send(step, 422, end=step + 3)
    send(step, 202)
    done = send(2 * step, 201, headers=_digest(content))
    assert done == {"sha256": hashlib.sha256(content).hexdigest(), "size": total}
    assert api.call("GET", "/toy/dataset/part0")["complete"] is True
    (path,) = services.storage.list("datasets")
    assert b"".join(services.storage.read(path)) == content
    with services.database.reading() as session:
        assert session.scalars(select(Upload)).all() == []


def test_bytes_that_are_not_those_announced_are_refused_and_not_kept(api: Api, services: Services) -> None:
    api.create()
    api.put("weights", b"other", 422, _digest(b"these"))
    api.put("weights", b"other", 422, {"Repr-Digest": "nonsense"})
    api.put("weights", b"other", 422, {"Content-Range": "nonsense"})
    api.put("weights", b"ot", 202, {"Content-Range": "bytes 0-1/5"})
    api.put("weights", b"her", 422, {"Content-Range": "bytes 2-4/5"} | _digest(b"these"))
    api.call("GET", "/toy/weights", 404)
    assert services.storage.list("datasets") == []


def test_imports_are_read_by_the_worker_from_allowed_places_only(
    settings: Settings, admin: Headers, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.parquet").write_bytes(dataset())
    allowed = settings.model_copy(update={"import_roots": f"file://{source}"})
    services = Services(allowed)
    with TestClient(create_app(allowed)) as gateway:
        api = Api(gateway, admin)
        api.create()
        outside = {"part": "a", "uri": f"file://{source}/../secret"}
        api.call("POST", "/toy/dataset/import", 403, json=outside)
        for part in ("a", "b"):
            uri = f"file://{source}/{part}.parquet"
            api.call("POST", "/toy/dataset/import", 202, json={"part": part, "uri": uri})
        api.call("POST", "/toy/validate", 202)
        work(services)
        reasons = api.call("GET", "/toy")["reasons"]
        assert reasons == ["train b: not imported, it could not be read (FileNotFoundError)"]
        api.call("DELETE", "/toy/dataset/b", 204)
        (source / "a.parquet").unlink()
        api.call("POST", "/toy/validate", 202)
        work(services)
        assert api.call("GET", "/toy")["state"] == "ready", "the copy is Lethe's own"
    services.close()


def test_what_a_crash_left_of_an_upload_is_swept(ready: Api, services: Services) -> None:
    with services.database.reading() as session:
        model = session.scalars(select(Model)).one()
    forgotten = f"datasets/{model.id}/0197b7e0-0000-7000-8000-000000000000"
    services.storage.write(forgotten, [b"rows of someone"])
    services.storage.write(f"{forgotten}.chunks/{0:020d}", [b"rows of someone"])
    ready.put("dataset/part1", b"PAR", 202, {"Content-Range": "bytes 0-2/900"})
    ready.erase("nobody", "noone")
    work(services)
    left = services.storage.list("datasets")
    assert not any("0197b7e0-0000" in path for path in left)
    assert sum(".chunks/" in path for path in left) == 1, "an upload under way is left alone"


def test_a_holdout_without_subjects_is_taken(api: Api, services: Services) -> None:
    api.create()
    api.put("dataset/part0", dataset())
    sink = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(dataset(rows=9))).drop_columns("subject_id"), sink)
    api.put("holdout/h", sink.getvalue())
    api.call("POST", "/toy/validate", 202)
    work(services)
    assert api.call("GET", "/toy")["report"]["holdout_rows"] == 9
