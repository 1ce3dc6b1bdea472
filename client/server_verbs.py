"""Verbs of the server, found through entry points: listed unimported, imported when one is run."""

import ast
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import typer.core
from rich.console import Console

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "lethe.commands"


class Verbs(typer.core.TyperGroup):
    """The command's own verbs, and the server's after them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *(name for name in points() if name not in self.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is not None or (point := points().get(cmd_name)) is None:
            return own
        return _as_command(_named(summary(point)), cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Here a verb is really wanted."""
        if args and args[0] not in self.commands and (point := points().get(args[0])) is not None:
            self.add_command(_as_command(_load(point), args[0]), args[0])
        return super().resolve_command(ctx, args)


def points() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points

    found = {point.name: point for point in entry_points(group=GROUP)}
    return dict(sorted(found.items()))


def summary(point: "EntryPoint") -> str:
    """The first line of its help, read from its source: importing it would take seconds."""
    try:
        spec = find_spec(point.module)
        source = Path(spec.origin).read_text() if spec is not None and spec.origin else ""
    except (ModuleNotFoundError, OSError):
        return ""
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=name) if name == point.attr:
                return (ast.get_docstring(node) or "").partition("\n")[0]
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(keywords=keywords)) if (
                name == point.attr
            ):
                helps = [
                    k.value.value for k in keywords if k.arg == "help" and isinstance(k.value, ast.Constant)
                ]
                return str(helps[0]) if helps else ""
    return ""


def _named(text: str) -> Callable[[], None]:
    def stand_in() -> None: ...

    stand_in.__doc__ = text
    return stand_in


def _as_command(target: Any, name: str) -> Any:
    host = typer.Typer(add_completion=False, callback=lambda: None)
    if isinstance(target, typer.Typer):
        host.add_typer(target, name=name, rich_help_panel="Server")
    else:
        host.command(name, rich_help_panel="Server")(target)
    return typer.main.get_group(host).commands[name]


def _load(point: "EntryPoint") -> Any:
    try:
        return point.load()
    except ModuleNotFoundError as problem:
        if problem.name is None or problem.name.partition(".")[0] in ("app", "worker"):
            raise
        return _needs_extra(point, problem.name)


def _needs_extra(point: "EntryPoint", missing: str) -> Callable[[], None]:
    extra = "worker" if point.value.startswith("worker.") else "gateway"

    def explain() -> None:
        Console(stderr=True).print(
            f"lethe: `lethe {point.name}` needs the server (no {missing}): pip install 'lethe[{extra}]'",
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit(2)

    explain.__doc__ = f"Not installed: it comes with the extra `{extra}`."
    return explain
