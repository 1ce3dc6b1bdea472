"""Representations: public functions that turn one raw row into the features that a model is fitted on.

A representation is an ONNX graph, for text also a tokenizer, and a declaration: what the graph takes, which
of its outputs are used, and where it comes from. Manifest, worker and certificate share these classes.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from lethe.certificate.records import Declaration, Positive, Record, Sha256, canonical_json

Size = Annotated[int, Field(ge=1, le=65_536)]
Constant = Annotated[float, Field(ge=-1e6, le=1e6)]
TensorName = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$")]
LIBRARY_NAME: Final = r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$"
LibraryName = Annotated[str, StringConstraints(pattern=LIBRARY_NAME)]
MAX_PIXELS: Final = 4096 * 4096


class VectorInput(Record):
    """Rows that are vectors of numbers already. The graph's input has the shape (rows, width)."""

    kind: Literal["vector"]
    width: Annotated[int, Field(ge=1, le=10_000_000)] = Field(
        description="The numbers per raw row, in the column `features`."
    )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row of the graph's input."""
        return (self.width,)


class ImageInput(Record):
    """Rows that are images, in the column `image`. The graph's input has the shape (rows, *shape).

    A pixel becomes (pixel·scale - mean) / std, with one mean and one std per channel.
    """

    kind: Literal["image"]
    encoding: Literal["png or jpeg", "uint8"] = Field(
        "png or jpeg",
        description="How the column stores an image: as a PNG or JPEG file, or as plain bytes, row by row, "
        "each pixel with its channels, in the height and width of `shape`.",
    )
    shape: Annotated[tuple[Size, Size, Size], Field(strict=False)] = Field(
        description="Channels (1 for grey, 3 for RGB), height and width of the graph's input."
    )
    resize: Literal["none", "bilinear", "bicubic"] = Field(
        "bilinear", description="How an image of another size is resized. `none` refuses it."
    )
    scale: Positive = Field(1 / 255, le=1e6, description="The factor of every pixel, which is 0 to 255.")
    mean: Annotated[tuple[Constant, ...], Field(strict=False, max_length=3)] = Field(
        (), description="What is subtracted from each channel after scaling. Empty: nothing."
    )
    std: Annotated[tuple[Positive, ...], Field(strict=False, max_length=3)] = Field(
        (), description="What each channel is divided by afterwards. Empty: 1."
    )

    @model_validator(mode="after")
    def _constants_fit_channels(self) -> Self:
        channels, height, width = self.shape
        if channels not in (1, 3):
            raise ValueError("an image has 1 channel (grey) or 3 channels (RGB)")
        if height * width > MAX_PIXELS:
            raise ValueError(f"the shape has more than {MAX_PIXELS:,} pixels")
        if any(constants and len(constants) != channels for constants in (self.mean, self.std)):
            raise ValueError("mean and std need one number per channel, or none")
        return self


class TextInput(Record):
    """Rows that are texts, in the column `text`. A tokenizer turns each into token ids.

    The graph's inputs are `input_ids` and, if it has them, `attention_mask` and `token_type_ids`, each of the
    shape (1, tokens).
    """

    kind: Literal["text"]
    max_length: Annotated[int, Field(ge=1, le=65_536)] = Field(
        description="The most tokens of a text, special tokens included. Longer texts are cut off."
    )


RowInput = Annotated[VectorInput | ImageInput | TextInput, Field(discriminator="kind")]


class Representation(Record):
    """The declaration of a representation, as a manifest contains it."""

    input: RowInput = Field(description="What one raw row is, and how it becomes the graph's input.")
    outputs: Annotated[tuple[TensorName, ...], Field(strict=False, min_length=1, max_length=32)] = Field(
        description="The graph's outputs that are joined, in this order, into the features of a row."
    )
    normalisation: Literal["none", "unit"] = Field(
        "none", description="`unit` scales every row to length 1. Nothing is computed over several rows."
    )
    origin: Declaration = Field(
        description="Where the graph comes from and what it was trained on, as printed on certificates.",
        examples=["EfficientNet-Lite0, trained on ImageNet-1k"],
    )
    licence: Declaration = Field(description="The licence of the graph.", examples=["Apache-2.0"])
    library: LibraryName | None = Field(
        None,
        description="The name of an entry of the installation's library. The graph is then not uploaded.",
    )

    @model_validator(mode="after")
    def _outputs_are_named_once(self) -> Self:
        if len(set(self.outputs)) != len(self.outputs):
            raise ValueError("the same output is named twice")
        return self

    @property
    def needs_tokenizer(self) -> bool:
        """Whether a `tokenizer.json` belongs to it."""
        return self.input.kind == "text"

    def digest(self, graph_sha256: str, tokenizer_sha256: str | None) -> str:
        """Return the SHA-256 that names the function: the files, the constants and the outputs.

        Origin, licence and the name in a library do not change the function, so they are left out.
        """
        function = self.model_dump(mode="json", include={"input", "outputs", "normalisation"})
        files = {"graph": graph_sha256, "tokenizer": tokenizer_sha256}
        return hashlib.sha256(b"urn:lethe:representation:v1\n" + canonical_json(function | files)).hexdigest()


RowCheck = Literal["rows-run-alone", "batches-compared"]

ROW_CHECKS: Final[dict[RowCheck, str]] = {
    "rows-run-alone": "Every row was run through the graph by itself. At registration, sample rows gave the "
    "same bits each time, whichever rows had been run before.",
    "batches-compared": "Rows were run in batches of one fixed shape. At registration, sample rows gave the "
    "same bits alone, at other places of a batch and next to other rows.",
}


class CertifiedRepresentation(Record):
    """The representation of a certified model: its declaration, its files, and how rows were kept apart."""

    digest: Sha256
    declaration: Representation
    graph_sha256: Sha256
    graph_bytes: Annotated[int, Field(ge=1, lt=2**53)]
    tokenizer_sha256: Sha256 | None
    row_check: RowCheck

    @model_validator(mode="after")
    def _digest_names_the_function(self) -> Self:
        if self.declaration.needs_tokenizer != (self.tokenizer_sha256 is not None):
            raise ValueError("a representation of text, and no other, has a tokenizer")
        if self.digest != self.declaration.digest(self.graph_sha256, self.tokenizer_sha256):
            raise ValueError("the digest is not that of the representation's files and constants")
        return self

    @property
    def row_check_text(self) -> str:
        """How rows were kept apart, in words."""
        return ROW_CHECKS[self.row_check]
