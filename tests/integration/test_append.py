"""Rows appended to a ready model are filtered, fitted, and released like an erasure."""

import hashlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.core.clock import now
from app.core.settings import Settings
from app.core.storage import StorageError, Stored
from app.db import paths, transitions
from app.db.states import FailureCause, JobKind
from app.db.tables import DatasetPart, Job, Suppression
from app.gateway.main import create_app
from app.services import Services
from lethe.certificate.cli import run_verify
from tests.integration.harness import dataset, parquet
from tests.integration.model_api import Api, Headers, newest_statement, registered, subjects_held, work
from worker import imports, queue
from worker.batch import purge
from worker.context import JobContext
from worker.data import page_headers
from worker.jobs import JOBS


@pytest.fixture
def api(gateway: TestClient, admin: Headers) -> Api:
    return Api(gateway, admin)


@pytest.fixture
def ready(api: Api, services: Services) -> Api:
    return registered(api, services)


def test_an_erased_subject_leaves_holdout_and_staged_parts_and_is_filtered_when_sent_again(
    ready: Api, services: Services
) -> None:
    ready.put("dataset/part1", dataset(rows=40, seed=9))
    ready.put("dataset/broken", b"nobody can search this")
    ready.erase("s1", "s2")
    work(services)
    held = subjects_held(services)
    assert held.keys() == {"part0", "h0", "part1"}, "a part that cannot be searched is deleted"
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
    held = subjects_held(services)
    assert held.keys() == {"part0", "h0", "part1", "part2"}
    assert all(subjects.isdisjoint({"s1", "s2"}) for subjects in held.values())
    assert ready.call("GET", "/toy")["generation"] == 2
    parts = {entry["part"]: entry for entry in ready.call("GET", "/toy/dataset")}
    assert all(entry["state"] == "held" and entry["rows"] for entry in parts.values())


