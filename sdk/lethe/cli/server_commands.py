"""The commands of the service, found through entry points.

`lethe --help` lists them without importing the service. A command is imported when it runs. If the service or
a package that it needs is not installed, the command says how to install it.
"""

import ast
import re
import sys
from collections.abc import Callable, Collection, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from lethe.cli.exit_status import ExitStatus
from lethe.cli.usage import PlainCommands, hide_types, print_problem

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "lethe.commands"
PANEL = "Service"
# The commands of the service, by the extra that they need besides the base installation.
SERVICE_COMMANDS = {
    "up": "worker",
    "gateway": "",
    "dispatcher": "",
    "worker": "worker",
    "migrate": "",
    "key": "",
    "backup": "",
    "restore": "",
}
_REQUIREMENT = re.compile(
    r"\s*(?P<name>[\w.-]+)(?P<extras>\[[^\]]*\])?\s*(?P<version>[^;]*?)\s*(?:;(?P<marker>.*))?"
)


class ClientAndServerCommands(PlainCommands):
    """The commands of the client, followed by those of the service.

    A subclass can be a group below `lethe`. Its `prefix` is the group's name and a space.
    """

    service_commands: ClassVar[Collection[str]] = SERVICE_COMMANDS
    prefix: ClassVar[str] = ""

    def installed(self) -> "dict[str, EntryPoint]":
        """Return the commands of the service that belong to this group and are installed."""
        return installed_commands()

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands that `lethe --help` lists."""
        return [
            *super().list_commands(ctx),
            *(name for name in self.installed() if name not in self.commands),
        ]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or a stand-in for a command of the service that only has its help text."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or (entry_point := self.installed().get(cmd_name)) is None:
            return own
        return _as_command(_with_help(help_summary(entry_point)), cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command to run. Only here is a command of the service imported."""
        name = args[0] if args else ""
        if name and name not in self.commands:
            if (entry_point := self.installed().get(name)) is not None:
                self.add_command(_load(entry_point, self.prefix), name)
            elif name in self.service_commands:
                self.add_command(_explanation(name, _not_installed(self.prefix + name)), name)
        return super().resolve_command(ctx, args)


def installed_commands(group: str = ENTRY_POINT_GROUP) -> "dict[str, EntryPoint]":
    """Return the installed commands of the service by their names, in alphabetical order."""
    from importlib.metadata import entry_points

    commands = {point.name: point for point in entry_points(group=group)}
    return dict(sorted(commands.items()))


def help_summary(entry_point: "EntryPoint") -> str:
    """Return the first line of a command's help.

    It is read from the source, because importing the service takes seconds.
    """
    try:
        spec = find_spec(entry_point.module)
        source = Path(spec.origin).read_text() if spec is not None and spec.origin else ""
    except (ModuleNotFoundError, OSError):
        return ""
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=name) if name == entry_point.attr:
                return (ast.get_docstring(node) or "").partition("\n")[0]
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(keywords=keywords)) if (
                name == entry_point.attr
            ):
                helps = [
                    k.value.value for k in keywords if k.arg == "help" and isinstance(k.value, ast.Constant)
                ]
                return str(helps[0]) if helps else ""
    return ""


def missing_requirements(entry_point: "EntryPoint") -> list[str]:
    """Return the requirements of a command that are not installed, such as `torch>=2.7`."""
    from importlib.metadata import PackageNotFoundError, version

    missing = []
    extra = SERVICE_COMMANDS.get(entry_point.name, "")
    for name, requirement in _requirements(entry_point, extra):
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(requirement)
    return missing


def _requirements(entry_point: "EntryPoint", extra: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the full text of each requirement of the base installation and of one extra."""
    for text in (entry_point.dist.requires if entry_point.dist else None) or ():
        matched = _REQUIREMENT.fullmatch(text)
        if matched is None:
            continue
        marker = matched["marker"] or ""
        of_extra = re.search(r"extra == ['\"]([^'\"]+)['\"]", marker)
        if of_extra is not None and of_extra[1] != extra:
            continue
        if re.search(r"sys_platform != ['\"]win32['\"]", marker) and sys.platform == "win32":
            continue
        yield matched["name"], f"{matched['name']}{matched['extras'] or ''}{matched['version']}"


def _with_help(text: str) -> Callable[[], None]:
    def stand_in() -> None: ...

    stand_in.__doc__ = text
    return stand_in


def _as_command(target: Any, name: str, **settings: Any) -> Any:
    host = typer.Typer(add_completion=False, callback=lambda: None, rich_markup_mode="markdown")
    if isinstance(target, typer.Typer):
        host.add_typer(target, name=name, rich_help_panel=PANEL)
    else:
        host.command(name, rich_help_panel=PANEL, **settings)(target)
    command = typer.main.get_group(host).commands[name]
    hide_types(command)
    return command


def _load(entry_point: "EntryPoint", prefix: str) -> Any:
    try:
        target = entry_point.load()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("app", "worker"):
            raise  # the service itself is broken, which no installation of a package repairs
        missing = missing_requirements(entry_point) or [error.name]
        return _explanation(entry_point.name, _incomplete(prefix + entry_point.name, missing))
    return _as_command(target, entry_point.name)


def _explanation(name: str, text: str) -> Any:
    """Return a command that accepts any arguments, prints why it cannot run, and exits with status 2."""

    def explain() -> None:
        print_problem(text)
        raise typer.Exit(ExitStatus.USAGE)

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return _as_command(explain, name, context_settings=anything, add_help_option=False)


def _not_installed(name: str) -> str:
    return (
        f"`lethe {name}` belongs to the Lethe service, and only the client is installed here. "
        f"To install the service, run `{_install_command(name)}` in a checkout of the Lethe repository."
    )


def _incomplete(name: str, missing: list[str]) -> str:
    packages = "a package that is" if len(missing) == 1 else "packages that are"
    names = ", ".join(re.split(r"[\[<>=!~ ]", requirement)[0] for requirement in missing)
    return (
        f"`lethe {name}` needs {packages} not installed: {names}. "
        f"Run `{_install_command(name)}` in a checkout of the Lethe repository, or install only what is "
        f"missing: pip install {' '.join(repr(requirement) for requirement in missing)}"
    )


def _install_command(name: str) -> str:
    return (
        "pip install ./sdk '.[worker]'" if SERVICE_COMMANDS.get(name) == "worker" else "pip install ./sdk ."
    )
