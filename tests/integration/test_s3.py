"""The whole path on S3: a real server (rclone), one that stumbles, and one that keeps old versions."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from app import orphans
from app.bootstrap import Services
from app.settings import Settings
from app.storage import Storage, StorageAway, s3_bucket, s3_transfer
from app.storage.s3 import S3Files
from tests import s3_server
from tests.integration.harness import System, dataset

Headers = dict[str, str]
KIB = 1 << 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_server.Server]:
    folder = tmp_path_factory.mktemp("s3") / "buckets"
    folder.mkdir()
    with s3_server.serve(folder) as running:
        yield running


@pytest.fixture
def in_environment(server: s3_server.Server, monkeypatch: pytest.MonkeyPatch) -> s3_server.Server:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture
def settings(
    settings: Settings, in_environment: s3_server.Server, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    bucket = in_environment.bucket()
    given = {
        "storage_url": f"s3://{bucket}/lethe",
        "storage_endpoint": in_environment.url,
        "import_roots": f"s3://{bucket}/source",
    }
    return Settings(**{**settings.model_dump(exclude_unset=True), **given})


@pytest.fixture(scope="module")
def before(server: s3_server.Server) -> Iterator[s3_server.Proxy]:
    with s3_server.proxy(server) as proxy:
        yield proxy


@pytest.fixture
def front(before: s3_server.Proxy, in_environment: s3_server.Server) -> s3_server.Proxy:
    before.seen.clear()
    before.fail("", 0)
    return before


@pytest.fixture
def shaky(front: s3_server.Proxy, in_environment: s3_server.Server) -> Storage:
    return Storage(f"s3://{in_environment.bucket()}/p", front.url)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_register_erase_certify_download_and_purge(
    gateway: TestClient, admin: Headers, system: System, services: Services, server: s3_server.Server
) -> None:
    manifest = {
        "family": "softmax",
        "width": 6,
        "classes": 3,
        "lambda": 0.05,
        "origins": {"features": "made up", "constants": "made up"},
        "policy": {"target_distance": 1e-4, "batch_subjects": 2},
    }
    Storage(services.settings.import_roots, server.url).write("imported.parquet", [dataset(seed=8)])
    assert gateway.post("/v1/models", json={"name": "toy", "manifest": manifest}, headers=admin).is_success
    whole = dataset()
    _send_in_pieces(gateway, admin, "/v1/models/toy/dataset/part0", whole)
    source = f"{services.settings.import_roots}/imported.parquet"
    asked = {"part": "part1", "uri": source}
    assert gateway.post("/v1/models/toy/dataset/import", json=asked, headers=admin).is_success
    assert gateway.post("/v1/models/toy/validate", headers=admin).status_code == 202
    system.settle()
    assert gateway.get("/v1/models/toy", headers=admin).json()["state"] == "ready"
    before = {*services.storage.list("datasets"), *services.storage.list("attempts")}
    assert len(before) == 3, "two parts and a checkpoint; no piece is left"

    erasure = gateway.post("/v1/erasures", json={"subjects": ["s1", "s2"]}, headers=admin).json()
    system.settle()
    done = gateway.get(f"/v1/erasures/{erasure['id']}", headers=admin).json()
    assert done["state"] == "completed"
    after = {*services.storage.list("datasets"), *services.storage.list("attempts")}
    assert before.isdisjoint(after)
    assert len(after) == 3
    _downloads(gateway, admin)
    assert "s1" not in _subjects(server.folder / services.settings.storage_url.removeprefix("s3://"))
    assert "s1" in _subjects(server.folder), "in the source of the import, which is its owner's to erase"


def _subjects(folder: Path) -> set[str]:
    """Everyone in any Parquet file that lies there, whatever it is called."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = [pq.read_table(path) for path in files if path.read_bytes().startswith(b"PAR1")]
    assert found
    return {subject for table in found for subject in table["subject_id"].to_pylist()}


def _send_in_pieces(gateway: TestClient, admin: Headers, where: str, whole: bytes) -> None:
    half = len(whole) // 2
    for start, end in ((0, half), (half, len(whole))):
        span = {"Content-Range": f"bytes {start}-{end - 1}/{len(whole)}"}
        answer = gateway.put(where, content=whole[start:end], headers={**admin, **span})
        assert answer.is_success, answer.text


