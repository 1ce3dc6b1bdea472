"""Help texts use the words of users: no names of Python types, and a placeholder for every value."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lethe.cli.main import app
from lethe.cli.server_commands import installed_commands

TYPES = re.compile(
    r"<[^>]*>|\b(?:TEXT|PATH|INTEGER|FLOAT|BOOLEAN|UUID|DIRECTORY|FILENAME|RANGE|uuid|str|int|bool)\b|x[<>]="
)


def _commands() -> Iterator[tuple[str, ...]]:
    """Yield every command and group, those of the service included."""
    yield ()
    group = typer.main.get_command(app)
    yield from _below(group, ())
    for name, entry_point in installed_commands().items():
        yield (name,)
        loaded = entry_point.load()
        if isinstance(loaded, typer.Typer):
            yield from _below(typer.main.get_command(loaded), (name,))
    yield from (("representation", "add"), ("representation", "remove"))


def _below(group: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, command in getattr(group, "commands", {}).items():
        yield (*path, name)
        yield from _below(command, (*path, name))


@pytest.mark.parametrize("words", list(_commands()), ids=" ".join)
def test_help_shows_no_type(words: tuple[str, ...]) -> None:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words, "--help"])
    assert done.exit_code == 0
    assert TYPES.findall(done.stdout) == []


def _parameters(command: Any) -> Iterator[Any]:
    yield from command.params
    for inner in getattr(command, "commands", {}).values():
        yield from _parameters(inner)


def test_every_value_has_a_placeholder_and_a_description() -> None:
    groups = [app]
    for entry_point in installed_commands().values():
        target = entry_point.load()
        host = target if isinstance(target, typer.Typer) else typer.Typer(add_completion=False)
        if host is not target:
            host.command()(target)
        groups.append(host)
    parameters = [p for group in groups for p in _parameters(typer.main.get_command(group))]
    assert len(parameters) > 100
    for parameter in parameters:
        if "completion" in parameter.name:
            continue
        assert parameter.help, parameter.name
        if not getattr(parameter, "is_flag", False):
            assert parameter.metavar, parameter.name
