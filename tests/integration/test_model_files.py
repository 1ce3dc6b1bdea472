"""Files of a model: uploaded whole or in pieces, or imported. Abandoned uploads are deleted."""

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.core.settings import Settings
from app.db.tables import Model, Tenant, Upload
from app.gateway.main import create_app
from app.services import Services
from tests.integration.harness import dataset
from tests.integration.model_api import Api, Headers, registered, work


@pytest.fixture
def api(gateway: TestClient, admin: Headers) -> Api:
    return Api(gateway, admin)


@pytest.fixture
def ready(api: Api, services: Services) -> Api:
    return registered(api, services)


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
    assert send(0, 202)["received"] == step, "byte 0 starts again"
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
    allowed = settings.model_copy(update={"import_roots": f"file://{tmp_path}/source"})
    services = Services(allowed)
    with services.database.reading() as session:
        source = tmp_path / "source" / session.scalars(select(Tenant.name)).one()
    source.mkdir(parents=True)
    (source / "a.parquet").write_bytes(dataset())
    with TestClient(create_app(allowed)) as gateway:
        api = Api(gateway, admin)
        api.create()
        outside = {"part": "a", "uri": f"file://{source}/../secret"}
        api.call("POST", "/toy/dataset/import", 403, json=outside)
        other = {"part": "a", "uri": f"file://{source.parent}/another-tenant/a.parquet"}
        api.call("POST", "/toy/dataset/import", 403, json=other)
        for part in ("a", "b"):
            uri = f"file://{source}/{part}.parquet"
            api.call("POST", "/toy/dataset/import", 202, json={"part": part, "uri": uri})
        api.call("POST", "/toy/validate", 202)
        work(services)
        reasons = api.call("GET", "/toy")["reasons"]
        assert reasons == ["dataset b: not imported, because the file does not exist"]
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
    assert sum(".chunks/" in path for path in left) == 1, "an upload in progress is left alone"


def test_a_draft_beside_the_pieces_is_not_a_piece(api: Api, services: Services) -> None:
    api.create()
    content = dataset()
    half = len(content) // 2
    api.put("dataset/part0", content[:half], 202, {"Content-Range": f"bytes 0-{half - 1}/{len(content)}"})
    (piece,) = services.storage.list("datasets")
    services.storage.write(f"{piece}.0123.draft", [b"half a piece of a killed process"])
    rest = {"Content-Range": f"bytes {half}-{len(content) - 1}/{len(content)}"}
    assert (
        api.put("dataset/part0", content[half:], 201, rest)["sha256"] == hashlib.sha256(content).hexdigest()
    )
