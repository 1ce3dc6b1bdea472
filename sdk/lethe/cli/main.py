"""The `lethe` command and its subcommands."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lethe.cli import access, audit_log, batches, erasures, models, reports, representations, webhooks
from lethe.cli.card import card
from lethe.cli.doctor import doctor
from lethe.cli.exit_status import ExitStatus
from lethe.cli.export import export
from lethe.cli.server_commands import ClientAndServerCommands
from lethe.cli.usage import print_problem

MODELS, ERASURES, CERTIFICATES = "Models", "Erasures", "Certificates"
CONNECTION, OTHER = "Connection", "Other"


class Commands(ClientAndServerCommands):
    """All commands, in the order in which `lethe --help` lists them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands by panel, those of the service last."""
        panels = [MODELS, ERASURES, CERTIFICATES, CONNECTION, OTHER]

        def place(name: str) -> tuple[int, bool]:
            panel = getattr(self.commands.get(name), "rich_help_panel", None)
            return panels.index(panel) if panel in panels else len(panels), name != "model"

        return sorted(super().list_commands(ctx), key=place)


app = typer.Typer(
    name="lethe",
    cls=Commands,
    help="Erase people from trained models, and prove it.\n\n"
    "Run `lethe login` or set LETHE_URL and LETHE_API_KEY to connect to a service. Run `lethe up` to start "
    "one on this machine.",
    epilog="Exit status: 0 success · 1 the answer is no · 2 invalid usage or input · 3 service unreachable "
    "or failed · 4 API key refused · 5 not found · 6 timed out · 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # lines of a docstring are joined to paragraphs
)


def _print_version(requested: bool) -> None:
    if requested:
        show_version()
        raise typer.Exit


@app.callback()
def main_options(
    _: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    """Take the options that come before a command."""


app.add_typer(models.model, name="model", rich_help_panel=MODELS)
app.add_typer(representations.representation, name="representation", rich_help_panel=MODELS)
app.command("download", rich_help_panel=MODELS)(models.download)
app.command("export", rich_help_panel=MODELS)(export)
app.command("card", rich_help_panel=MODELS)(card)
app.command("ledger", rich_help_panel=MODELS)(reports.ledger)
app.command("evaluate", rich_help_panel=MODELS)(reports.evaluate)
app.command("erase", rich_help_panel=ERASURES)(erasures.erase)
app.command("status", rich_help_panel=ERASURES)(erasures.status)
app.command("watch", rich_help_panel=ERASURES)(erasures.watch)
app.command("receipts", rich_help_panel=ERASURES)(erasures.receipts)
app.add_typer(erasures.erasure, name="erasure", rich_help_panel=ERASURES)
app.add_typer(batches.batch, name="batch", rich_help_panel=ERASURES)


@app.command(rich_help_panel=CERTIFICATES)
def verify(
    pack: Annotated[Path, typer.Argument(metavar="PACK", help="The certificate's pack.json.")],
    model: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The model's weights, as safetensors.")
    ] = None,
    onnx: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The model as ONNX, from `lethe export`. Contains the weights."),
    ] = None,
    evidence: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The evidence record for auditors.")
    ] = None,
    receipt: Annotated[Path | None, typer.Option(metavar="FILE", help="A data subject's receipt.")] = None,
    since: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A tree head that you kept from earlier.")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The issuer's keys, obtained from the issuer.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option(metavar="ID", help="The identifier that the receipt must be about.")
    ] = None,
    digest: Annotated[
        str | None,
        typer.Option(metavar="SHA256", help="The certificate's digest, from a printed page or its QR code."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Verify a certificate offline.

    The exit status is 0 if it is verified, 1 if it is not, and 2 if the input cannot be used. Without --keys,
    the keys in the pack are used. The verdict then says so, and the exit status is still 0.
    """
    from lethe.certificate.cli import run_verify

    lines: list[str] = []
    status = run_verify(
        pack=pack,
        model=model,
        onnx=onnx,
        evidence=evidence,
        receipt=receipt,
        since=since,
        keys=keys,
        subject=subject,
        digest=digest,
        as_json=as_json,
        write=lines.append,
    )
    if status == ExitStatus.USAGE and not as_json:
        print_problem(lines[0].removeprefix("unusable input: "))
    else:
        typer.echo("\n".join(lines))
    raise typer.Exit(status)


app.command("audit", rich_help_panel=CERTIFICATES)(reports.audit)
app.add_typer(audit_log.audit_log, name="audit-log", rich_help_panel=CERTIFICATES)
app.command("keys", rich_help_panel=CERTIFICATES)(access.keys)
app.command("login", rich_help_panel=CONNECTION)(access.login)
app.command("logout", rich_help_panel=CONNECTION)(access.logout)
app.command("whoami", rich_help_panel=CONNECTION)(access.whoami)
app.command("doctor", rich_help_panel=CONNECTION)(doctor)
app.add_typer(webhooks.webhook, name="webhook", rich_help_panel=CONNECTION)


@app.command("version", rich_help_panel=OTHER)
def show_version() -> None:
    """Print the version of the client."""
    from importlib.metadata import version

    typer.echo(version("lethe-unlearning"))


def main() -> None:
    """Run the `lethe` command."""
    app(prog_name="lethe")


if __name__ == "__main__":
    main()
