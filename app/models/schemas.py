from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from app.db.manifest import Manifest
from app.db.states import ModelState

NAME = r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$"
ModelName = Annotated[str, Path(pattern=NAME, description="Name of the model.", examples=["digits"])]
PartName = Annotated[
    str, Path(pattern=r"^[a-z0-9]{1,32}$", description="Name of the part.", examples=["part0"])
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


class ModelRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE]})

    name: str = Field(pattern=NAME)
    manifest: Manifest


class ModelShown(BaseModel):
    id: UUID
    name: str
    state: ModelState
    manifest: Manifest
    sigma: float = Field(description="Standard deviation of the noise that the policy implies.")
    generation: int = Field(description="Of the dataset; 0 until the first erasure.")
    reasons: list[str] = Field(description="Why the model was rejected.")
    report: dict[str, Any] | None = Field(description="What registration measured.")
    waiting_subjects: int
    created_at: datetime


class Uploaded(BaseModel):
    sha256: str
    size: int


class Flushed(BaseModel):
    waiting_subjects: int
