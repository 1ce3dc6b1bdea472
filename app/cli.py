"""The server commands of `lethe`, which the client finds through the entry-point group `lethe.commands`."""

from typing import Annotated
from uuid import UUID

import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.core.storage import StorageError
from app.core.vault import KeyProblem
from app.db import schema
from app.gateway.auth import service as access
from app.gateway.auth.scopes import Scope
from app.services import Services
from app.startup import DataDir, describe_database_error, existing_installation, refuse, settings_or_exit

key = typer.Typer(help="Manage API keys.", no_args_is_help=True)
console = Console()


def up(
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = None,
    port: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", min=0, max=65535, help="The port to listen on. 0: any free port."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Run the whole service on this machine until you press Ctrl-C.

    Without further settings it uses SQLite and a private Valkey or Redis server in the data folder.
    """
    from app.local.supervisor import StartError, Supervisor

    options = {"host": host, "port": port}
    settings = settings_or_exit(data_dir).model_copy(
        update={k: v for k, v in options.items() if v is not None}
    )
    try:
        code = Supervisor(settings).run()
    except StartError as problem:
        raise refuse(str(problem)) from None
    raise typer.Exit(code)


def gateway() -> None:
    """Run the gateway, which serves the HTTP API and the dashboard."""
    from app.gateway.main import serve

    serve(settings_or_exit())


def dispatcher() -> None:
    """Run the dispatcher, which seals batches, queues jobs, finds dead attempts and sends webhooks."""
    from app.dispatcher.loop import run

    run(settings_or_exit())


def migrate(data_dir: DataDir = None) -> None:
    """Migrate the database to the newest schema, and create it if it does not exist."""
    services = Services(settings_or_exit(data_dir))
    try:
        schema.upgrade(services.database)
    except SQLAlchemyError as problem:
        raise refuse(describe_database_error(services.settings, problem)) from None
    finally:
        services.close()
    console.print("The database schema is up to date.")


@key.command("create")
def key_create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that says what the key is for.")],
    scope: Annotated[
        list[Scope],
        typer.Option(
            metavar="SCOPE",
            help=f"What the key may do. Repeat the option for several scopes. There are {', '.join(Scope)}.",
        ),
    ],
    tenant: Annotated[
        str,
        typer.Option(metavar="NAME", help="The tenant of the key. It is created if it does not exist."),
    ] = "default",
    data_dir: DataDir = None,
) -> None:
    """Create an API key and print it. It cannot be shown again."""
    with existing_installation(data_dir) as services, services.database.writing() as session:
        created = access.create_key(session, tenant=tenant, name=name, scopes=scope)
    console.print(created.secret, markup=False, highlight=False, soft_wrap=True)


@key.command("list")
def key_list(data_dir: DataDir = None) -> None:
    """List the API keys, without their secrets."""
    table = Table("id", "tenant", "name", "scopes", "created", "revoked")
    with existing_installation(data_dir) as services, services.database.reading() as session:
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


@key.command("revoke")
def key_revoke(
    key_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="The id of the key, from `lethe key list`. The first characters are enough."
        ),
    ],
    data_dir: DataDir = None,
) -> None:
    """Revoke an API key. It stops working at once."""
    with existing_installation(data_dir) as services, services.database.writing() as session:
        revoked = access.revoke_key(session, _find_key(session, key_id))
    console.print(f"Revoked the key {revoked.id}.")


@key.command("rotate-deployment")
def key_rotate_deployment(data_dir: DataDir = None) -> None:
    """Encrypt everything under a new deployment key. The service may keep running.

    Put the new key where the deployment key belongs, name the old one in LETHE_PREVIOUS_DEPLOYMENT_KEY_FILE,
    and restart every part of the service before you run this. If it is interrupted, run it again.
    """
    with existing_installation(data_dir) as services:
        if services.settings.previous_deployment_key_file is None:
            raise refuse(
                "set LETHE_PREVIOUS_DEPLOYMENT_KEY_FILE to the file of the key to replace, and put the new "
                f"key in {services.settings.deployment_key_path}"
            )
        try:
            renewed = services.key_rotation.run()
        except (KeyProblem, StorageError) as problem:
            raise refuse(str(problem)) from None
    console.print(f"Encrypted {renewed} keys and secrets under the new deployment key.")
    console.print(
        "Unset LETHE_PREVIOUS_DEPLOYMENT_KEY_FILE, restart every part of the service, and make a backup. "
        "Then destroy the old key, and the backups that need it."
    )


def _find_key(session: Session, prefix: str) -> UUID:
    """Return the only key whose id starts with `prefix`, or exit."""
    wanted = prefix.replace("-", "").lower()
    matches = [item.id for item, _ in access.list_keys(session) if item.id.hex.startswith(wanted)]
    if len(matches) == 1 and wanted:
        return matches[0]
    if not matches or not wanted:
        raise refuse(f"there is no API key {prefix}; to see those there are, run `lethe key list`")
    raise refuse(
        f"{prefix} is the start of {len(matches)} ids: {', '.join(map(str, matches[:10]))}; write more of it"
    )
