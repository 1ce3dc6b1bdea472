"""Names of models on the command line."""

import re
from typing import Annotated

import typer

_MODEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def check_model_name(name: str | None) -> str | None:
    """Refuse a text that cannot be the name of a model, before the service does."""
    if name is not None and not _MODEL.fullmatch(name):
        raise typer.BadParameter(
            f"{name or 'an empty text'} cannot be the name of a model: use up to 63 lower-case letters, "
            "digits and hyphens, with no hyphen at the start or the end"
        )
    return name


ModelName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the model.", callback=check_model_name)
]
