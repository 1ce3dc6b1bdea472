"""A command of the service that cannot run says in one line what to install, and exits with status 2."""

import tomllib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from app.core import tracing
from app.core.settings import Settings
from app.core.storage import S3_REQUIREMENTS
from lethe.cli import representations, server_commands
from lethe.cli.main import app
from lethe.cli.server_commands import SERVICE_COMMANDS
from worker import cli as worker_cli
from worker.cli import WORKER_PACKAGES

ROOT = Path(__file__).parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _run(*words: str) -> str:
    """Run a command that must fail with status 2 and one line on standard error."""
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout) == (2, ""), (done.exit_code, done.stdout, done.exception)
    assert done.stderr.startswith("lethe: ")
    assert done.stderr.count("\n") == 1
    assert "pip install lethe" not in done.stderr
    assert "lethe[" not in done.stderr
    return done.stderr


@pytest.fixture
def client_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package in sdk/ is installed, and the service is not."""
    monkeypatch.setattr(server_commands, "installed_commands", dict)


def test_the_names_are_those_of_the_entry_points() -> None:
    assert SERVICE_COMMANDS.keys() == PROJECT["entry-points"]["lethe.commands"].keys()
    below = PROJECT["entry-points"][representations.ENTRY_POINT_GROUP].keys()
    assert set(representations.RepresentationCommands.service_commands) == below


def test_messages_name_the_packages_of_the_extras() -> None:
    extras = PROJECT["optional-dependencies"]
    assert [name + version for name, version in WORKER_PACKAGES.items()] == extras["worker"]
    assert list(S3_REQUIREMENTS) == extras["s3"]
    assert list(tracing.REQUIREMENTS) == extras["tracing"]


def test_a_worker_without_its_packages_names_all_of_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker_cli, "settings_or_exit", Settings)
    monkeypatch.setattr(worker_cli, "find_spec", lambda name: None if name in ("scipy", "torch") else name)
    with pytest.raises(typer.Exit):
        worker_cli.worker()
    assert capsys.readouterr().err == (
        "lethe: the worker cannot start, because the following packages are not installed: scipy, torch. "
        "To install what is missing, run: pip install 'scipy>=1.15' 'torch>=2.7'\n"
    )


@pytest.mark.usefixtures("client_only")
@pytest.mark.parametrize("name", SERVICE_COMMANDS)
def test_without_the_service_a_command_says_how_to_install_it(name: str) -> None:
    for words in ([name], [name, "--help"], [name, "create", "intake", "--scope", "admin"]):
        message = _run(*words)
        assert f"`lethe {name}` belongs to the Lethe service" in message
        expected = "pip install ./sdk '.[worker]'" if name in ("up", "worker") else "pip install ./sdk ."
        assert f"`{expected}` in a checkout" in message


@pytest.mark.usefixtures("client_only")
def test_without_the_service_help_lists_no_server_commands() -> None:
    done = CliRunner().invoke(app, ["--help"])
    assert done.exit_code == 0
    assert " erase " in done.stdout
    assert " gateway " not in done.stdout
    unknown = CliRunner().invoke(app, ["no-such-command"])
    assert unknown.exit_code == 2
    assert "there is no command `lethe no-such-command`" in unknown.stderr


class _Distribution:
    requires = (
        "lethe-unlearning",
        "fastapi>=0.116",
        "psycopg[binary]>=3.2",
        'uvloop>=0.21; sys_platform != "win32"',
        'scipy>=1.15; extra == "worker"',
        'torch>=2.7; extra == "worker"',
        's3fs>=2025.5; extra == "s3"',
    )


def _with_missing(monkeypatch: pytest.MonkeyPatch, commands: Mapping[str, str], *missing: str) -> None:
    """Install a service whose commands cannot be imported, because packages are missing."""

    def version(name: str) -> str:
        if name in missing:
            raise PackageNotFoundError(name)
        return "1"

    def load(entry_point: EntryPoint) -> None:
        raise ModuleNotFoundError(f"No module named {missing[0]!r}", name=missing[0])

    points = {name: EntryPoint(name, target, "lethe.commands") for name, target in commands.items()}
    for point in points.values():
        vars(point)["dist"] = _Distribution()
    monkeypatch.setattr(server_commands, "installed_commands", lambda: points)
    monkeypatch.setattr("importlib.metadata.version", version)
    monkeypatch.setattr(EntryPoint, "load", load)


def test_every_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_missing(
        monkeypatch,
        {"worker": "worker.cli:worker", "gateway": "app.cli:gateway"},
        *("fastapi", "psycopg", "uvloop", "scipy", "torch", "s3fs"),
    )
    message = _run("worker", "--nproc", "2")
    assert "packages that are not installed: fastapi, psycopg, uvloop, scipy, torch." in message
    assert "pip install 'fastapi>=0.116' 'psycopg[binary]>=3.2' 'uvloop>=0.21' 'scipy>=1.15'" in message
    assert "not installed: fastapi, psycopg, uvloop." in _run("gateway")


def test_a_single_missing_package_is_named_in_the_singular(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_missing(monkeypatch, {"gateway": "app.cli:gateway"}, "fastapi")
    assert "a package that is not installed: fastapi." in _run("gateway")
