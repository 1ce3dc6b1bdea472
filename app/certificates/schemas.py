from datetime import datetime
from uuid import UUID

from pydantic import BaseModel, Field

from certificate.verify import Verdict


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


class VerificationLine(BaseModel):
    number: int
    title: str
    ok: bool | None = Field(
        description="Null where the check was not run: it needs a file this server lacks."
    )
    detail: str


class Verification(BaseModel):
    verified: bool = Field(description="No check failed; `verdict` says whether the file was among them.")
    verdict: Verdict
    headline: str
    keys: str = Field(description="Whose word it is that the keys are the issuer's: here only the pack's.")
    lines: list[VerificationLine]
    proves: list[str]
    does_not_prove: list[str]
    rests_on: list[str] = Field(
        description="The assumptions of the guarantee, as the certificate states them."
    )
    declared: list[str] = Field(description="What the owner declared, and what registration noticed.")
    not_covered: list[str] = Field(description="What the guarantee leaves out.")
