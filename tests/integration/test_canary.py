"""A full run leaves no trace of the person: a canary is searched for in every file, table and log."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.db.tables import DatasetPart, TaskSubject
from app.services import Services
from tests.integration.database_files import database_bytes
from tests.integration.harness import MANIFEST, System, parquet
from tests.representations import TEXTS, raw_part, text_graph, tokenizer_json
from worker.data.datasets import FEATURES, TEXT

CANARY = "canary-5b1c0e7d-person"
REFERENCE = "case-4711"


PEOPLE = [CANARY if i % 10 == 0 else f"s{i}" for i in range(60)]


def _vectors() -> dict[str, bytes]:
    """Return the files of a model on vectors."""
    features = np.random.default_rng(3).normal(size=(60, 6)) / 4
    return {"dataset/part0": _with_traces(parquet(PEOPLE, np.arange(60) % 3, features))}


def _texts() -> dict[str, bytes]:
    """Return the files of a model on texts, in which the person also names themselves."""
    texts = pa.array([f"red rose {person}" if person == CANARY else "blue sky" for person in PEOPLE])
    part = _with_traces(raw_part(PEOPLE, np.arange(60) % 3, "text", texts))
    return {"dataset/part0": part, "representation": text_graph(), "tokenizer": tokenizer_json()}


@pytest.fixture(params=["vectors", "texts"])
def erased(
    request: pytest.FixtureRequest,
    gateway: TestClient,
    admin: dict[str, str],
    system: System,
    services: Services,
) -> bytes:
    """Erase the canary, and return the ciphertext that was in the database in the meantime."""
    is_text = request.param == "texts"
    manifest = MANIFEST | ({"representation": TEXTS} if is_text else {})
    gateway.post("/v1/models", json={"name": "toy", "manifest": manifest}, headers=admin)
    for place, content in (_texts() if is_text else _vectors()).items():
        sent = gateway.put(f"/v1/models/toy/{place}", content=content, headers=admin)
        assert sent.status_code == 201, sent.text
    gateway.post("/v1/models/toy/validate", headers=admin)
    system.settle()
    headers = admin | {"Idempotency-Key": CANARY}
    body = {"subjects": [CANARY, "s1"], "reference": REFERENCE}
    erasure = gateway.post("/v1/erasures", json=body, headers=headers).json()
    with services.database.reading() as session:
        ciphertext = session.scalars(select(TaskSubject.identifier).where(TaskSubject.ordinal == 0)).one()
    assert ciphertext is not None
    assert CANARY.encode() not in database_bytes(services), "not even before it is erased"
    system.settle()
    assert gateway.get(f"/v1/erasures/{erasure['id']}", headers=admin).json()["state"] == "completed"
    return ciphertext


def test_no_trace_of_the_person_is_left(
    erased: bytes,
    services: Services,
    gateway: TestClient,
    admin: dict[str, str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    places = {
        "database": database_bytes(services),
        "queue": _queue_bytes(services),
        "files": _file_bytes(services.settings.data_dir),
        "metrics": gateway.get("/metrics").content,
        "answers": _answers(gateway, admin),
        "logs": "".join(capfd.readouterr()).encode(),
    }
    for place, content in places.items():
        assert content, place
        assert CANARY.encode() not in content, place
        assert erased not in content, place
    assert REFERENCE.encode() not in places["queue"] + places["metrics"] + places["logs"]
    _check_parts(services)


def _check_parts(services: Services) -> None:
    """Check the columns of every part and features file, which are compressed."""
    tables = []
    for path in services.storage.list("attempts") + services.storage.list("datasets"):
        content = b"".join(services.storage.read(path))
        if content.startswith(b"PAR1"):
            tables.append(pq.read_table(io.BytesIO(content)))
    with services.database.reading() as session:
        expected = sorted(
            [FEATURES] if part.features_path is None else [FEATURES, TEXT]
            for part in session.scalars(select(DatasetPart).where(DatasetPart.last_generation.is_(None)))
        )
    assert [sorted(table.column_names[2] for table in tables)] == expected
    for table in tables:
        assert table.column_names[:2] == ["subject_id", "label"]
        assert not table.schema.metadata
        assert CANARY not in table.column("subject_id").to_pylist()
        assert CANARY not in str(table.column(2).to_pylist())


def _with_traces(part: bytes) -> bytes:
    """Return a part that also names the person in a categorical column and in the file's metadata."""
    table = pq.read_table(io.BytesIO(part))
    whose = table.column("subject_id").combine_chunks().dictionary_encode()
    table = table.append_column("whose", whose).replace_schema_metadata({"note": CANARY})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="none")
    assert sink.getvalue().count(CANARY.encode()) >= 3
    return sink.getvalue()


def _queue_bytes(services: Services) -> bytes:
    keys = list(services.redis.scan_iter("*"))
    return b"\0".join([*keys, *(services.redis.dump(key) or b"" for key in keys)])


def _file_bytes(folder: Path) -> bytes:
    return b"\0".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def _answers(gateway: TestClient, admin: dict[str, str]) -> bytes:
    paths = ["/v1/models/toy", "/v1/erasures", "/v1/batches", "/v1/certificates", "/v1/models/toy/versions"]
    certificate = gateway.get("/v1/certificates", headers=admin).json()["items"][0]["id"]
    batch = gateway.get("/v1/batches", headers=admin).json()["items"][0]["id"]
    paths += [f"/v1/certificates/{certificate}{end}" for end in ("", "/pack", "/bundle", "/evidence")]
    paths += [f"/v1/batches/{batch}", f"/v1/batches/{batch}/events"]
    return b"\0".join(gateway.get(path, headers=admin).content for path in paths)
