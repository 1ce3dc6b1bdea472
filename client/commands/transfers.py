"""Bars for files under way, and `lethe download`."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from client.commands import tables
from client.commands.session import Session, Unusable, verb

if TYPE_CHECKING:
    from client.answers import Version

Bar = Callable[[str], Callable[[int, int], object]]


@contextmanager
def bars(session: Session) -> Iterator[Bar]:
    """A bar per file, on standard error; none where nobody looks."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    visible = session.notes.is_terminal and not session.as_json
    with Progress(*columns, console=session.notes, disable=not visible) as progress:

        def bar(name: str) -> Callable[[int, int], object]:
            task = progress.add_task(name, total=None)
            return lambda done, total: progress.update(task, completed=done, total=total)

        yield bar


@verb
def download(
    session: Session,
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    to: Annotated[
        Path | None, typer.Option("--to", dir_okay=False, help="File; else named after model and version.")
    ] = None,
    number: Annotated[int | None, typer.Option("--version", min=0, help="Else the current one.")] = None,
    pack: Annotated[
        Path | None, typer.Option("--pack", dir_okay=False, help="Also save the certificate's pack here.")
    ] = None,
) -> None:
    """Download a checkpoint, checked against its digest.

    Broken off, the same command goes on where it was.
    """
    version = _version(session, model, number)
    wanted = number if version is None else version.number
    name = f"{model}.safetensors" if wanted is None else f"{model}-v{wanted}.safetensors"
    target = to or Path(name)
    with bars(session) as bar:
        session.api.versions.download(
            model, target, version="current" if wanted is None else wanted, tell=bar(target.name)
        )
    certificate_id = None if version is None else version.certificate_id
    if pack is not None:
        if certificate_id is None:
            raise Unusable("this version has no certificate: it is the model as registered, without noise")
        pack.write_bytes(session.api.certificates.pack(certificate_id).to_bytes())
    with target.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    answer = {
        "model": model,
        "version": wanted,
        "file": target,
        "size": target.stat().st_size,
        "sha256": sha256,
        "certificate_id": certificate_id,
        "pack": pack,
    }
    session.show(answer, tables.facts(answer))
    if pack is not None:
        session.note(f"Check it: lethe verify {pack} --model {target}")


def _version(session: Session, model: str, number: int | None) -> "Version | None":
    """What is to be had; None for a key that may download and may not look."""
    from client.errors import Forbidden

    try:
        versions = session.api.versions.list(model)
    except Forbidden:
        return None
    for version in versions:
        if version.number == number or (number is None and version.state == "current"):
            return version
    return None
