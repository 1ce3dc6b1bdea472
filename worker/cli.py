"""The worker's verb of the `lethe` command."""

from importlib.util import find_spec
from typing import Annotated

import typer

from app.startup import refuse, settings_or_exit


def worker(
    rotate_signing_key: Annotated[
        bool,
        typer.Option("--rotate-signing-key", help="Let the signing key given now replace the old one; end."),
    ] = False,
) -> None:
    """Take jobs from the queue, each in a fresh process of its own."""
    settings = settings_or_exit()
    if find_spec("torch") is None:
        raise refuse("the worker needs torch: pip install 'lethe[worker]'")
    from worker import main

    (main.rotate_signing_key if rotate_signing_key else main.run)(settings)
