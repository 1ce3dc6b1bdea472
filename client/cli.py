"""The `lethe` command. Verbs of the server are found through entry points, so this imports none of it."""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from certificate.cli import run_verify

app = typer.Typer(
    name="lethe",
    help="Erase people from trained models, and prove it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
GROUP = "lethe.commands"


@app.command("version")
def show_version() -> None:
    """Print the version."""
    typer.echo(version("lethe"))


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


def _add_server_verbs() -> None:
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            target = point.load()
        except ModuleNotFoundError as problem:
            if problem.name is None or problem.name.partition(".")[0] in ("app", "worker"):
                raise
            target = _needs_extra(point, problem.name)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=point.name)
        else:
            app.command(point.name)(target)


def _needs_extra(point: EntryPoint, missing: str) -> Callable[[], None]:
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


_add_server_verbs()


def main() -> None:
    app(prog_name="lethe")


if __name__ == "__main__":
    main()
