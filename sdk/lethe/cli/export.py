"""`lethe export`: a certified model as one ONNX file."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from lethe.cli.context import CommandContext, UsageError, command
from lethe.cli.exit_status import ExitStatus
from lethe.cli.names import check_model_name
from lethe.cli.progress import transfer_bars
from lethe.cli.tables import details, format_size

if TYPE_CHECKING:
    from lethe.client.releases import Release


@command
def export(
    context: CommandContext,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the model.", callback=check_model_name)
    ],
    onnx: Annotated[Path, typer.Option("--onnx", dir_okay=False, metavar="FILE", help="The file to write.")],
    number: Annotated[
        int | None,
        typer.Option(
            "--version", metavar="NUMBER", min=0, help="Number of the version. Default: the current one."
        ),
    ] = None,
    pack: Annotated[
        Path | None,
        typer.Option("--pack", dir_okay=False, metavar="FILE", help="Also save the certificate's pack here."),
    ] = None,
) -> int | None:
    """Write a certified model as one ONNX file that any ONNX runtime serves.

    The file holds the representation's graph and the released weights. It is verified before it appears under
    its name. A model on texts also gets its tokenizer.json, in the same folder.
    """
    from lethe.client.errors import NotVerified
    from lethe.client.releases import export_onnx, find_release

    if not onnx.absolute().parent.is_dir():
        raise UsageError(f"the folder {onnx.parent} does not exist. Create it first")
    with TemporaryDirectory(dir=onnx.absolute().parent, prefix=".export-") as folder:
        try:
            release = find_release(context.api, name, number)
            with transfer_bars(context) as add_bar:
                exported = export_onnx(context.api, release, Path(folder), on_progress=add_bar("weights"))
        except NotVerified as error:
            for line in error.failures:
                context.note(f"✗ {line}")
            context.show({"verified": False}, "Nothing was written, because the file does not verify.")
            return ExitStatus.NO
        if exported.tokenizer is not None:
            _check_place(exported.tokenizer, onnx.with_name(exported.tokenizer.name))
        size = exported.onnx.stat().st_size
        exported.onnx.replace(onnx)
        tokenizer = None
        if exported.tokenizer is not None:
            tokenizer = exported.tokenizer.replace(onnx.with_name(exported.tokenizer.name))
    if pack is not None:
        pack.write_bytes(release.pack.to_bytes())
    _show(context, release, onnx, pack, tokenizer, size)
    return None


def _check_place(tokenizer: Path, target: Path) -> None:
    """Raise `UsageError` if another model's tokenizer would be overwritten."""
    if target.exists() and target.read_bytes() != tokenizer.read_bytes():
        raise UsageError(
            f"{target} is another tokenizer, which the export would overwrite. Export to another folder, or "
            "move that file away first"
        )


def _show(
    context: CommandContext,
    release: "Release",
    onnx: Path,
    pack: Path | None,
    tokenizer: Path | None,
    size: int,
) -> None:
    predicate = release.predicate
    result = {
        "model": predicate.model,
        "version": predicate.version,
        "file": onnx,
        "size": size,
        "tokenizer": tokenizer,
        "certificate_id": predicate.certificate_id,
        "pack": pack,
        "verified": True,
    }
    labels = {
        "Model": predicate.model,
        "Version": predicate.version,
        "File": onnx,
        "Size": format_size(size),
        "Tokenizer": tokenizer,
        "Certificate": predicate.certificate_id,
        "Pack": pack,
        "Verified": "yes, under the keys that came with the certificate",
    }
    context.show(result, details(labels))
    if pack is not None:
        context.note(f"To verify it, run: lethe verify {pack} --onnx {onnx}")
