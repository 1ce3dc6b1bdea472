"""Server verbs of the `lethe` command, found through the entry-point group `lethe.commands`."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ParamSpec
from uuid import UUID

import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy.exc import OperationalError, ProgrammingError

from app import migrate as schema
from app.access import service as access
from app.access.scopes import Scope
from app.bootstrap import Services
from app.startup import refuse, settings_or_exit

P = ParamSpec("P")
key = typer.Typer(help="API keys.", no_args_is_help=True)
console = Console()


def _clear_errors(command: Callable[P, None]) -> Callable[P, None]:
    """What a user can mend is one line; anything else stays a traceback, because it is ours to mend."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except access.AccessError as problem:
            raise refuse(str(problem)) from None
        except (OperationalError, ProgrammingError) as problem:
            raise refuse(f"the database cannot be used ({problem.orig}); has `lethe migrate` run?") from None

    return guarded


@_clear_errors
def up(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Data folder.")] = None,
) -> None:
    """Serve everything on embedded defaults until Ctrl-C."""
    from app.supervisor import StartError, Supervisor

    given = {"host": host, "port": port, "data_dir": data_dir}
    settings = settings_or_exit().model_copy(update={k: v for k, v in given.items() if v is not None})
    try:
        code = Supervisor(settings).run()
    except StartError as problem:
        raise refuse(str(problem)) from None
    raise typer.Exit(code)


def gateway() -> None:
    """Serve the HTTP API."""
    from app.main import serve

    serve(settings_or_exit())


def dispatcher() -> None:
    """Seal batches, feed the queue, notice dead attempts."""
    from app.dispatcher import run

    run(settings_or_exit())


@_clear_errors
def migrate() -> None:
    """Bring the database schema to the newest revision."""
    services = Services(settings_or_exit())
    schema.upgrade(services)
    services.close()
    console.print("The schema is up to date.")


@key.command("create")
@_clear_errors
def key_create(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    scope: Annotated[list[Scope], typer.Option(help="May be given several times.")],
    tenant: Annotated[str, typer.Option(help="Made when it does not exist.")] = "default",
) -> None:
    """Make a key; it is shown once."""
    services = Services(settings_or_exit())
    with services.database.writing() as session:
        made = access.create_key(session, tenant=tenant, name=name, scopes=scope)
    console.print(made.secret, markup=False, highlight=False, soft_wrap=True)
    services.close()


@key.command("list")
@_clear_errors
def key_list() -> None:
    """Show the keys, without their secrets."""
    services = Services(settings_or_exit())
    table = Table("id", "tenant", "name", "scopes", "created", "revoked")
    with services.database.reading() as session:
        for item, tenant in access.list_keys(session):
            table.add_row(
                str(item.id),
                tenant.name,
                item.name,
                " ".join(item.scopes),
                f"{item.created_at:%Y-%m-%d %H:%M}",
                f"{item.revoked_at:%Y-%m-%d %H:%M}" if item.revoked_at else "",
            )
    console.print(table)
    services.close()


@key.command("revoke")
@_clear_errors
def key_revoke(key_id: Annotated[UUID, typer.Argument(help="Id shown by `lethe key list`.")]) -> None:
    """Make a key useless at once."""
    services = Services(settings_or_exit())
    with services.database.writing() as session:
        access.revoke_key(session, key_id)
    console.print(f"Revoked {key_id}.")
    services.close()
