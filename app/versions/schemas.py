from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import Path
from pydantic import BaseModel, Field

from app.db.states import VersionState

VersionNumber = Annotated[
    str,
    Path(pattern=r"^(?:current|[0-9]{1,9})$", description="A number, or `current`.", examples=["current"]),
]


class VersionShown(BaseModel):
    number: int
    state: VersionState
    sha256: str
    size: int
    certificate_id: UUID | None = Field(
        description="None for version 0: the model as registered, without noise."
    )
    batch_id: UUID | None
    created_at: datetime
    superseded_at: datetime | None
