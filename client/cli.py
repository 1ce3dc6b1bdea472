"""The `lethe` command. It starts fast: a verb imports what it needs when it is run."""

from pathlib import Path
from typing import Annotated

import typer

from client.commands import batch, erasure, model, reports, transfers, watching
from client.server_verbs import Verbs

app = typer.Typer(
    name="lethe",
    cls=Verbs,
    help="Erase people from trained models, and prove it.",
    epilog="Exit status: 0 done · 1 the answer is no · 2 wrong usage · 3 service unreachable or failed · "
    "4 key refused · 5 not found · 6 not ended in time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command("version")
def show_version() -> None:
    """Print the version."""
    from importlib.metadata import version

    typer.echo(version("lethe"))


app.add_typer(model.model, name="model")
app.command("erase")(erasure.erase)
app.command("status")(erasure.status)
app.command("watch")(watching.watch)
app.add_typer(batch.batch, name="batch")
app.command("download")(transfers.download)
app.command("receipts")(erasure.receipts)
app.command("ledger")(reports.ledger)
app.command("evaluate")(reports.evaluate)
app.command("audit")(reports.audit)


@app.command()
def verify(
    pack: Annotated[Path, typer.Argument(help="pack.json of the certificate.")],
    model: Annotated[Path | None, typer.Option(help="The checkpoint, as safetensors.")] = None,
    evidence: Annotated[Path | None, typer.Option(help="The restricted evidence record.")] = None,
    receipt: Annotated[Path | None, typer.Option(help="A data subject's receipt.")] = None,
    since: Annotated[Path | None, typer.Option(help="A tree head kept from earlier.")] = None,
    keys: Annotated[Path | None, typer.Option(help="The issuer's keys, obtained from the issuer.")] = None,
    subject: Annotated[str | None, typer.Option(help="Whom the receipt must be about.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable answer.")] = False,
) -> None:
    """Verify a certificate offline: exit 0 verified, 1 not verified, 2 unusable input.

    Without --keys the keys in the pack are used: the verdict says so, and the exit status is 0 all the same.
    """
    from certificate.cli import run_verify

    raise typer.Exit(
        run_verify(
            pack=pack,
            model=model,
            evidence=evidence,
            receipt=receipt,
            since=since,
            keys=keys,
            subject=subject,
            as_json=as_json,
            write=typer.echo,
        )
    )


def main() -> None:
    app(prog_name="lethe")


if __name__ == "__main__":
    main()