def test_a_part_sent_while_the_erasure_runs_is_searched_before_the_identifiers_are_forgotten(
    ready: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One part arrives after the rows were resolved, another after the purge has searched."""
    late = iter(["part2", "part3"])

    def sending(stage: str) -> None:
        original = getattr(purge, stage)

        def first_send(context: JobContext) -> None:
            if (name := next(late, None)) is not None:
                ready.put(f"dataset/{name}", dataset(rows=40, seed=9))
            original(context)

        monkeypatch.setattr(purge, stage, first_send)

    sending("run_membership_test")
    sending("sign_no_data_receipts")
    ready.erase("s1", "s2")
    work(services)
    held = subjects_held(services)
    assert held.keys() == {"part0", "h0", "part2", "part3"}
    assert all(subjects.isdisjoint({"s1", "s2"}) for subjects in held.values())
    assert len(services.storage.list("datasets") + services.storage.list("attempts")) == 5


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_staged_file_whose_pages_claim_too_much_is_dropped_without_reading_it(
    ready: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready.put("dataset/part1", dataset(rows=40, seed=9))
    monkeypatch.setattr(page_headers, "LARGEST_PAGE", 10)
    ready.erase("s1", "s2")
    work(services)
    assert subjects_held(services).keys() == {"part0", "h0"}


def test_a_staged_file_with_a_broken_footer_is_dropped_but_an_outage_drops_nothing(
    ready: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = dataset(rows=40, seed=9)
    ready.put("dataset/broken", whole[:-200] + b"\xff" * 192 + whole[-8:])
    ready.put("dataset/whole", whole)
    with services.database.reading() as session:
        staged = session.scalars(select(DatasetPart.path).where(DatasetPart.name == "whole")).one()
    opened = type(services.storage).open

    def failing(storage: object, path: str) -> IO[bytes]:
        if path == staged:
            raise OSError("the storage does not answer")
        return opened(services.storage, path)

    ready.erase("s1", "s2")
    with monkeypatch.context() as patch:
        patch.setattr(services.storage, "open", lambda path: failing(services.storage, path))
        with pytest.raises(OSError, match="does not answer"):
            work(services)
    assert len(ready.call("GET", "/toy/dataset")) == 4
    with services.database.writing() as session:
        job = session.scalars(select(Job).where(Job.kind == JobKind.UNLEARN)).one()
        transitions.attempt_failed(
            session,
            job,
            cause=FailureCause.UNEXPECTED,
            error="",
            now=job.created_at,
            max_attempts=5,
            backoff=0.0,
        )
    work(services)
    assert subjects_held(services).keys() == {"part0", "h0", "whole"}


def test_a_purge_deletes_what_the_models_ended_jobs_left_and_steps_over_foreign_files(
    ready: Api, services: Services
) -> None:
    with services.database.reading() as session:
        model_id, job_id = session.execute(select(Job.model_id, Job.id)).one()
    left = f"{paths.attempts(job_id)}/0123/part0.parquet"
    services.storage.write(left, [dataset()])
    folder = services.settings.data_dir / "storage" / paths.uploaded(model_id)
    (folder / ".nfs0001").write_bytes(b"")
    ready.erase("s1", "s2")
    work(services)
    assert not services.storage.exists(left)
    assert subjects_held(services).keys() == {"part0", "h0"}


def test_an_append_is_a_release_that_is_noised_certified_and_counted(
    ready: Api, services: Services, tmp_path: Path
) -> None:
    ready.erase("s1", "s2")
    work(services)
    before = newest_statement(services).predicate
    ready.put("dataset/part1", dataset(rows=400, seed=11))
    batch_id = ready.call("POST", "/toy/append", 202)["batch_id"]
    work(services)
    after = newest_statement(services).predicate
    assert (after.version, after.mechanism, after.noise.sigma) == (2, "tr", before.noise.sigma)
    assert (after.deletion_set.people, after.deletion_set.records) == (0, None)
    assert after.lifetime.running_shift == pytest.approx(2**0.5 * before.lifetime.running_shift)
    certificate_id = ready.batch(batch_id)["certificate_id"]
    where = f"/v1/certificates/{certificate_id}"
    for name, path in {
        "m.safetensors": "/v1/models/toy/versions/2/checkpoint",
        "pack.json": f"{where}/pack",
        "evidence.json": f"{where}/evidence",
    }.items():
        answer = ready.gateway.get(path, headers=ready.headers)
        assert answer.status_code == 200
        (tmp_path / name).write_bytes(answer.content)
    lines: list[str] = []
    code = run_verify(
        pack=tmp_path / "pack.json",
        model=tmp_path / "m.safetensors",
        evidence=tmp_path / "evidence.json",
        write=lines.append,
    )
    assert code == 0, lines
    assert ready.gateway.get("/v1/models/toy/versions/1/checkpoint", headers=ready.headers).status_code == 410


def test_an_append_that_cannot_be_used_fails_and_holds_up_nothing(ready: Api, services: Services) -> None:
    ready.put("dataset/part1", parquet(["x\n"], np.array([7]), np.ones((1, 6))))
    batch_id = ready.call("POST", "/toy/append", 202)["batch_id"]
    work(services)
    batch = ready.batch(batch_id)
    assert batch["state"] == "failed"
    assert batch["error"] == (
        "dataset part1: row 0: subject_id must have 1 to 256 characters, none of them a control character; "
        "dataset part1: row 0: the label is not in 0 … 2"
    )
    assert [entry["state"] for entry in ready.call("GET", "/toy/dataset")] == ["held", "held", "staged"]
    ready.call("DELETE", "/toy/dataset/part1", 204)
    ready.call("POST", "/toy/append", 409)
    assert ready.call("GET", "/toy")["generation"] == 0


def test_a_part_whose_bytes_changed_is_neither_trained_on_nor_certified(
    ready: Api, services: Services
) -> None:
    with services.database.reading() as session:
        part = session.scalars(select(DatasetPart.path).where(DatasetPart.name == "part0")).one()
    services.storage.write(part, [dataset(seed=99)])
    ready.erase("s1", "s2")
    with pytest.raises(StorageError, match="not the file that was stored"):
        work(services)
    assert ready.call("GET", "/toy")["generation"] == 0


def test_an_attempt_that_lost_its_token_does_not_change_what_another_imported(
    settings: Settings, admin: Headers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "a.parquet"
    source.write_bytes(dataset())
    allowed = settings.model_copy(update={"import_roots": f"*=file://{tmp_path}"})
    services, copy = Services(allowed), imports.copy

    def overtaken(*args: Any) -> Stored:
        monkeypatch.setattr(imports, "copy", copy)
        with services.database.writing() as session:
            job = session.scalars(select(Job)).one()
            transitions.attempt_failed(
                session, job, cause=FailureCause.UNEXPECTED, error="", now=now(), max_attempts=5, backoff=0.0
            )
        work(services)
        source.write_bytes(dataset(seed=99))
        return copy(*args)

    with TestClient(create_app(allowed)) as gateway:
        api = Api(gateway, admin)
        api.create()
        api.call("POST", "/toy/dataset/import", 202, json={"part": "a", "uri": f"file://{source}"})
        api.call("POST", "/toy/validate", 202)
        monkeypatch.setattr(imports, "copy", overtaken)
        with pytest.raises(transitions.TokenLost):
            work(services)
        assert api.call("GET", "/toy")["state"] == "ready"
    with services.database.reading() as session:
        part = session.scalars(select(DatasetPart)).one()
    content = b"".join(services.storage.read(part.path))
    assert hashlib.sha256(content).hexdigest() == part.sha256
    services.close()


def test_one_queue_function_runs_every_kind_of_job() -> None:
    assert f"{queue.run.__module__}.{queue.run.__name__}" == transitions.RUN
    assert set(JOBS) == set(JobKind)
