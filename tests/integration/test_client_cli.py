"""Every command of the client against a real service: for people, and with --json for scripts."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from typer.testing import CliRunner, Result

from app.db.tables import Task
from app.gateway.auth.scopes import Scope
from lethe.cli.main import app
from tests.integration.client_world import POLICY, TOY, World, register, world
from tests.integration.harness import UNREACHABLE, dataset

__all__ = ["world"]
SECRET_SUBJECTS = ("s1", "s2", "s3", "s4", "s7", "nobody-we-know")


class Terminal:
    """Runs the command with the environment that a user would set."""

    def __init__(self, world: World) -> None:
        self.runner = CliRunner(env={"LETHE_URL": world.url, "LETHE_API_KEY": world.key, "COLUMNS": "200"})

    def run(self, *words: object, code: int = 0, stdin: str | None = None, env: Any = None) -> Result:
        done = self.runner.invoke(app, [str(word) for word in words], input=stdin, env=env)
        assert done.exit_code == code, (done.exit_code, done.stdout, done.stderr, done.exception)
        return done

    def json(self, *words: object, code: int = 0, stdin: str | None = None) -> Any:
        """Run with --json. Standard output must be one JSON document and nothing else."""
        return json.loads(self.run(*words, "--json", code=code, stdin=stdin).stdout)


@pytest.fixture(scope="module")
def terminal(world: World) -> Terminal:
    return Terminal(world)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "train-1.parquet").write_bytes(dataset())
    (folder / "Unseen.parquet").write_bytes(dataset(rows=60, subjects=60, seed=8))
    (folder / "manifest.json").write_text(json.dumps({"name": "ignored", "manifest": TOY}))
    (folder / "manifest.toml").write_text(_toml())
    return folder


def _toml() -> str:
    policy = "\n".join(f"{name} = {value}" for name, value in POLICY.items())
    return (
        f'family = "softmax"\nwidth = 6\nclasses = 3\nlambda = 0.05\n'
        f'[origins]\nfeatures = "made up"\nconstants = "made up"\n[policy]\n{policy}\n'
    )


@pytest.fixture(scope="module")
def erased(world: World, terminal: Terminal, files: Path) -> Any:
    """Register a model and complete one erasure, both through the command."""
    model = terminal.json(
        *("model", "register", "cli", files / "manifest.toml", "--wait"),
        *("--data", files / "train-1.parquet", "--holdout", files / "Unseen.parquet"),
    )
    assert model["state"] == "ready"
    words = ("erase", "-", "--model", "cli", "--reference", "case-9", "--flush", "--wait")
    erasure = terminal.json(*words, stdin="s1\n\ns2\r\n")
    assert erasure["state"] == "completed"
    assert erasure["subjects"] == 2
    return erasure


def test_models_are_registered_listed_and_shown(terminal: Terminal, files: Path, erased: Any) -> None:
    words = ("model", "register", "again", files / "manifest.json")
    assert "uploading" in terminal.run(*words).stdout
    more = ("--data", files / "train-1.parquet", "--wait")
    assert "ready" in terminal.run(*words, *more).stdout, "the same command resumes"
    assert "already" in terminal.run(*words, *more, code=1).stderr
    assert {model["name"] for model in terminal.json("model", "list")} == {"cli", "again"}
    assert "softmax" in terminal.run("model", "list").stdout
    description = terminal.json("model", "show", "cli")
    assert {part["part"] for part in description["dataset"]} == {"train1", "unseen"}
    assert str(description["versions"][0]["certificate_id"]) in terminal.run("model", "show", "cli").stdout


def test_an_erasure_is_requested_and_followed_and_identifiers_are_never_printed(
    terminal: Terminal, erased: Any, tmp_path: Path
) -> None:
    lines = tmp_path / "people.txt"
    lines.write_text("s3\ns4\n")
    done = terminal.run("erase", lines, "--model", "cli", "--flush", "--wait")
    assert "completed" in done.stdout
    for name, text in (("more.csv", "subject_id\nnobody-we-know\n"), ("more.ndjson", '"s7"\n')):
        (tmp_path / name).write_text(text)
        asked = terminal.json("erase", tmp_path / name, "--model", "cli", "--reference", name)
        assert asked["subjects"] == 1
        assert asked["state"] == "received"
    for words in (("status",), ("status", erased["id"]), ("watch", erased["id"]), ("receipts", erased["id"])):
        for run in (terminal.run(*words), terminal.run(*words, "--json")):
            assert not [subject for subject in SECRET_SUBJECTS if f'"{subject}"' in run.output]
            assert "nobody" not in run.output
    assert terminal.json("status", "--reference", "case-9")[0]["id"] == erased["id"]
    assert terminal.json("status", erased["id"]) == terminal.json("watch", erased["id"])
    assert "case-9" in terminal.run("status", "--most", 9).stdout
    terminal.run("erase", lines, "--model", "cli", "--wait", "--timeout", "0", code=6)
    again = (
        "erase",
        lines,
        "--model",
        "cli",
        "--idempotency-key",
        "k-1",
        "--received-at",
        "2026-01-31T09:00Z",
    )
    assert terminal.json(*again)["id"] == terminal.json(*again)["id"]


def test_invalid_input_is_explained_in_one_line(terminal: Terminal, erased: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "latin").write_bytes(b"\xe9\n")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    assert "one per line" in terminal.run("erase", tmp_path / "empty", code=2).stderr
    assert "UTF-8" in terminal.run("erase", tmp_path / "latin", code=2).stderr
    assert "there is no file" in terminal.run("erase", tmp_path / "none", code=2).stderr
    assert "not a date" in terminal.run("erase", "-", "--received-at", "soon", code=2, stdin="s1").stderr
    assert "not valid JSON" in terminal.run("model", "register", "x", tmp_path / "broken.json", code=2).stderr
    assert "no manifest" in terminal.run("model", "register", "x", tmp_path / "list.json", code=2).stderr
    refused = terminal.json("erase", "-", "--reference", "a\tb", code=2, stdin="s1")
    assert refused["error"]["errors"][0]["at"] == "body/reference"
    terminal.run("status", "--no-such-option", code=2)


def test_a_completed_batch_is_watched_and_refuses_decisions(terminal: Terminal, erased: Any) -> None:
    batch_id = erased["tasks"][0]["batch_id"]
    seen = terminal.json("watch", batch_id)
    assert seen["batch"]["state"] == "completed"
    assert [event["kind"] for event in seen["events"]][-1] == "completed"
    assert terminal.json("watch", batch_id, "--timeout", 60) == seen
    watched = terminal.run("watch", batch_id)
    assert "step solve" in watched.stderr
    assert "completed" in watched.stdout
    assert batch_id in [batch["id"] for batch in terminal.json("batch", "list")]
    assert batch_id in terminal.run("batch", "list").stdout
    assert terminal.json("batch", "show", batch_id)["state"] == "completed"
    assert "completed" in terminal.run("batch", "show", batch_id).stdout
    for decision in ("retry", "approve", "discard", "cancel"):
        assert "conflicts" in terminal.run("batch", decision, batch_id, code=1).stderr
        assert terminal.json("batch", decision, batch_id, code=1)["error"]["status"] == 409


def test_a_held_batch_exits_with_1_until_it_is_approved(world: World, terminal: Terminal) -> None:
    with world.sync() as lethe:
        register(lethe, "gated", quality_gate=UNREACHABLE)
    held = terminal.run("erase", "-", "--model", "gated", "--flush", "--wait", code=1, stdin="s1")
    batch_id = terminal.json("status", "--model", "gated")[0]["tasks"][0]["batch_id"]
    assert f"lethe batch approve {batch_id}" in held.stderr
    assert "lethe batch retry" not in held.stderr, "a draw is approved or discarded"
    events = [line for line in held.stderr.splitlines() if line.startswith(("erasure: ", "gated: "))]
    assert 0 < len(events) == len(set(events)), "no event is shown twice"
    assert terminal.json("watch", batch_id, code=1)["events"][-1]["kind"] == "held"
    terminal.run("batch", "approve", batch_id)
    assert terminal.json("watch", batch_id)["batch"]["state"] == "completed"


def test_weights_are_downloaded_and_verified(
    terminal: Terminal, erased: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    got = terminal.json("download", "cli", "--pack", "pack.json")
    file = Path(got["file"])
    assert file.name == f"cli-v{got['version']}.safetensors"
    assert "VERIFIED" in terminal.run("verify", "pack.json", "--model", file).stdout
    assert terminal.json("verify", "pack.json", "--model", file)["verified"]
    assert got["sha256"] in terminal.run("download", "cli", "--to", "again.safetensors").stdout
    assert Path("again.safetensors").read_bytes() == file.read_bytes()
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    assert not terminal.json("verify", "pack.json", "--model", file, code=1)["verified"]
    terminal.run("verify", "none.json", code=2)
    assert "superseded" in terminal.run("download", "cli", "--version", 0, code=5).stderr
    assert not list(tmp_path.glob("*.part")) + list(tmp_path.glob("*.lock"))


def test_advice_is_a_table_with_the_recommendation_and_the_warning(world: World, terminal: Terminal) -> None:
    with world.sync() as lethe:
        lethe.models.create("advised-cli", TOY)
    assert "no holdout" in terminal.run("model", "advise", "advised-cli", code=1).stderr
    with world.sync() as lethe:
        lethe.models.upload_holdout("advised-cli", "h0", dataset(rows=60, subjects=60, seed=8))
    text = terminal.run("model", "advise", "advised-cli").stdout
    rows = [line for line in text.splitlines() if line.rstrip().endswith("recommended")]
    assert len(rows) == 1
    assert "Expected F1" in text
    assert "assurance on the model's certificates is void" in " ".join(text.split())
    choice = terminal.json("model", "advise", "advised-cli")["result"]["recommendation"]
    assert rows[0].split()[:2] == [f"{choice['lambda']:.4g}", f"{choice['target_distance']:.4g}"]
    assert f"λ = {choice['lambda']:g}, Δ* = {choice['target_distance']:g}" in text
    with world.sync() as lethe:
        lethe.models.upload_holdout("advised-cli", "h0", b"no Parquet")
    failed = terminal.run("model", "advise", "advised-cli", code=1)
    assert "not a Parquet file" in failed.stdout
    assert terminal.json("model", "advise", "advised-cli", code=1)["state"] == "failed"


def test_ledger_reports_and_receipts(terminal: Terminal, erased: Any, tmp_path: Path) -> None:
    assert terminal.json("ledger", "cli")["entries"]
    assert "Releases left" in terminal.run("ledger", "cli").stdout
    assert terminal.json("evaluate", "cli")["result"]["current"]["micro_f1"] > 0.5
    assert "Retrained" in terminal.run("evaluate", "cli").stdout
    assert terminal.json("audit", "cli")["result"]["verdict"].startswith("consistent")
    assert "Verdict" in terminal.run("audit", "cli").stdout
    assert terminal.json("audit", "cli", "--no-wait")["state"] in ("waiting", "running", "completed")
    terminal.run("receipts", erased["id"], "--to", tmp_path / "receipts")
    assert {path.name for path in (tmp_path / "receipts").iterdir()} == {"cli-0.json", "cli-1.json"}
    assert terminal.run("receipts", erased["id"], "--acknowledge").exit_code == 0
    assert terminal.json("receipts", erased["id"], code=5)["error"]["status"] == 410


def test_the_exit_status_and_the_message_say_what_went_wrong(world: World, terminal: Terminal) -> None:
    assert "LETHE_API_KEY" in terminal.run("model", "list", "--api-key", "lethe_wrong", code=4).stderr
    narrow = world.key_for(Scope.ERASURES_READ)
    assert "models:read" in terminal.run("model", "list", "--api-key", narrow, code=4).stderr
    assert "lethe model list" in terminal.run("model", "show", "nobody", code=5).stderr
    refused = terminal.json("model", "show", "nobody", code=5)
    assert refused["error"]["type"] == "urn:lethe:problem:not-found"
    nowhere = terminal.run("status", "--url", "http://127.0.0.1:1", code=3)
    assert nowhere.stdout == ""
    assert "lethe up" in nowhere.stderr
    assert terminal.run("ledger", "nobody", code=5).stdout == ""


def test_a_failed_batch_exits_with_1(world: World, terminal: Terminal, erased: Any) -> None:
    with world.sync() as lethe:
        lethe.models.upload_part("cli", "junk", b"this is no Parquet")
        batch_id = lethe.models.append("cli").batch_id
    assert terminal.json("watch", batch_id, code=1)["batch"]["state"] == "failed"
    assert "Parquet" in terminal.run("watch", batch_id, code=1).stdout


def test_a_failed_erasure_exits_with_1(world: World, terminal: Terminal, erased: Any) -> None:
    with world.sync() as lethe:
        erasure = lethe.erasures.create(["s9"], models=["cli"])
    with world.services.database.writing() as session:
        session.execute(update(Task).where(Task.erasure_id == erasure.id).values(state="failed"))
    assert terminal.json("status", erasure.id, code=1)["state"] == "failed"
    assert "failed" in terminal.run("watch", erasure.id, code=1).stdout


def test_spaces_are_sent_as_they_are_and_near_matches_are_shown(terminal: Terminal, erased: Any) -> None:
    words = ("erase", "-", "--model", "cli", "--flush", "--wait")
    erased_run = terminal.run(*words, stdin=" S9\nnobody-here\n")
    assert "1 identifier begins or ends with white space (number 1 of the request)" in erased_run.stderr
    notice = "cli: 1 person in this model's data has an identifier that differs only in case, spacing or"
    assert notice in " ".join(erased_run.stdout.split())
    assert "S9" not in erased_run.stdout + erased_run.stderr
    newest = terminal.json("status", "--most", "1")[0]
    assert newest["tasks"][0]["near_matches"] == 1
    assert notice in " ".join(terminal.run("status", newest["id"]).stdout.split())
    listed = terminal.run("receipts", newest["id"])
    assert "counts as another person" in listed.stderr
