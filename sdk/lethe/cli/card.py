"""`lethe card`: the model card of a certified version."""

from typing import TYPE_CHECKING, Annotated

import typer

from lethe.cli.context import CommandContext, UsageError, command
from lethe.cli.names import ModelName

if TYPE_CHECKING:
    from lethe.client.releases import Release
    from lethe.client.responses import Evaluation


@command
def card(
    context: CommandContext,
    name: ModelName,
    number: Annotated[
        int | None,
        typer.Option(
            "--version", metavar="NUMBER", min=0, help="Number of the version. Default: the current one."
        ),
    ] = None,
    evaluation: Annotated[
        bool, typer.Option("--evaluation", help="Include the newest completed evaluation of this version.")
    ] = False,
) -> None:
    """Print the model card of a certified version: `lethe card NAME > README.md`.

    The card is Markdown with the YAML header of Hugging Face. It says what the certificate guarantees and
    what it does not, and how to verify and load the model. The certificate is verified first.
    """
    from lethe.client.model_card import render_card
    from lethe.client.releases import find_release

    release = find_release(context.api, name, number)
    is_current = release.version.state == "current"
    text = render_card(
        release.pack,
        version=release.version,
        ledger=context.api.models.ledger(name) if is_current else None,
        evaluation=_find_evaluation(context, release) if evaluation else None,
    )
    if context.as_json:
        predicate = release.predicate
        facts = {"model": name, "version": predicate.version, "certificate_id": predicate.certificate_id}
        context.show(facts | {"card": text})
    else:
        typer.echo(text, nl=False)


def _find_evaluation(context: CommandContext, release: "Release") -> "Evaluation":
    """Return the newest completed evaluation of a version."""
    for report in context.api.evaluations.list(release.model):
        if report.version == release.version.number and report.result is not None:
            return report
    raise UsageError(
        f"version {release.version.number} of {release.model} has no completed evaluation. "
        f"To start one, run: lethe evaluate {release.model}"
    )
