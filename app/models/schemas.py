from datetime import datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from fastapi import Header, Path
from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.db.manifest import Manifest, known_families
from app.db.states import ModelState, PartRole
from certificate.predicate import Assurance

NAME = r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$"
PART = r"^[a-z0-9]{1,32}$"
ModelName = Annotated[str, Path(pattern=NAME, description="Name of the model.", examples=["digits"])]
PartName = Annotated[str, Path(pattern=PART, description="Name of the part.", examples=["part0"])]
ContentRange = Annotated[
    str | None,
    Header(description="`bytes first-last/total`: the body is this piece of the file.", max_length=100),
]
ReprDigest = Annotated[
    str | None,
    Header(description="`sha-256=:…:` of the whole file; another one is refused.", max_length=500),
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
    if name not in known_families():
        raise ValueError(f"the family is not known; there are {', '.join(sorted(known_families()))}")


class ModelRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE]})

    name: str = Field(pattern=NAME)
    manifest: Manifest

    @model_validator(mode="after")
    def _known_family(self) -> Self:
        check_family(self.manifest.family)
        return self


class ManifestPatch(BaseModel):
    """A JSON Merge Patch of the manifest (RFC 7396): members to change, null for the default."""

    model_config = ConfigDict(
        extra="allow", json_schema_extra={"examples": [{"policy": {"batch_subjects": 20}}]}
    )

    policy: dict[str, Any] | None = Field(None, description="May change at any time; never retroactive.")


class ModelShown(BaseModel):
    id: UUID
    name: str
    state: ModelState
    manifest: Manifest
    sigma: float = Field(description="Standard deviation of the noise that the policy implies.")
    generation: int = Field(description="Of the dataset; 0 until the first erasure or append.")
    reasons: list[str] = Field(description="Why the model was rejected: every reason that was found.")
    report: dict[str, Any] | None = Field(description="What registration measured, and its warnings.")
    waiting_subjects: int
    assurance: Assurance = Field(description="What the next release by the policy's method can have at most.")
    assurance_notes: list[str] = Field(
        description="Why that is less than the method could give, and what to do about it."
    )
    created_at: datetime


class Holding(BaseModel):
    part: str
    role: PartRole
    state: Literal["held", "staged", "to be imported"]
    rows: int | None
    size: int | None = Field(description="Bytes.")


class Uploaded(BaseModel):
    sha256: str
    size: int


class Transfer(BaseModel):
    complete: bool
    received: int = Field(description="Bytes that are here; the next piece begins there.")
    total: int | None
    sha256: str | None = Field(description="Of the complete file.")


class ImportRequest(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"part": "part0", "uri": "s3://bucket/data/part0.parquet"}]},
    )

    part: str = Field(pattern=PART)
    uri: str = Field(max_length=1000)


class Appending(BaseModel):
    batch_id: UUID = Field(description="Follow it like any batch.")


class Flushed(BaseModel):
    waiting_subjects: int
