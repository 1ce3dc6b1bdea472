"""Certificates and proofs from the certificate log."""

from datetime import datetime
from uuid import UUID

from lethe.client.responses.base import Response


class Certificate(Response):
    """An issued certificate; `digest` is the SHA-256 of its signed envelope."""

    id: UUID
    digest: str
    mechanism: str
    chain_index: int
    log_index: int
    created_at: datetime
    evidence_deleted_at: datetime | None = None


class InclusionProof(Response):
    """A proof that an entry is in the certificate log. `checkpoint` is the signed tree head."""

    index: int
    size: int
    path: tuple[str, ...]
    checkpoint: str


class ConsistencyProof(Response):
    """A proof that the certificate log has only grown. `checkpoint` is the signed tree head."""

    old_size: int
    new_size: int
    path: tuple[str, ...]
    checkpoint: str