def _downloads(gateway: TestClient, admin: Headers) -> None:
    where = "/v1/models/toy/versions/current/checkpoint"
    whole = gateway.get(where, headers=admin)
    assert f'"{hashlib.sha256(whole.content).hexdigest()}"' == whole.headers["ETag"]
    resumed = gateway.get(where, headers={**admin, "Range": "bytes=100-", "If-Range": whole.headers["ETag"]})
    assert resumed.status_code == 206
    assert resumed.content == whole.content[100:]


def _blocks(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield hashlib.sha256(str(number).encode()).digest() * (KIB // 32)


def test_a_long_file_goes_up_in_parts_and_comes_down_from_anywhere(
    shaky: Storage, front: s3_server.Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_transfer, "PART", 5 * KIB)
    stored = shaky.write("a/long", _blocks(12))
    expected = hashlib.sha256(b"".join(_blocks(12))).hexdigest()
    assert (stored.size, stored.sha256) == (12 * KIB, expected)
    sent = [path for method, path, _ in front.seen if method == "PUT" and "partNumber" in path]
    assert len(sent) == 3
    assert hashlib.sha256(b"".join(shaky.read("a/long"))).hexdigest() == expected
    front.seen.clear()
    assert b"".join(shaky.read("a/long", 11 * KIB + 5, 7)) == b"".join(_blocks(12))[11 * KIB + 5 :][:7]
    assert shaky.list("a") == ["a/long"]


@pytest.mark.parametrize(
    ("fault", "method", "part"),
    [
        ("500", "PUT", "partNumber=2"),
        ("503", "POST", "uploads"),
        ("cut", "PUT", "partNumber=1"),
        ("lost", "PUT", "partNumber=3"),
        ("lost", "POST", "uploadId"),
        ("torn", "GET", "a/long"),
        ("503", "GET", "a/long"),
        ("500", "HEAD", "a/long"),
    ],
)
def test_whatever_the_server_stumbles_over_is_tried_again(
    shaky: Storage,
    front: s3_server.Proxy,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    method: str,
    part: str,
) -> None:
    monkeypatch.setattr(s3_transfer, "PART", 5 * KIB)
    front.fail(fault, 1, method, part)
    stored = shaky.write("a/long", _blocks(11))
    assert hashlib.sha256(b"".join(shaky.read("a/long"))).hexdigest() == stored.sha256
    assert [entry[2] for entry in front.seen if entry[2]] == [fault], "it did stumble"
    assert shaky.list("a") == ["a/long"]


def test_a_server_that_stays_down_is_given_up_and_leaves_no_file(
    shaky: Storage, front: s3_server.Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_transfer, "PART", 5 * KIB)
    front.fail("503", 1000, "PUT", "partNumber=2")
    with pytest.raises(StorageAway):
        shaky.write("a/long", _blocks(11))
    assert len([entry for entry in front.seen if entry[2]]) <= s3_bucket.TRIES * s3_bucket.BODY_TRIES
    assert shaky.list("a") == []


def test_a_server_that_never_answers_is_not_waited_for_for_ever(
    in_environment: s3_server.Server, front: s3_server.Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_bucket, "READ_SECONDS", 1)
    storage = Storage(f"s3://{in_environment.bucket()}/p", front.url)
    storage.write("a/x", [b"ok"])
    front.fail("silent", 1, "GET")
    assert storage.list("a") == ["a/x"]
    assert any(fault == "silent" for _, _, fault in front.seen)


KILLED = """
import os, sys
from app.storage import Storage, s3_transfer
s3_transfer.PART = 5 << 20
def chunks():
    yield bytes(12 << 20)
    os._exit(9)
Storage(sys.argv[1], sys.argv[2]).write(sys.argv[3], chunks())
"""


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_upload_that_nobody_finishes_is_listed_as_a_draft_and_swept(services: Services) -> None:
    job, token = "0" * 8 + "-0000-0000-0000-" + "0" * 12, "1" * 8 + "-0000-0000-0000-" + "0" * 12
    path = f"attempts/{job}/{token}/part.parquet"
    settings = services.settings
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, settings.storage_url, settings.storage_endpoint, path],
        check=False,
        cwd=Path(__file__).parents[2],
        env=dict(os.environ),
    )
    assert ended.returncode == 9
    services.storage.write(f"attempts/{job}/other.txt", [b"not of an attempt"])
    (draft,) = services.storage.list(f"attempts/{job}/{token}")
    assert draft.startswith(f"{path}.")
    assert draft.endswith(".draft")
    assert not services.storage.exists(path)
    assert orphans.sweep(services) == 1
    assert services.storage.list("attempts") == [f"attempts/{job}/other.txt"]


