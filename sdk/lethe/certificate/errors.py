"""One family of errors for a certificate that does not hold, and one error for input that cannot be read."""

from __future__ import annotations

from typing import ClassVar


class UnusableInput(Exception):
    """The input is not what it should be (not a pack, not JSON, no such file): nothing was verified."""


class VerificationError(Exception):
    """A check failed. `line` is its number on the checklist."""

    line: ClassVar[int] = 0
    title: ClassVar[str] = "verification"


class SignatureInvalid(VerificationError):
    line = 1
    title = "signature over the exact bytes, by a key valid at this place in the log"


class StatementUnreadable(VerificationError):
    line = 2
    title = "statement and predicate are of a known version"


class FileMismatch(VerificationError):
    line = 3
    title = "the model file is the one certified"


class NoiseTooSmall(VerificationError):
    line = 4
    title = "noise recomputed from (Δ*, ε, δ - p)"


class AssuranceUnfounded(VerificationError):
    line = 5
    title = "assurance matches rule, family and assumptions"


class ChainBroken(VerificationError):
    line = 6
    title = "chain of releases and lifetime sum"


class LogProofInvalid(VerificationError):
    line = 7
    title = "inclusion under the signed tree head"


class EvidenceMismatch(VerificationError):
    line = 8
    title = "evidence opens the commitment and supports the bound"


class ReceiptInvalid(VerificationError):
    line = 9
    title = "receipt"


CHECKLIST: tuple[type[VerificationError], ...] = (
    SignatureInvalid,
    StatementUnreadable,
    FileMismatch,
    NoiseTooSmall,
    AssuranceUnfounded,
    ChainBroken,
    LogProofInvalid,
    EvidenceMismatch,
    ReceiptInvalid,
)
