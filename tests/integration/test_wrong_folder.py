"""Commands that need an installation create none: in the wrong folder they say where they looked."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.core import vault
from app.core.clock import now
from app.core.settings import Settings
from app.db.tables import WorkerSeen
from app.doctor import CHECKS, State, examine
from app.services import Services

ADVICE = (
    "Change to the folder in which you run `lethe up`, pass --data-dir, or set LETHE_DATA_DIR or "
    "LETHE_DATABASE_URL. `lethe up` creates a new installation."
)
READ_ONLY = (
    "key list",
    "key create intake --scope admin",
    "key revoke abcdef",
    "backup copy",
    "representation remove minilm",
    "doctor",
)


def _run(folder: Path, words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LETHE_")}
    return subprocess.run(
        [sys.executable, "-m", "lethe.cli", *words.split()],
        cwd=folder,
        env=kept | {"XDG_CONFIG_HOME": str(folder / "config")} | settings,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("words", READ_ONLY)
def test_in_the_wrong_folder_it_says_where_it_looked_and_leaves_nothing_behind(
    tmp_path: Path, words: str
) -> None:
    done = _run(tmp_path, words)
    place = tmp_path / "lethe-data" / "lethe.db"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"lethe: there is no Lethe database at {place}. {ADVICE}\n"
    assert list(tmp_path.iterdir()) == []


def test_every_way_to_name_a_folder_is_followed(tmp_path: Path) -> None:
    for words, settings, place in (
        ("key list --data-dir here", {}, tmp_path / "here" / "lethe.db"),
        ("key list", {"LETHE_DATA_DIR": "there"}, tmp_path / "there" / "lethe.db"),
        ("key list", {"LETHE_DATABASE_URL": "sqlite:///some.db"}, tmp_path / "some.db"),
        ("key list --data-dir here", {"LETHE_DATA_DIR": "there"}, tmp_path / "here" / "lethe.db"),
    ):
        done = _run(tmp_path, words, **settings)
        assert done.returncode == 2
        assert f"there is no Lethe database at {place}." in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_database_server_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    url = "postgresql+psycopg://lethe:secret@127.0.0.1:1/lethe"
    done = _run(tmp_path, "key list", LETHE_DATABASE_URL=url)
    assert done.returncode == 2
    assert done.stderr == (
        "lethe: the database postgresql+psycopg://lethe:***@127.0.0.1:1/lethe cannot be reached; check that "
        "it is running, and LETHE_DATABASE_URL\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_in_the_right_folder_keys_are_created_listed_and_revoked_by_the_start_of_their_id(
    tmp_path: Path,
) -> None:
    assert _run(tmp_path, "migrate").returncode == 0
    secret = _run(tmp_path, "key create intake --scope erasures:write").stdout.strip()
    identifier = secret.split("_")[1]
    assert "intake" in _run(tmp_path, "key list").stdout
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert "intake" in _run(elsewhere, f"key list --data-dir {tmp_path / 'lethe-data'}").stdout
    assert "there is no API key ffff" in _run(tmp_path, "key revoke ffff").stderr
    assert "Revoked the key" in _run(tmp_path, f"key revoke {identifier[:14]}").stdout
    assert list(elsewhere.iterdir()) == []


def test_an_empty_database_is_not_migrated_by_a_command_that_reads(tmp_path: Path) -> None:
    (tmp_path / "lethe-data").mkdir()
    file = tmp_path / "lethe-data" / "lethe.db"
    file.touch()
    done = _run(tmp_path, "key list")
    assert (done.returncode, done.stderr) == (
        2,
        f"lethe: the database {file} is not up to date; run `lethe migrate`\n",
    )
    file.write_text("not a database, but long enough to be taken for one" * 100)
    done = _run(tmp_path, "key list")
    assert done.returncode == 2
    assert f"the database {file} cannot be used" in done.stderr


@pytest.fixture
def installation(tmp_path: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A data folder with a migrated database, in which nothing runs."""
    for name in [name for name in os.environ if name.startswith("LETHE_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.copy(sqlite_template, folder / "lethe.db")
    return Settings(data_dir=folder)


def _states(settings: Settings) -> dict[str, State]:
    return {finding.check: finding.state for finding in examine(settings.data_dir)}


def test_the_doctor_says_what_is_missing_and_changes_nothing(installation: Settings) -> None:
    before = {path: path.stat().st_size for path in installation.data_dir.rglob("*")}
    findings = examine(installation.data_dir)
    assert [finding.check for finding in findings] == [
        "settings",
        *(check.__name__.lstrip("_") for check in CHECKS),
    ]
    problems = {finding.check: finding for finding in findings if finding.state == State.PROBLEM}
    assert problems.keys() == {"queue", "worker"}
    assert all(finding.remedy for finding in problems.values())
    after = {path: path.stat().st_size for path in installation.data_dir.rglob("*")}
    assert {path: size for path, size in after.items() if not path.name.endswith(("-wal", "-shm"))} == before


def test_the_doctor_recognises_a_worker_keys_and_a_wrong_clock(installation: Settings) -> None:
    services = Services(installation)
    _ = services.vault
    with services.database.writing() as session:
        session.add(WorkerSeen(name="w", seen_at=now()))
    states = _states(installation)
    assert (states["worker"], states["keys"], states["clock"]) == (State.OK, State.OK, State.OK)
    installation.deployment_key_path.chmod(0o644)
    assert _states(installation)["keys"] == State.WARNING
    installation.deployment_key_path.unlink()
    assert _states(installation)["keys"] == State.PROBLEM
    vault.create(installation.deployment_key_path)
    assert _states(installation)["keys"] == State.PROBLEM, "this is another key"
    with services.database.writing() as session:
        session.get_one(WorkerSeen, "w").seen_at = now().replace(year=now().year + 1)
    assert _states(installation)["clock"] == State.PROBLEM
    services.close()


def test_the_doctor_names_a_setting_that_cannot_be_used(
    installation: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LETHE_PROT", "1")
    [finding] = examine(installation.data_dir)
    assert (finding.check, finding.state) == ("settings", State.PROBLEM)
    assert "LETHE_PROT" in finding.detail


def test_the_doctor_reports_as_json_and_exits_with_1(installation: Settings) -> None:
    folder = installation.data_dir.parent
    done = _run(folder, "doctor --json --data-dir data")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert not document["healthy"]
    assert document["findings"][0]["check"] == "settings"
