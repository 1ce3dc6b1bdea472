"""Files of killed attempts are swept. Files that are referred to, held or in use stay."""

from pathlib import Path
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from app.core.clock import new_id, now
from app.db import paths, transitions
from app.db.states import JobKind
from app.dispatcher import orphan_sweep
from app.dispatcher.loop import Dispatcher
from app.services import Services
from tests.integration.harness import UNREACHABLE
from tests.integration.model_api import Api, Headers, registered, work


@pytest.fixture
def api(gateway: TestClient, admin: Headers, services: Services) -> Api:
    return registered(Api(gateway, admin), services)


def _write(services: Services, job_id: UUID, token: UUID) -> str:
    return services.storage.write(f"{paths.attempt(job_id, token)}/part0.parquet", [b"rows"]).path


def test_only_orphans_are_swept(api: Api, services: Services) -> None:
    published = set(services.storage.list("attempts"))
    assert published, "version 0 lies in its attempt's folder"
    with services.database.writing() as session:
        model_id = UUID(api.call("GET", "/toy")["id"])
        job = transitions.create_job(session, JobKind.REGISTER, model_id, now())
        transitions.dispatch(session, job, now())
    assert job.token is not None
    mine = _write(services, job.id, job.token)
    stale = _write(services, job.id, new_id())
    nobodys = _write(services, new_id(), new_id())
    draft = services.storage.write(f"{paths.attempt(new_id(), new_id())}/x.1234.draft", [b"half"]).path
    assert orphan_sweep.sweep(services) == 3
    left = set(services.storage.list("attempts"))
    assert left == published | {mine}
    assert left.isdisjoint({stale, nobodys, draft})
    assert orphan_sweep.sweep(services) == 0


def test_a_held_draw_is_not_swept(api: Api, services: Services) -> None:
    api.call("PATCH", "/toy", 200, json={"policy": {"quality_gate": UNREACHABLE}})
    api.erase("s1", "s2")
    work(services)
    before = services.storage.list("attempts")
    assert orphan_sweep.sweep(services) == 0
    assert services.storage.list("attempts") == before


def test_what_attempts_did_not_write_is_left_alone(services: Services) -> None:
    root = Path(services.settings.data_dir) / "storage" / "attempts"
    (root / str(new_id()) / str(new_id())).mkdir(parents=True)
    stray = [
        root / ".nfs0001",
        root / "stray",
        root / "a" / "b" / "c",
        *(p / ".nfs2" for p in root.glob("*/*")),
    ]
    for path in stray:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"?")
    orphan = _write(services, new_id(), new_id())
    assert orphan_sweep.sweep(services) == 1
    assert all(path.exists() for path in stray)
    assert not services.storage.exists(orphan)


def test_a_storage_that_is_away_stops_no_dispatcher(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: Services) -> int:
        raise OSError("stale file handle")

    monkeypatch.setattr(orphan_sweep, "sweep", away)
    clock = {"now": 0.0}
    dispatcher = Dispatcher(services, steady=lambda: clock["now"])
    clock["now"] = 1000.0
    assert dispatcher.round()
