from datetime import datetime
from uuid import UUID

from pydantic import BaseModel, Field


class CertificateShown(BaseModel):
    id: UUID
    digest: str = Field(description="sha256 of the signed envelope: the leaf of the log.")
    mechanism: str
    chain_index: int
    log_index: int
    created_at: datetime


class InclusionProof(BaseModel):
    index: int
    size: int
    path: list[str]
    checkpoint: str


class ConsistencyProof(BaseModel):
    old_size: int
    new_size: int
    path: list[str]
    checkpoint: str
