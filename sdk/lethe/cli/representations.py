"""`lethe representation`: the library of representations.

`list` and `show` ask the service. `add` and `remove` are commands of the service, because they write to its
database and storage.
"""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from lethe.cli.context import CommandContext, command
from lethe.cli.server_commands import ClientAndServerCommands, installed_commands
from lethe.cli.tables import details, format_size, table

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from lethe.client.responses import ImageInput, LibraryEntry, TextInput, VectorInput

ENTRY_POINT_GROUP = "lethe.commands.representation"


class RepresentationCommands(ClientAndServerCommands):
    """The commands of the client and of the service below `lethe representation`."""

    service_commands: ClassVar = ("add", "remove")
    prefix: ClassVar = "representation "

    def installed(self) -> "dict[str, EntryPoint]":
        """Return the commands of the service that belong to this group and are installed."""
        return installed_commands(ENTRY_POINT_GROUP)


representation = typer.Typer(
    help="List, add and remove representations of the library.",
    cls=RepresentationCommands,
    no_args_is_help=True,
)


@representation.command("list")
@command
def list_representations(
    context: CommandContext,
    most: Annotated[
        int, typer.Option("--most", metavar="NUMBER", min=1, help="List at most this many entries.")
    ] = 100,
) -> None:
    """List the library, newest first. Every model may use these representations by name."""
    entries = list(context.api.representations.list(limit=most))
    columns = ("Name", "Input", "Outputs", "Graph", "Origin", "Licence", "Added")
    rows = [
        (
            entry.name,
            entry.declaration.input.kind,
            entry.declaration.outputs,
            format_size(entry.graph_size),
            entry.declaration.origin,
            entry.declaration.licence,
            entry.created_at,
        )
        for entry in entries
    ]
    empty = "The library is empty. To add to it, run on the server: lethe representation add"
    context.show(entries, table(columns, rows) if entries else empty)


@representation.command("show")
@command
def show(
    context: CommandContext, name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the entry.")]
) -> None:
    """Show a representation of the library."""
    entry = context.api.representations.get(name)
    context.show(entry, _entry_details(entry))
    context.note(f'To use it, write this in a manifest: representation.library = "{entry.name}"')


def _entry_details(entry: "LibraryEntry") -> Any:
    declaration = entry.declaration
    return details(
        {
            "Name": entry.name,
            "Input": _describe_input(declaration.input),
            "Outputs": declaration.outputs,
            "Normalisation": declaration.normalisation,
            "Origin": declaration.origin,
            "Licence": declaration.licence,
            "Graph": f"{format_size(entry.graph_size)}, SHA-256 {entry.graph_sha256}",
            "Tokenizer": entry.tokenizer_sha256
            and f"{format_size(entry.tokenizer_size)}, SHA-256 {entry.tokenizer_sha256}",
            "Digest": entry.digest,
            "Added": entry.created_at,
        }
    )


def _describe_input(row: "VectorInput | ImageInput | TextInput") -> str:
    constants = row.model_dump(mode="json", exclude={"kind"})
    return f"{row.kind}: " + ", ".join(f"{name} {value}" for name, value in constants.items())