class Versioned(s3_bucket.Bucket):
    """A stand-in for a bucket that keeps versions, which rclone cannot: it answers as S3 is documented."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        super().__init__("stand-in")
        self.entries, self.asked = entries, list[str]()
        self.refuses = ""

    def ask(self, method: str, **given: Any) -> dict[str, Any]:
        self.asked.append(method)
        return getattr(self, f"_{method}")(**given)

    def _get_bucket_versioning(self) -> dict[str, Any]:
        return {"Status": "Suspended"}

    def _list_multipart_uploads(self) -> dict[str, Any]:
        return {}

    def _list_object_versions(self, Prefix: str, KeyMarker: str = "", VersionIdMarker: str = "") -> Any:
        found = [entry for entry in self.entries if entry["Key"].startswith(Prefix)]
        places = [(entry["Key"], entry["VersionId"]) for entry in found]
        start = places.index((KeyMarker, VersionIdMarker)) + 1 if KeyMarker else 0
        page = found[start : start + 2]
        last = page[-1] if page else {"Key": "", "VersionId": ""}
        return {
            "Versions": [entry for entry in page if "Size" in entry],
            "DeleteMarkers": [entry for entry in page if "Size" not in entry],
            "IsTruncated": start + 2 < len(found),
            "NextKeyMarker": last["Key"],
            "NextVersionIdMarker": last["VersionId"],
        }

    def _delete_objects(self, Delete: dict[str, Any]) -> dict[str, Any]:
        gone = {(entry["Key"], entry["VersionId"]) for entry in Delete["Objects"]}
        kept = [e for e in self.entries if (e["Key"], e["VersionId"]) not in gone or e["Key"] == self.refuses]
        self.entries = kept
        return {"Errors": [{"Code": "AccessDenied"}]} if any(k == self.refuses for k, _ in gone) else {}


def _version(key: str, version: str, *, latest: bool = False, marker: bool = False) -> dict[str, Any]:
    return {"Key": key, "VersionId": version, "IsLatest": latest, **({} if marker else {"Size": 1})}


def test_deleting_takes_every_old_version_and_every_marker_of_a_deletion() -> None:
    others = [_version("p/a/xy", "1", latest=True), _version("p/b", "1", latest=True)]
    own = [
        _version("p/a/x", "3", latest=True, marker=True),
        _version("p/a/x", "2"),
        _version("p/a/x", "null"),
        _version("p/a/x/below", "9", latest=True),
        _version("p/a/x/below", "8", marker=True),
    ]
    bucket = Versioned([*own, *others])
    S3Files("s3://stand-in/p", bucket=bucket).delete("a/x")
    assert bucket.entries == others


def test_a_version_that_may_not_be_deleted_is_not_called_deleted() -> None:
    bucket = Versioned([_version("p/a", "1", latest=True)])
    bucket.refuses = "p/a"
    with pytest.raises(StorageAway, match="AccessDenied"):
        S3Files("s3://stand-in/p", bucket=bucket).delete("a")


def test_a_gateway_without_s3_does_not_load_its_client() -> None:
    code = (
        "import sys, app.main, app.bootstrap; sys.exit('aiobotocore' in sys.modules or 's3fs' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_extra_is_one_line_at_the_start(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['s3fs'] = None; sys.path.insert(0, '.')\n"
        "from app import storage; storage.find_spec = lambda name: None\n"
        "from app.startup import settings_or_exit; settings_or_exit()"
    )
    environment = {**os.environ, "LETHE_STORAGE_URL": "s3://bucket/prefix"}
    ended = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environment
    )
    (line,) = (line for line in ended.stderr.splitlines() if "lethe[s3]" in line)
    assert line == "lethe: LETHE_STORAGE_URL: an s3:// URL needs the extra `s3`: pip install 'lethe[s3]'"
