"""The whole path on S3: with a real server (rclone), one with faults, and one that keeps old versions."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from app.core.settings import Settings
from app.core.storage import Storage, StorageUnavailable, s3
from app.core.storage.s3 import S3Files
from app.dispatcher import orphan_sweep
from app.services import Services
from tests import s3_server
from tests.integration.harness import System, dataset
from tests.s3_server import ObjectVersion

Headers = dict[str, str]
MIB = 1 << 20


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
        "import_roots": f"*=s3://{bucket}/source",
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
    root = services.settings.import_roots.removeprefix("*=")
    Storage(root, server.url).write("imported.parquet", [dataset(seed=8)])
    assert gateway.post("/v1/models", json={"name": "toy", "manifest": manifest}, headers=admin).is_success
    whole = dataset()
    _send_in_pieces(gateway, admin, "/v1/models/toy/dataset/part0", whole)
    source = f"{root}/imported.parquet"
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
    """Return everyone in any Parquet file below a folder, whatever its name."""
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
        yield hashlib.sha256(str(number).encode()).digest() * (MIB // 32)


def test_a_long_file_goes_up_in_parts_and_comes_down_from_anywhere(
    shaky: Storage, front: s3_server.Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "PART", 5 * MIB)
    stored = shaky.write("a/long", _blocks(12))
    expected = hashlib.sha256(b"".join(_blocks(12))).hexdigest()
    assert (stored.size, stored.sha256) == (12 * MIB, expected)
    sent = [path for method, path, _ in front.seen if method == "PUT" and "partNumber" in path]
    assert len(sent) == 3
    assert hashlib.sha256(b"".join(shaky.read("a/long"))).hexdigest() == expected
    front.seen.clear()
    assert b"".join(shaky.read("a/long", 11 * MIB + 5, 7)) == b"".join(_blocks(12))[11 * MIB + 5 :][:7]
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
    monkeypatch.setattr(s3, "PART", 5 * MIB)
    front.fail(fault, 1, method, part)
    stored = shaky.write("a/long", _blocks(11))
    assert hashlib.sha256(b"".join(shaky.read("a/long"))).hexdigest() == stored.sha256
    assert [entry[2] for entry in front.seen if entry[2]] == [fault], "it did stumble"
    assert shaky.list("a") == ["a/long"]


def test_a_server_that_stays_down_is_given_up_and_leaves_no_file(
    shaky: Storage, front: s3_server.Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "PART", 5 * MIB)
    front.fail("503", 1000, "PUT", "partNumber=2")
    with pytest.raises(StorageUnavailable):
        shaky.write("a/long", _blocks(11))
    assert len([entry for entry in front.seen if entry[2]]) <= s3.TRIES * s3.BODY_TRIES
    assert shaky.list("a") == []


def test_a_server_that_never_answers_is_not_waited_for_for_ever(
    in_environment: s3_server.Server, front: s3_server.Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "READ_SECONDS", 1)
    storage = Storage(f"s3://{in_environment.bucket()}/p", front.url)
    storage.write("a/x", [b"ok"])
    front.fail("silent", 1, "GET")
    assert storage.list("a") == ["a/x"]
    assert any(fault == "silent" for _, _, fault in front.seen)


KILLED = """
import os, sys
from app.core.storage import Storage, s3
s3.PART = 5 << 20
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
    assert orphan_sweep.sweep(services) == 1
    assert services.storage.list("attempts") == [f"attempts/{job}/other.txt"]


def test_deleting_takes_every_old_version_and_every_marker_of_a_deletion(
    in_environment: s3_server.Server,
) -> None:
    others = [ObjectVersion("p/a/xy", "1", is_latest=True), ObjectVersion("p/b", "1", is_latest=True)]
    own = [
        ObjectVersion("p/a/x", "3", is_latest=True, is_marker=True),
        ObjectVersion("p/a/x", "2"),
        ObjectVersion("p/a/x", "null"),
        ObjectVersion("p/a/x/below", "9", is_latest=True),
        ObjectVersion("p/a/x/below", "8", is_marker=True),
    ]
    with s3_server.versioned_bucket([*own, *others]) as bucket:
        S3Files("s3://bucket/p", bucket.url).delete("a/x")
        assert bucket.versions == others


def test_a_version_that_may_not_be_deleted_is_not_called_deleted(in_environment: s3_server.Server) -> None:
    with s3_server.versioned_bucket([ObjectVersion("p/a", "1", is_latest=True)]) as bucket:
        bucket.protected_key = "p/a"
        with pytest.raises(StorageUnavailable, match="AccessDenied"):
            S3Files("s3://bucket/p", bucket.url).delete("a")


def test_a_listing_that_breaks_off_is_not_taken_for_the_whole(in_environment: s3_server.Server) -> None:
    versions = [ObjectVersion("p/a", str(number)) for number in range(5)]
    with s3_server.versioned_bucket(list(versions)) as bucket:
        bucket.breaks_off = True
        with pytest.raises(StorageUnavailable, match="broke off"):
            S3Files("s3://bucket/p", bucket.url).delete("a")
        assert bucket.versions == versions


@pytest.mark.parametrize("size", [3, 6 << 20])
def test_a_bucket_that_does_not_exist_is_an_error(in_environment: s3_server.Server, size: int) -> None:
    storage = Storage("s3://no-such-bucket/p", in_environment.url)
    with pytest.raises(StorageUnavailable):
        storage.write("a", [bytes(size)])


def test_a_gateway_without_s3_does_not_load_its_client() -> None:
    code = (
        "import sys, app.gateway.main, app.startup\n"
        "sys.exit('aiobotocore' in sys.modules or 's3fs' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_package_is_one_line_at_the_start(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['s3fs'] = None; sys.path.insert(0, '.')\n"
        "from app.core import storage; storage.find_spec = lambda name: None\n"
        "from app.startup import settings_or_exit; settings_or_exit()"
    )
    environment = {**os.environ, "LETHE_STORAGE_URL": "s3://bucket/prefix"}
    ended = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environment
    )
    (line,) = (line for line in ended.stderr.splitlines() if line.startswith("lethe: "))
    assert line == (
        "lethe: LETHE_STORAGE_URL: an s3:// URL needs packages that are not installed: "
        "pip install 'botocore>=1.37' 's3fs>=2025.5'"
    )
