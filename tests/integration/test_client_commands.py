"""The commands for models, erasures, webhooks and access against a real service, with abbreviated ids."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from app.gateway.auth.scopes import Scope
from lethe.certificate.keys import KeySet
from lethe.cli import doctor as doctor_command
from lethe.cli.main import app
from lethe.client.stored_login import login_file, read_login
from tests.integration.client_world import TOY, World, register, world
from tests.integration.harness import dataset

__all__ = ["world"]
Env = dict[str, str | None]


class Terminal:
    """Runs the command with the environment that a user would set, and no stored login."""

    def __init__(self, world: World, home: Path) -> None:
        self.env = {
            "LETHE_URL": world.url,
            "LETHE_API_KEY": world.key,
            "COLUMNS": "200",
            "XDG_CONFIG_HOME": str(home),
        }

    def run(self, *words: object, code: int = 0, stdin: str | None = None, env: Env | None = None) -> Result:
        done = CliRunner(env=self.env).invoke(app, [str(word) for word in words], input=stdin, env=env)
        assert done.exit_code == code, (done.exit_code, done.stdout, done.stderr, done.exception)
        return done

    def json(self, *words: object, code: int = 0, stdin: str | None = None, env: Env | None = None) -> Any:
        return json.loads(self.run(*words, "--json", code=code, stdin=stdin, env=env).stdout)


@pytest.fixture(scope="module")
def terminal(world: World, tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    return Terminal(world, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def ready(world: World) -> str:
    with world.sync() as lethe:
        register(lethe, "ready")
    return "ready"


@pytest.fixture(scope="module")
def erasure(terminal: Terminal, ready: str) -> Any:
    """An erasure that waits for its batch."""
    return terminal.json("erase", "-", "--model", ready, "--reference", "case-1", stdin="s1\n")


def test_a_policy_is_shown_and_changed(terminal: Terminal, ready: str) -> None:
    assert terminal.json("model", "policy", "show", ready)["batch_subjects"] == 1000
    shown = terminal.run("model", "policy", "show", ready).stdout
    assert "A batch is sealed when this many people wait." in shown
    shown = terminal.run("model", "policy", "set", ready, "batch_subjects=998").stdout
    assert "998" in shown
    assert "lifetime_epsilon" not in shown, "only what changed is shown"
    changed = terminal.json("model", "policy", "set", ready, "batch_subjects=999", "quality_gate.min_f1=1")
    assert (changed["batch_subjects"], changed["quality_gate"]["min_f1"]) == (999, 1)
    restored = terminal.json("model", "policy", "set", ready, "quality_gate=default")
    assert restored["quality_gate"] is None
    for change, problem in (
        ("epsilom=2", "epsilom: unknown field; did you mean epsilon?"),
        ("epsilon=-1", "epsilon: must be greater than 0"),
        ("method=magic", "method: must be"),
        ("epsilon=9", "lifetime_epsilon is smaller than epsilon"),
    ):
        assert problem in terminal.run("model", "policy", "set", ready, change, code=2).stderr
    assert terminal.json("model", "policy", "show", ready)["batch_subjects"] == 999


def test_rows_are_appended(world: World, terminal: Terminal, tmp_path: Path) -> None:
    with world.sync() as lethe:
        register(lethe, "growing")
    more = tmp_path / "more.parquet"
    more.write_bytes(dataset(rows=30, subjects=30, seed=3))
    assert terminal.json("model", "append", "growing", "--data", more, "--wait")["state"] == "completed"
    parts = terminal.json("model", "show", "growing")["dataset"]
    assert {part["part"]: part["state"] for part in parts}["more"] == "held"
    assert "no staged part" in terminal.run("model", "append", "growing", code=1).stderr


def test_a_model_is_retired_only_with_confirmation(world: World, terminal: Terminal) -> None:
    with world.sync() as lethe:
        lethe.models.create("short-lived", TOY)
    assert "--yes" in terminal.run("model", "retire", "short-lived", code=2).stderr
    assert terminal.json("model", "show", "short-lived")["model"]["state"] == "uploading"
    assert "certificates stay" in terminal.run("model", "retire", "short-lived", "--yes").stdout
    assert terminal.json("model", "show", "short-lived")["model"]["state"] == "retired"


def test_a_wide_csv_file_is_registered(terminal: Terminal, tmp_path: Path) -> None:
    generator = np.random.default_rng(4)
    labels = generator.integers(0, 3, 240)
    values = generator.normal(size=(240, 6)) / 4
    values[np.arange(240), labels] += 1
    lines = ["person,grade,f_0,f_1,f_2,f_3,f_4,f_5"]
    for row in range(240):
        numbers = ",".join(f"{value:.6f}" for value in values[row])
        lines.append(f"p{row},{'abc'[labels[row]]},{numbers}")
    csv, manifest = tmp_path / "visits.csv", tmp_path / "manifest.json"
    csv.write_text("\n".join(lines) + "\n")
    manifest.write_text(json.dumps(TOY))
    words = ("model", "register", "wide", manifest, "--data", csv, "--subject", "person", "--label", "grade")
    assert "--features 'f_*'" in terminal.run(*words, code=2).stderr
    assert "no column g_*" in terminal.run(*words, "--features", "g_*", code=2).stderr
    assert terminal.json(*words, "--features", "f_*", "--wait")["state"] == "ready"
    assert terminal.json("model", "show", "wide")["dataset"][0]["rows"] == 240


def test_erasures_are_listed_shown_extended_and_withdrawn(terminal: Terminal, erasure: Any) -> None:
    identifier = erasure["id"]
    assert [e["id"] for e in terminal.json("erasure", "list", "--reference", "case-1")] == [identifier]
    assert terminal.json("erasure", "show", identifier) == terminal.json("status", identifier)
    extended = terminal.json("erasure", "extend", identifier, "--reason", "a large archive")
    assert extended["due_at"] > erasure["due_at"]
    terminal.run("erasure", "extend", identifier, "--reason", "again", code=1)
    withdrawn = terminal.json("erasure", "withdraw", identifier)
    assert withdrawn["tasks"][0]["state"] == "withdrawn"


def test_an_id_may_be_abbreviated_and_an_ambiguous_one_lists_the_matches(
    terminal: Terminal, ready: str, erasure: Any
) -> None:
    other = terminal.json("erase", "-", "--model", ready, "--reference", "case-2", stdin="s2\n")["id"]
    one = erasure["id"]
    shared = next(i for i in range(len(one)) if one[i] != other[i])
    for identifier in (one, other):
        shortest = identifier[: shared + 1]
        assert terminal.json("status", shortest)["id"] == identifier
        assert terminal.json("erasure", "show", shortest.replace("-", "").upper())["id"] == identifier
        assert terminal.json("receipts", shortest) == []
    ambiguous = terminal.run("status", one[:shared], code=2).stderr
    assert one in ambiguous
    assert other in ambiguous
    assert ambiguous.startswith(f"lethe: {one[:shared]} is the start of several IDs: ")
    assert "no erasure whose ID starts with ffff" in terminal.run("status", "ffff", code=5).stderr
    terminal.run("erasure", "withdraw", other)


def test_batches_and_certificates_are_found_by_the_start_of_their_ids(
    world: World, terminal: Terminal
) -> None:
    with world.sync() as lethe:
        register(lethe, "released")
    done = terminal.json("erase", "-", "--model", "released", "--flush", "--anyway", "--wait", stdin="s1")
    task = done["tasks"][0]
    assert terminal.json("batch", "show", task["batch_id"][:13])["id"] == task["batch_id"]
    assert terminal.json("watch", task["batch_id"][:18])["batch"]["id"] == task["batch_id"]
    assert "conflicts" in terminal.run("batch", "approve", task["batch_id"][:18], code=1).stderr
    audit = terminal.json("audit", task["certificate_id"][:18], "--no-wait")
    assert audit["certificate_id"] == task["certificate_id"]


def test_a_webhook_is_created_changed_tested_and_deleted(terminal: Terminal) -> None:
    created = terminal.json(
        *("webhook", "create", "https://hooks.example.com/lethe"),
        *("--event", "erasure.completed", "--description", "cases"),
    )
    assert created["secret"].startswith("whsec_")
    start = created["id"][:18]
    assert created["secret"] not in terminal.run("webhook", "show", start).stdout
    assert [hook["id"] for hook in terminal.json("webhook", "list")] == [created["id"]]
    rotated = terminal.run("webhook", "rotate", start, "--overlap-hours", 1)
    assert "Secret: whsec_" in rotated.stdout
    delivery = terminal.json("webhook", "test", start)
    assert [d["id"] for d in terminal.json("webhook", "deliveries", start)] == [delivery["id"]]
    assert "webhook.ping" in terminal.run("webhook", "deliveries", start).stdout
    assert terminal.json("webhook", "deliveries", start, "--state", "dead") == []
    assert (
        "still pending"
        in terminal.run("webhook", "replay", start, "--delivery", delivery["id"], code=1).stderr
    )
    assert terminal.json("webhook", "replay", start) == {"replayed": 0}
    assert not terminal.json("webhook", "change", start, "--disable")["enabled"]
    assert "disabled" in terminal.run("webhook", "list").stdout
    unknown = terminal.run("webhook", "create", "https://x.example.com", "--event", "lunch", code=2).stderr
    assert "event_types/0: must be 'erasure." in unknown
    assert "Deleted" in terminal.run("webhook", "delete", start).stdout
    assert terminal.json("webhook", "list") == []


def test_a_login_is_checked_before_it_is_stored_and_then_used(world: World, terminal: Terminal) -> None:
    nothing: Env = {"LETHE_URL": None, "LETHE_API_KEY": None}
    wrong = terminal.run("login", world.url, code=4, stdin="lethe_00_x\n", env=nothing)
    assert "unknown or revoked" in wrong.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", terminal.env["XDG_CONFIG_HOME"])
        assert read_login() is None
        key = world.key_for(Scope.MODELS_READ)
        done = terminal.run("login", world.url, stdin=f"{key}\n", env=nothing)
        assert key not in done.output
        assert login_file().stat().st_mode & 0o777 == 0o600
    assert terminal.json("model", "list", env=nothing) is not None
    identity = terminal.json("whoami", env=nothing)
    assert identity["identity"]["scopes"] == ["models:read"]
    assert identity["url"].rstrip("/") == world.url
    terminal.run("status", code=4, env=nothing)
    assert "Deleted" in terminal.run("logout", env=nothing).stdout
    assert "no stored login" in terminal.run("logout", env=nothing).stdout


def test_the_keys_of_the_issuer_are_fetched_for_verification(
    world: World, terminal: Terminal, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    with world.sync() as lethe:
        register(lethe, "keyed")
    terminal.run("erase", "-", "--model", "keyed", "--flush", "--wait", stdin="s1\n")
    terminal.run("keys", "--to", file)
    saved = KeySet.read(file.read_bytes(), "keys")
    assert KeySet.read(terminal.run("keys").stdout.encode(), "keys") == saved


def test_the_doctor_checks_a_service_from_outside(
    world: World, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    report = terminal.json("doctor", code=1)  # nothing sends the heartbeats of a worker here
    states = {finding["check"]: finding["state"] for finding in report["findings"]}
    assert states == {
        "service": "ok",
        "clock": "ok",
        "service: database": "ok",
        "service: queue": "ok",
        "service: storage": "ok",
        "service: worker": "problem",
        "API key": "ok",
        "issuer's keys": "ok",
    }
    text = terminal.run("doctor", code=1).stdout
    assert "1 problem found." in text
    assert "Start a worker" in text
    key = terminal.json("doctor", code=1, env={"LETHE_API_KEY": "lethe_00_x"})["findings"]
    assert {finding["check"]: finding["state"] for finding in key}["API key"] == "problem"
    monkeypatch.setattr(doctor_command, "LARGEST_SKEW", -doctor_command.LARGEST_SKEW)
    clock = terminal.json("doctor", code=1)["findings"][1]
    assert (clock["check"], clock["state"]) == ("clock", "problem")
    assert list(tmp_path.iterdir()) == []


def test_a_drop_list_becomes_an_erasure_of_the_people_who_match(
    terminal: Terminal, ready: str, tmp_path: Path
) -> None:
    deletion, people = tmp_path / "20260801_7_Phone.csv", tmp_path / "people.csv"
    known = "vGM7y5n+hBXRSEAklhHDPCbysyNgYTmXdMcagGUOY8E="  # published for +1(415)555-9317
    unknown = "ptzVkgbv9DonwvPCHmXmJ2SEOaolSh37z3ZzY/Gmm+U="
    deletion.write_text(f"ID,Hash\nw1,{known}\nw2,{unknown}\n")
    people.write_text("subject_id,phone\ns2,(415) 555-9317\ns3,555\n")
    words = ("erasure", "import-drop", deletion, "--people", people, "--model", ready)
    dry = terminal.json(*words, "--dry-run")
    assert (dry["items"], dry["matched"], dry["erasure_id"]) == (2, 1, None)
    report = tmp_path / "report.csv"
    done = terminal.json(*words, "--report", report)
    shown = terminal.json("erasure", "show", done["erasure_id"])
    assert (shown["subjects"], shown["jurisdiction"]) == (1, "California Delete Act")
    assert report.read_text().splitlines()[1:] == [f"w1,yes,no,{done['erasure_id']}", "w2,no,no,"]
    people.write_text("subject_id,phone\ns2,4155559317\ns3,4155559317\n")
    assert terminal.json(*words)["shared_and_skipped"] == 1
    assert terminal.json(*words, "--shared", "--dry-run")["subjects"] == 2
    terminal.run("erasure", "import-drop", people, "--people", people, code=2)


def test_the_audit_log_is_listed_exported_and_verified(
    terminal: Terminal, ready: str, tmp_path: Path
) -> None:
    listed = terminal.json("audit-log", "list", "--action", "model.registration-started")
    assert f"model/{ready}" in [entry["target"] for entry in listed]
    assert terminal.json("audit-log", "verify")["verified"]
    file = tmp_path / "log.ndjson"
    terminal.run("audit-log", "export", "--to", file)
    assert "Verified" in terminal.run("audit-log", "verify", file).stdout
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:1], lines[1].replace("test", "tess"), *lines[2:]]) + "\n")
    refused = terminal.json("audit-log", "verify", file, code=1)
    assert (refused["verified"], "entry 1" in refused["problem"]) == (False, True)
    terminal.run("audit-log", "export", "--to", tmp_path / "log.csv", "--format", "csv")
    assert (tmp_path / "log.csv").read_text().startswith("sequence,at,")
