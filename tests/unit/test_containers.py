"""The container files use commands and settings that exist, and their linter reports faults."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.core.settings import load_settings
from lethe.cli.main import app as command_line
from tests import lint_containers
from tests.lint_containers import ROOT, check_own_rules, inherited_instructions, main, parse_dockerfile

DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
INSTRUCTIONS = parse_dockerfile(DOCKERFILE)
OURS = {name: service for name, service in COMPOSE["services"].items() if "build" in service}


def commands() -> set[str]:
    """Return the commands of `lethe`: its own, and those of the server's entry points."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = {
        command.name or command.callback.__name__
        for command in command_line.registered_commands
        if command.callback is not None
    }
    return own | set(project["entry-points"]["lethe.commands"])


def image_environment(stage: str) -> dict[str, str]:
    pairs = [
        pair.split("=", 1)
        for part in inherited_instructions(INSTRUCTIONS, stage)
        if part.word == "ENV"
        for pair in part.rest.split()
    ]
    return dict(pairs)


def test_the_commands_of_the_images_exist() -> None:
    for stage in ("gateway", "worker"):
        words = {part.word: part.rest for part in inherited_instructions(INSTRUCTIONS, stage)}
        assert json.loads(words["ENTRYPOINT"]) == ["lethe"]
        assert json.loads(words["CMD"])[0] in commands()


def test_the_commands_of_the_services_exist() -> None:
    assert {service["command"][0] for service in OURS.values()} == {
        "migrate",
        "gateway",
        "dispatcher",
        "worker",
    }
    for service in OURS.values():
        assert service["command"][0] in commands()
        assert "entrypoint" not in service


def test_the_console_command_is_declared() -> None:
    project = tomllib.loads((ROOT / "sdk/pyproject.toml").read_text())["project"]
    assert project["scripts"]["lethe"] == "lethe.cli.main:main"


@pytest.mark.parametrize("name", sorted(OURS))
def test_the_settings_of_each_service_load(name: str) -> None:
    """An unknown or malformed LETHE_ variable would stop the container at its start."""
    given = image_environment(OURS[name]["build"]["target"]) | OURS[name]["environment"]
    settings = load_settings({key: value for key, value in given.items() if key.startswith("LETHE_")})
    assert settings.database.startswith("postgresql+psycopg://")
    assert settings.redis_url.startswith("redis://")


def test_only_the_worker_holds_the_signing_key() -> None:
    holders = {name for name, service in OURS.items() if "signing_key" in service.get("secrets", [])}
    assert holders == {"worker"}
    named = {name for name, service in OURS.items() if "LETHE_SIGNING_KEY_FILE" in service["environment"]}
    assert named == {"worker"}


def test_all_services_share_one_storage_volume() -> None:
    folder = OURS["worker"]["environment"]["LETHE_STORAGE_URL"].removeprefix("file://")
    for name in ("gateway", "dispatcher", "worker"):
        assert f"storage:{folder}" in OURS[name]["volumes"]


def test_the_worker_keeps_its_tree_head_on_a_volume_of_its_own() -> None:
    volume, _, folder = OURS["worker"]["volumes"][1].partition(":")
    assert volume in COMPOSE["volumes"]
    assert OURS["worker"]["environment"]["LETHE_LOG_SEEN_FILE"] == f"{folder}/head"
    assert not any(volume in mount for name in ("gateway", "dispatcher") for mount in OURS[name]["volumes"])
    created = next(part.rest for part in INSTRUCTIONS if part.stage == "runtime" and part.word == "RUN")
    assert folder in created.partition("install -d -o lethe")[2].split()


def test_the_image_of_python_is_named_in_one_place_for_all_stages() -> None:
    (default,) = [part.rest for part in INSTRUCTIONS if part.word == "ARG"]
    assert {str(service["build"]["args"]) for service in OURS.values()} == {
        str({"PYTHON_IMAGE": "${PYTHON_IMAGE:-" + default.removeprefix("PYTHON_IMAGE=") + "}"})
    }


def test_an_image_may_be_pinned_by_digest() -> None:
    pinned = f"python:3.11.14-slim-bookworm@sha256:{'0a' * 32}"
    dockerfile = DOCKERFILE.replace("python:3.11.14-slim-bookworm", pinned)
    assert check_own_rules(dockerfile, COMPOSE_TEXT.replace("python:3.11.14-slim-bookworm", pinned)) == []


def test_every_service_waits_for_the_migrations() -> None:
    for name in ("gateway", "dispatcher", "worker"):
        assert OURS[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}


def test_only_the_worker_image_has_torch() -> None:
    installed = {
        part.stage: part.rest for part in INSTRUCTIONS if part.word == "RUN" and "pip install" in part.rest
    }
    assert "./sdk '.[s3,tracing]'" in installed["gateway-build"]
    assert "./sdk '.[worker,s3,tracing]'" in installed["worker-build"]
    assert all("-c constraints.txt" in line for line in installed.values())


def test_our_files_have_no_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("USER 10001:10001", "USER root", "runs as root"),
        ("USER 10001:10001\n", "", "runs as root"),
        ("python:3.11.14-slim-bookworm", "python:latest", "not pinned"),
        ("FROM runtime AS worker", "FROM runtime AS laborer", "no stage worker"),
        ("HEALTHCHECK --interval=30s", "LABEL interval=30s", "worker has no health check"),
        ("from app.services import", "from app.bootstrap import", "which does not exist"),
    ],
)
def test_a_fault_in_the_dockerfile_is_reported(before: str, after: str, fault: str) -> None:
    assert before in DOCKERFILE
    assert any(
        fault in reported for reported in check_own_rules(DOCKERFILE.replace(before, after), COMPOSE_TEXT)
    )


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("valkey/valkey:8.1.3", "valkey/valkey", "not pinned"),
        ("${VALKEY_IMAGE:-valkey/valkey:8.1.3}", "${VALKEY_IMAGE:-}", "needs :?"),
        ("- storage:/var/lib", "- storrage:/var/lib", "storrage is not declared under volumes"),
        ("      target: worker", "      target: workers", "no stage workers"),
        ("${VALKEY_PASSWORD:?set it in .env}", "${VALKEY_PASSWORD}", "needs :?"),
        ('restart: "no"', "restart: always", "but it is restarted"),
        ('    healthcheck:\n      test: ["CMD"', '    labels:\n      test: ["CMD"', "has no health check"),
    ],
)
def test_a_fault_in_the_compose_file_is_reported(before: str, after: str, fault: str) -> None:
    assert before in COMPOSE_TEXT
    assert any(
        fault in reported for reported in check_own_rules(DOCKERFILE, COMPOSE_TEXT.replace(before, after))
    )


@pytest.mark.parametrize(
    ("file", "before", "after", "fault"),
    [
        ("Dockerfile", "WORKDIR /source", "WORKDIR source", "DL3000"),
        ("Dockerfile", 'CMD ["gateway"]', "CMD lethe gateway", "DL3025"),
        ("docker-compose.yml", "stop_grace_period: 2m", "stop_grace_periods: 2m", "stop_grace_periods"),
    ],
)
def test_the_faults_that_the_tools_find_are_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: str,
    before: str,
    after: str,
    fault: str,
) -> None:
    for name, text in (("Dockerfile", DOCKERFILE), ("docker-compose.yml", COMPOSE_TEXT)):
        assert name != file or before in text
        (tmp_path / name).write_text(text.replace(before, after) if name == file else text)
    monkeypatch.setattr(lint_containers, "ROOT", tmp_path)
    assert main() == 1
    assert fault in capsys.readouterr().out
