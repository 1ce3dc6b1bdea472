from datetime import datetime
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from app.access.scopes import Scope


class KeyRequest(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "intake form", "scopes": ["erasures:write"]}]},
    )

    name: str = Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]+$")
    scopes: list[Scope] = Field(min_length=1, max_length=len(Scope))


class Key(BaseModel):
    id: UUID
    name: str
    scopes: list[Scope]
    created_at: datetime
    revoked_at: datetime | None


class NewKey(Key):
    secret: str = Field(description="Shown once; only its hash is kept.")
