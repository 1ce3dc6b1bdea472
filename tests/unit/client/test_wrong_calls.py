"""Every wrong call gets one line that says what happened and what to do, and a documented exit status."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from lethe import Lethe, Retry
from lethe.cli.context import CommandContext
from lethe.cli.main import app

UNREACHABLE = (
    "the service cannot be reached (nothing answers at {url}). Check that it is running (`lethe up` starts "
    "it on this machine), and check LETHE_URL or --url."
)
BAD_NAME = (
    "{} cannot be the name of a model: use up to 63 lower-case letters, digits and hyphens, with no hyphen "
    "at the start or the end."
)
ADDRESS = "{} is not the address of a service; write it as http://127.0.0.1:8420 in --url or LETHE_URL."
SECRETS = "identifiers are not taken as arguments, because other users of this machine can see them"
RIDGE = "--family ridge --lambda 1 --features-origin raw --constants-origin chosen"
SCOPES = (
    "erasures:write, erasures:read, models:admin, models:read, checkpoints:read, certificates:read, "
    "audit:read, webhooks:admin, admin"
)


def _see(command: str) -> str:
    return f"To see what it takes, run `lethe {command} --help`."


def _list(command: str = "") -> str:
    return f"To list the commands, run `lethe {command}--help`."


# Calls that fail before a service is asked. All of them end with status 2.
WRONG_CALLS = {
    "foo": f"there is no command `lethe foo`. {_list()}",
    "statu": f"there is no command `lethe statu`. Did you mean `lethe status`? {_list()}",
    "--nope": "`lethe` has no option --nope. To see what it takes, run `lethe --help`.",
    "--version=3": "--version takes no value; leave out the equals sign and what follows it.",
    "version extra": f"`lethe version` takes no arguments, so it cannot use extra. {_see('version')}",
    "model foo": f"there is no command `lethe model foo`. {_list('model ')}",
    "model lst": f"there is no command `lethe model lst`. Did you mean `lethe model list`? {_list('model ')}",
    "model list x": f"`lethe model list` takes no arguments, so it cannot use x. {_see('model list')}",
    "model list --nope": f"`lethe model list` has no option --nope. {_see('model list')}",
    "model list --most": "--most needs a value; write it after the option.",
    "model list --most 0": "--most must be at least 1, but it is 0.",
    "model list --most many": "--most must be a whole number, but it is many.",
    "model list --json=1": "--json takes no value; leave out the equals sign and what follows it.",
    "model show Bad_Name": BAD_NAME.format("Bad_Name"),
    "model register": f"`lethe model register` needs NAME. {_see('model register')}",
    "model register x none.toml": "there is no file named none.toml, which MANIFEST names.",
    "model register x folder": "folder is a folder, but MANIFEST must be a file.",
    "model register x broken.json": "broken.json is not valid JSON (line 1, column 2).",
    "model register x broken.toml": "broken.toml is not valid TOML (line 1, column 5).",
    "model register x latin.toml": "latin.toml is not text in UTF-8.",
    "model register x list.json": "list.json contains no manifest; to write one, run `lethe model init`.",
    "model register x object.json --data none.parquet": (
        "there is no file named none.parquet, which --data names."
    ),
    "model register x object.json --data a.parquet --data A.parquet": (
        "a.parquet and A.parquet would both become the part a; rename one of them."
    ),
    "model init": (
        "`lethe model init` needs --family, --width, --lambda, --features-origin, --constants-origin, "
        "because nobody can be asked."
    ),
    "model init there.toml": (
        "there.toml exists already; choose another name, or pass --force to replace it."
    ),
    "model init new.txt": "new.txt is not a name for a TOML file; choose one that ends in .toml.",
    f"model init new.toml {RIDGE} --width 0": "--width must be at least 1, but it is 0.",
    f"model init new.toml {RIDGE} --width 3 --epsilon -1": (
        "this is not a manifest yet: policy.epsilon: must be greater than 0."
    ),
    f"model init new.toml {RIDGE} --width 3 --family tree": (
        "`lethe model init` knows the families softmax, logistic, ridge, mlp, but not tree; write the "
        "manifest of another family by hand."
    ),
    "model validate none.toml": "there is no file named none.toml, which MANIFEST names.",
    "model validate latin.toml": "latin.toml is not text in UTF-8.",
    "model policy set x": f"`lethe model policy set` needs FIELD=VALUE. {_see('model policy set')}",
    "model policy set x epsilon": (
        "epsilon is not a change; write it as FIELD=VALUE, such as batch_subjects=50."
    ),
    "model retire x": (
        "retiring x deletes its data and weights for good, and nobody can be asked; pass --yes."
    ),
    "model append x --data none.parquet": "there is no file named none.parquet, which --data names.",
    "download": f"`lethe download` needs MODEL. {_see('download')}",
    "download a b": f"`lethe download` takes only MODEL, so it cannot use b. {_see('download')}",
    "download x --version -1": "--version must be at least 0, but it is -1.",
    "export x": f"`lethe export` needs --onnx FILE. {_see('export')}",
    "export x --onnx folder": "folder is a folder, but --onnx must be a file.",
    "ledger UPPER": BAD_NAME.format("UPPER"),
    "erase": f"`lethe erase` needs FILE. {_see('erase')}",
    "erase person-3": (
        f"there is no file named person-3, and {SECRETS}. Run `echo person-3 | lethe erase -`, or write one "
        "per line to a file."
    ),
    "erase person-3 person-4": (
        f"{SECRETS}. Write one per line to a file and run `lethe erase FILE`, or run `lethe erase -` and "
        "type them."
    ),
    "erase people.csv": "there is no file or folder named people.csv.",
    "erase folder": "folder is a folder, not a file.",
    "erase blank.txt": "the input contains no identifiers; write one per line.",
    "erase latin.toml": "the identifiers are not text in UTF-8; save the file in that encoding.",
    "erase - --received-at soon": "soon is not a date and time; write it as 2026-01-31T09:00+01:00.",
    "status person-3": "person-3 is not the ID of an erasure; to see the IDs, run `lethe erasure list`.",
    "status abc": "abc is too short for an ID; write at least 4 characters of it.",
    "status --modle x": (f"`lethe status` has no option --modle. Did you mean `--model`? {_see('status')}"),
    "watch that": "that is not the ID of an erasure or a batch; to see the IDs, run `lethe erasure list`.",
    "watch abcdef --timeout soon": "--timeout must be a number, but it is soon.",
    "watch abcdef --timeout -1": "--timeout must be at least 0, but it is -1.",
    "receipts abcdef --to there.toml": "there.toml is a file, but --to must be a folder.",
    "erasure extend abcdef": f"`lethe erasure extend` needs --reason REASON. {_see('erasure extend')}",
    "batch approve": f"`lethe batch approve` needs ID. {_see('batch approve')}",
    "batch approve that": "that is not the ID of a batch; to see the IDs, run `lethe batch list`.",
    "webhook create": f"`lethe webhook create` needs TARGET. {_see('webhook create')}",
    "webhook change abcdef": (
        "nothing to change; pass --target, --event, --description, --enable or --disable."
    ),
    "webhook rotate abcdef --overlap-hours 200": "--overlap-hours must be at most 168, but it is 200.",
    "webhook show hook": "hook is not the ID of a webhook; to see the IDs, run `lethe webhook list`.",
    "verify": f"`lethe verify` needs PACK. {_see('verify')}",
    "verify none.json": "pack: cannot read none.json: No such file or directory.",
    "verify broken.json": "pack: not valid JSON (line 1, column 2).",
    "verify latin.toml": "pack: not valid JSON (it is not UTF-8 text).",
    "verify list.json": "pack: not a JSON object.",
    "verify object.json": "pack: envelope: this field is missing.",
    "login not-an-address": ADDRESS.format("not-an-address"),
    "whoami --url ftp://x": ADDRESS.format("ftp://x"),
    "whoami --url http://[": ADDRESS.format("http://["),
    "whoami --api-key schlüssel": (
        "the API key contains characters that no key has; copy it again, without spaces."
    ),
    "keys --to folder": "folder is a folder, but --to must be a file.",
    "doctor extra": f"`lethe doctor` takes no arguments, so it cannot use extra. {_see('doctor')}",
    "representation show": f"`lethe representation show` needs NAME. {_see('representation show')}",
    "key foo": f"there is no command `lethe key foo`. {_list('key ')}",
    "key revoke": f"`lethe key revoke` needs ID. {_see('key revoke')}",
    "key create x": f"`lethe key create` needs --scope SCOPE. {_see('key create')}",
    "key create x --scope root": f"--scope must be one of {SCOPES}, but it is root.",
    "backup": f"`lethe backup` needs FOLDER. {_see('backup')}",
    "migrate now": f"`lethe migrate` takes no arguments, so it cannot use now. {_see('migrate')}",
    "up --port 99999": "--port must be at most 65535, but it is 99999.",
    "up --port http": "--port must be a whole number, but it is http.",
    "worker --nproc 0": "--nproc must be at least 1, but it is 0.",
    "representation add x": f"`lethe representation add` needs --manifest FILE. {_see('representation add')}",
}
LEAKS = re.compile(r"Errno|codec|[Pp]ydantic|Input should|Traceback|<\w+>|Value error|Error:|NoneType")


@dataclass(frozen=True)
class Refusal:
    """An answer of the service, and what the command makes of it."""

    status: int
    problem: dict[str, Any]
    exit_status: int
    line: str


REFUSALS = {
    "model list": Refusal(
        401,
        {"title": "Not authenticated", "detail": "The request has no API key."},
        4,
        "Not authenticated: The request has no API key. Run `lethe login`, or set LETHE_API_KEY. To create a "
        "key, run `lethe key create` on the server.",
    ),
    "webhook list": Refusal(
        403,
        {"title": "Not allowed", "detail": "Your API key does not have the scope webhooks:admin."},
        4,
        "Not allowed: Your API key does not have the scope webhooks:admin. Use a key with that scope. To "
        "create one, run `lethe key create NAME --scope SCOPE` on the server.",
    ),
    "model show people": Refusal(
        404,
        {"title": "Not found", "detail": "Your tenant has no model with this name."},
        5,
        "Not found: Your tenant has no model with this name. Run `lethe model list` or `lethe status` to see "
        "what exists.",
    ),
    "model flush people": Refusal(
        409,
        {"title": "Conflict", "detail": "The model is uploading."},
        1,
        "Conflict: The model is uploading.",
    ),
    "representation list": Refusal(
        503,
        {"title": "Unavailable", "detail": "The database cannot be reached."},
        3,
        "Unavailable: The database cannot be reached. Try again. If it fails again, look for this request in "
        "the gateway's log.",
    ),
    "whoami": Refusal(
        200,
        {"tenant": 3},
        3,
        "the response of /v1/whoami cannot be read (tenant must be a string). Check that LETHE_URL points to "
        "a Lethe service of the same version.",
    ),
    "batch show abcdef": Refusal(
        200,
        {"items": [], "next_cursor": None},
        5,
        "there is no batch whose ID starts with abcdef. Run `lethe model list` or `lethe status` to see what "
        "exists.",
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files that are of no use, and no stored login."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("LETHE_URL", "LETHE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "folder").mkdir()
    texts = {
        "broken.json": "{",
        "broken.toml": "a = = 1\n",
        "list.json": "[]",
        "object.json": "{}",
        "there.toml": "",
        "blank.txt": "\n",
        "a.parquet": "x",
        "A.parquet": "x",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.toml").write_bytes(b"a = '\xe9'\n")
    return tmp_path


def _run(words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, words.split(), input="")
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.stdout == ""
    return done.exit_code, done.stderr


def test_there_are_many_wrong_calls() -> None:
    assert len(WRONG_CALLS) >= 50


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("words", "line"), WRONG_CALLS.items(), ids=WRONG_CALLS)
def test_a_wrong_call_gets_one_line_and_status_2(words: str, line: str) -> None:
    assert _run(words) == (2, f"lethe: {line}\n")
    assert not LEAKS.search(line)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("words", "refusal"), REFUSALS.items(), ids=REFUSALS)
def test_a_refusal_of_the_service_gets_one_line_and_its_status(
    monkeypatch: pytest.MonkeyPatch, words: str, refusal: Refusal
) -> None:
    answer = httpx.Response(refusal.status, json=refusal.problem)
    lethe = Lethe("http://x", "k", transport=httpx.MockTransport(lambda _: answer), retry=Retry(times=0))
    monkeypatch.setattr(CommandContext, "api", lethe)
    assert _run(words) == (refusal.exit_status, f"lethe: {refusal.line}\n")


@pytest.mark.usefixtures("folder")
def test_an_address_where_nothing_listens_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    for words in ("status", "model list", "watch abcdef", "keys"):
        url = "http://127.0.0.1:1"
        assert _run(f"{words} --url {url}") == (3, f"lethe: {UNREACHABLE.format(url=url)}\n")


@pytest.mark.usefixtures("folder")
def test_an_argument_that_is_not_text_is_no_crash() -> None:
    assert _run("status caf\udce9") == (
        2,
        "lethe: caf? is not the ID of an erasure; to see the IDs, run `lethe erasure list`.\n",
    )


def test_without_permission_a_file_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    line = "this user may not open people.csv; change its permissions, or choose another file."
    assert _run("erase people.csv") == (2, f"lethe: {line}\n")


def test_a_wrong_call_leaves_no_file_behind(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    for words in WRONG_CALLS:
        _run(words)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.usefixtures("folder")
def test_with_json_a_mistake_in_the_input_is_a_document() -> None:
    done = CliRunner().invoke(app, ["status", "person-3", "--json"])
    assert done.exit_code == 2
    assert json.loads(done.stdout)["error"]["title"].startswith("person-3 is not the ID of an erasure")
