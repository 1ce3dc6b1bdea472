"""A full run leaves no trace of the person: a canary is searched for everywhere bytes can lie."""

import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text

from app.bootstrap import Services
from app.db.tables import TaskSubject
from app.db.types import Base
from tests.integration.harness import MANIFEST, System, parquet

CANARY = "canary-5b1c0e7d-person"
REFERENCE = "case-4711"


@pytest.fixture
def erased(gateway: TestClient, admin: dict[str, str], system: System, services: Services) -> bytes:
    """A completed erasure of the canary; the ciphertext that stood in the database meanwhile."""
    generator = np.random.default_rng(3)
    features, labels = generator.normal(size=(60, 6)) / 4, np.arange(60) % 3
    part = _with_traces(parquet([CANARY if i % 10 == 0 else f"s{i}" for i in range(60)], labels, features))
    gateway.post("/v1/models", json={"name": "toy", "manifest": MANIFEST}, headers=admin)
    gateway.put("/v1/models/toy/dataset/part0", content=part, headers=admin)
    gateway.post("/v1/models/toy/validate", headers=admin)
    system.settle()
    headers = admin | {"Idempotency-Key": CANARY}
    body = {"subjects": [CANARY, "s1"], "reference": REFERENCE}
    erasure = gateway.post("/v1/erasures", json=body, headers=headers).json()
    with services.database.reading() as session:
        ciphertext = session.scalars(select(TaskSubject.identifier).where(TaskSubject.ordinal == 0)).one()
    assert ciphertext is not None
    assert CANARY.encode() not in _database_bytes(services), "not even before it is erased"
    system.settle()
    assert gateway.get(f"/v1/erasures/{erasure['id']}", headers=admin).json()["state"] == "completed"
    return ciphertext


def test_nothing_of_the_person_is_left_anywhere(
    erased: bytes,
    services: Services,
    gateway: TestClient,
    admin: dict[str, str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    places = {
        "database": _database_bytes(services),
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
    for path in services.storage.list("attempts") + services.storage.list("datasets"):
        if path.endswith(".parquet"):
            table = pq.read_table(io.BytesIO(b"".join(services.storage.read(path))))
            assert table.column_names == ["subject_id", "label", "features"]
            assert not table.schema.metadata
            assert CANARY not in table.column("subject_id").to_pylist()


def _with_traces(part: bytes) -> bytes:
    """The person beside the three columns: in a categorical one, and in the file's own metadata."""
    table = pq.read_table(io.BytesIO(part))
    whose = table.column("subject_id").combine_chunks().dictionary_encode()
    table = table.append_column("whose", whose).replace_schema_metadata({"note": CANARY})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="none")
    assert sink.getvalue().count(CANARY.encode()) >= 3
    return sink.getvalue()


def _database_bytes(services: Services) -> bytes:
    """SQLite: the file and its WAL, free pages included. PostgreSQL: every row of every table."""
    if services.database.is_sqlite:
        file = Path(services.settings.database.removeprefix("sqlite:///"))
        return b"".join(part.read_bytes() for part in file.parent.glob(file.name + "*"))
    with services.database.reading() as session:
        rows = [
            bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()
            for table in Base.metadata.sorted_tables
            for row in session.execute(text(f'SELECT * FROM "{table.name}"'))
            for value in row
        ]
    return b"\0".join(rows)


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
