"""Response schemas of certificates and of the certificate log."""

from datetime import datetime
from uuid import UUID

from pydantic import BaseModel, Field

from lethe.certificate.verify import Verdict


class CertificateView(BaseModel):
    """A certificate in a list."""

    id: UUID
    digest: str = Field(
        description="The SHA-256 digest of the signed envelope: its leaf in the certificate log."
    )
    mechanism: str = Field(description="How the release was made. `discarded` for a draw that was destroyed.")
    chain_index: int = Field(
        description="The position of the certificate among its model's certificates, from 0."
    )
    log_index: int = Field(description="The position of the certificate in the certificate log, from 0.")
    created_at: datetime
    evidence_deleted_at: datetime | None = Field(
        None,
        description="When the evidence was deleted, because the policy of the model keeps it no longer. Null "
        "while it is kept. The certificate verifies without it.",
    )


class InclusionProof(BaseModel):
    """A proof that a leaf is in the certificate log."""

    index: int = Field(description="The position of the leaf in the log.")
    size: int = Field(description="The number of leaves in the log.")
    path: list[str] = Field(description="The hashes from the leaf to the root, in hex.")
    checkpoint: str = Field(description="The signed tree head that the proof leads to.")


class ConsistencyProof(BaseModel):
    """A proof that the certificate log has only grown."""

    old_size: int = Field(description="The earlier number of leaves.")
    new_size: int = Field(description="The current number of leaves.")
    path: list[str] = Field(description="The hashes that connect the two trees, in hex.")
    checkpoint: str = Field(description="The current signed tree head.")


class VerificationLine(BaseModel):
    """One check of the verification checklist."""

    number: int = Field(description="The number of the check.")
    title: str = Field(description="What is checked.")
    ok: bool | None = Field(
        description="Whether the check passed. Null if it was not run, because this server does not have the "
        "file or because it depends on a check that failed."
    )
    detail: str = Field(description="What was checked, and why it failed if it did.")


class Verification(BaseModel):
    """The result of verifying a certificate on this server."""

    verified: bool = Field(
        description="Whether no check failed. `verdict` says whether the weights file was checked too."
    )
    verdict: Verdict = Field(description="The overall result.")
    headline: str = Field(description="The result in one sentence.")
    keys: str = Field(description="Where the public keys come from. On this server, from the pack itself.")
    lines: list[VerificationLine] = Field(description="The checks, in order.")
    proves: list[str] = Field(description="What the certificate proves.")
    does_not_prove: list[str] = Field(description="What the certificate does not prove.")
    rests_on: list[str] = Field(
        description="The assumptions of the guarantee, as the certificate states them."
    )
    declared: list[str] = Field(description="What the model's owner declared, and what registration noticed.")
    not_covered: list[str] = Field(description="What the guarantee does not cover.")
    representation: list[str] = Field(
        description="The public function that turned raw rows into features: its declared origin and "
        "licence, its digests, and how rows were kept apart. Empty for a model without one."
    )
