"""`lethe login`, `lethe logout`, `lethe whoami` and `lethe keys`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lethe.cli.context import CommandContext, UsageError, check_url, command
from lethe.cli.exit_status import ExitStatus
from lethe.cli.tables import details

if TYPE_CHECKING:
    from lethe.client.responses import Identity


@command
def login(
    context: CommandContext,
    address: Annotated[
        str | None,
        typer.Argument(metavar="ADDRESS", help="Address of the service. Default: --url or LETHE_URL."),
    ] = None,
) -> None:
    """Check an API key and store it with the address of its service, for all later commands.

    The key is asked for, or read from standard input or LETHE_API_KEY. Both are stored in a file that only
    you can read. --url, --api-key and the environment take precedence over it.
    """
    from lethe.client.api import DEFAULT_URL
    from lethe.client.stored_login import Login, save_login

    url, api_key = context.access
    url = address or url or DEFAULT_URL
    check_url(url)
    api_key = api_key or _ask_for_key(url)
    client = context.connect(url, api_key)
    try:
        identity = client.keys.whoami()
    finally:
        client.close()
    file = save_login(Login(url, api_key))
    context.show({"url": url, "file": file, "identity": identity}, _identity_details(url, identity))
    context.note(f"Stored in {file}. To delete it, run: lethe logout")


@command
def logout(context: CommandContext) -> None:
    """Delete the stored address and API key. The key stays valid until it is revoked."""
    from lethe.client.stored_login import delete_login, login_file

    deleted = delete_login()
    text = f"Deleted {login_file()}." if deleted else f"There is no stored login at {login_file()}."
    context.show({"file": login_file(), "deleted": deleted}, text)


@command
def whoami(context: CommandContext) -> None:
    """Show which service, tenant and API key the commands use, and what the key may do."""
    identity = context.api.keys.whoami()
    url = str(context.api.http.base_url)
    context.show({"url": url, "identity": identity}, _identity_details(url, identity))


@command
def keys(
    context: CommandContext,
    to: Annotated[
        Path | None,
        typer.Option("--to", dir_okay=False, metavar="FILE", help="Save the keys here. Default: print them."),
    ] = None,
) -> int | None:
    """Fetch the issuer's public keys, for `lethe verify --keys`.

    Fetch them once, over a connection that you trust, and keep them: a certificate that verifies under keys
    from another source proves more than one that verifies under the keys in its own pack. A service has keys
    from its first certificate on. Before that, the exit status is 1.
    """
    import json

    key_set = context.api.log.keys()
    document = key_set.model_dump(mode="json", by_alias=True)
    if not key_set.keys:
        context.note("The service has no keys yet, because it has not issued a certificate. Try again then.")
        return ExitStatus.NO
    if to is None:
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        return None
    to.write_bytes(key_set.to_bytes())
    context.show({"file": to}, f"Saved the issuer's keys in {to}.")
    context.note(f"To use them, run: lethe verify PACK --keys {to}")
    return None


def _ask_for_key(url: str) -> str:
    if not sys.stdin.isatty():
        text = sys.stdin.buffer.readline().decode(errors="replace").strip()
    else:
        text = typer.prompt(f"API key for {url}", hide_input=True, err=True).strip()
    if not text:
        raise UsageError("no API key; pass it on standard input or in LETHE_API_KEY")
    return text


def _identity_details(url: str, identity: "Identity") -> Any:
    return details(
        {
            "Service": url,
            "Tenant": identity.tenant,
            "API key": f"{identity.key_name} ({identity.key_id})",
            "May": ", ".join(identity.scopes),
        }
    )
