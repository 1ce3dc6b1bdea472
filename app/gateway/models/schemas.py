"""Request and response schemas of models and their files."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from fastapi import Header, Path
from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.db.manifest import Manifest, known_families
from app.db.states import ModelState, PartRole
from lethe.certificate.predicate import Assurance
from lethe.certificate.representation import Representation

NAME = r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$"
PART = r"^[a-z0-9]{1,32}$"
ModelName = Annotated[str, Path(pattern=NAME, description="The name of the model.", examples=["digits"])]
PartName = Annotated[str, Path(pattern=PART, description="The name of the part.", examples=["part0"])]
ContentRange = Annotated[
    str | None,
    Header(
        description="`bytes first-last/total`: the body is this piece of the file. Omit it to send the "
        "whole file.",
        max_length=100,
    ),
]
ReprDigest = Annotated[
    str | None,
    Header(
        description="`sha-256=:…:`, the digest of the whole file. A file with another digest is refused.",
        max_length=500,
    ),
]

EXAMPLE: dict[str, Any] = {
    "name": "digits",
    "manifest": {
        "family": "softmax",
        "width": 64,
        "classes": 10,
        "lambda": 0.01,
        "origins": {"features": "raw pixels divided by 16", "constants": "chosen before the data was seen"},
        "policy": {"epsilon": 1.0, "delta": 1e-5, "target_distance": 1e-4, "batch_subjects": 50},
    },
}


def check_family(name: str) -> None:
    """Raise `ValueError` if no such family is built in or installed as a plug-in."""
    if name not in known_families():
        raise ValueError(f"the family is not known; there are {', '.join(sorted(known_families()))}")


class ModelRequest(BaseModel):
    """The model to create."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE]})

    name: str = Field(pattern=NAME, description="The name of the model, unique within your tenant.")
    manifest: Manifest = Field(description="What the model is, where its data comes from, and its policy.")

    @model_validator(mode="after")
    def _known_family(self) -> Self:
        check_family(self.manifest.family)
        return self


class ManifestPatch(BaseModel):
    """A JSON Merge Patch of the manifest (RFC 7396).

    Fields that you send are changed. Null restores the default.
    """

    model_config = ConfigDict(
        extra="allow", json_schema_extra={"examples": [{"policy": {"batch_subjects": 20}}]}
    )

    policy: dict[str, Any] | None = Field(
        None, description="Changes of the policy. They apply to batches sealed from now on."
    )


class RepresentationView(BaseModel):
    """The files of a model's representation."""

    digest: str | None = Field(
        description="The SHA-256 digest that names the function: graph, tokenizer, constants and outputs. "
        "Null until all its files have arrived."
    )
    graph_sha256: str | None = Field(description="The SHA-256 digest of the graph, in hex.")
    graph_size: int | None = Field(description="The size of the graph in bytes.")
    tokenizer_sha256: str | None = Field(
        description="The SHA-256 digest of the tokenizer, in hex. Only text has one."
    )
    tokenizer_size: int | None = Field(description="The size of the tokenizer in bytes.")
    library: str | None = Field(
        description="The entry of the library that the files belong to. Null if they are the model's own."
    )


class ModelView(BaseModel):
    """A model and its state."""

    id: UUID
    name: str = Field(description="The name of the model, unique within your tenant.")
    state: ModelState = Field(
        description="`uploading` and `rejected` models accept files. A `ready` model runs erasures and "
        "stages further training parts."
    )
    manifest: Manifest = Field(description="What the model is, where its data comes from, and its policy.")
    sigma: float = Field(description="σ, the standard deviation of the noise that the policy requires.")
    generation: int = Field(
        description="The generation of the training data. It grows with every erasure and append, from 0."
    )
    reasons: list[str] = Field(description="Why the model was rejected. Lists every reason found.")
    report: dict[str, Any] | None = Field(description="What registration measured, and its warnings.")
    progress: dict[str, Any] | None = Field(
        description="How far the running registration is: its step, the percentage done and the seconds "
        "left. Null when none is running."
    )
    representation: RepresentationView | None = Field(
        description="The files of the model's representation. Null without one, and until the first file "
        "has arrived."
    )
    waiting_subjects: int = Field(
        description="How many people wait for the next batch. In a list, a number of 100 or more may be up "
        "to 5 seconds old."
    )
    assurance: Assurance = Field(
        description="The highest assurance that the next release by the policy's method can have."
    )
    assurance_text: str = Field(description="What this assurance means, in one sentence.")
    assurance_notes: list[str] = Field(
        description="Why this is less than the method could give, and what to do about it."
    )
    created_at: datetime


class DatasetPartView(BaseModel):
    """A part of a model's training or holdout data."""

    part: str = Field(description="The name of the part.")
    role: PartRole = Field(description="Whether the part is training or holdout data.")
    state: Literal["held", "staged", "to be imported"] = Field(
        description="`held`: in use. `staged`: waits to be appended. `to be imported`: the worker will copy "
        "it."
    )
    rows: int | None = Field(description="The number of rows. Null until a worker has read the part.")
    size: int | None = Field(description="The size of the file in bytes. Null until it is imported.")


class UploadedFile(BaseModel):
    """A file that has arrived completely."""

    sha256: str = Field(description="The SHA-256 digest of the file, in hex.")
    size: int = Field(description="The size of the file in bytes.")


class UploadStatus(BaseModel):
    """How much of a file has arrived."""

    complete: bool = Field(description="Whether the whole file has arrived.")
    received: int = Field(description="The number of bytes received. The next piece starts there.")
    total: int | None = Field(description="The size of the whole file in bytes.")
    sha256: str | None = Field(
        description="The SHA-256 digest of the complete file, in hex. Null until it is complete."
    )


class ImportRequest(BaseModel):
    """A part to copy from a storage URI."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"part": "part0", "uri": "s3://bucket/data/part0.parquet"}]},
    )

    part: str = Field(pattern=PART, description="The name of the new part.")
    uri: str = Field(
        max_length=1000, description="Where the Parquet file is. The operator must have allowed the location."
    )


class FileImportRequest(BaseModel):
    """A file of a representation to copy from a storage URI."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"uri": "s3://bucket/graphs/encoder.onnx"}]}
    )

    uri: str = Field(
        max_length=1000, description="Where the file is. The operator must have allowed the location."
    )


class LibraryEntryView(BaseModel):
    """A representation of the library, which every model of this installation may use by name."""

    name: str = Field(description="The name that a manifest uses as `representation.library`.")
    declaration: Representation = Field(
        description="What a manifest that uses it must declare: input, outputs, normalisation, origin and "
        "licence."
    )
    digest: str = Field(
        description="The SHA-256 digest that names the function: graph, tokenizer, constants and outputs."
    )
    graph_sha256: str = Field(description="The SHA-256 digest of the graph, in hex.")
    graph_size: int = Field(description="The size of the graph in bytes.")
    tokenizer_sha256: str | None = Field(
        description="The SHA-256 digest of the tokenizer, in hex. Only text has one."
    )
    tokenizer_size: int | None = Field(description="The size of the tokenizer in bytes.")
    created_at: datetime


class AppendStarted(BaseModel):
    """An append that has started."""

    batch_id: UUID = Field(description="The batch that appends the rows. Follow it like any other batch.")


class FlushResult(BaseModel):
    """The result of flushing a model."""

    waiting_subjects: int = Field(
        description="How many people are waiting and will be sealed in a batch. 0: nothing to do."
    )
