"""Errors of verification: one for unusable input, and one for each line of the checklist."""

from __future__ import annotations

from typing import ClassVar


class UnusableInput(Exception):
    """A document or file could not be read, so nothing was verified.

    For example, the file does not exist, or its contents are not a pack.
    """


class NotExportable(Exception):
    """A model cannot be written as an ONNX file. The message says why, and what can be exported."""


class VerificationError(Exception):
    """A check failed. `line` is its number on the checklist, and `title` describes the check."""

    line: ClassVar[int] = 0
    title: ClassVar[str] = "verification"


class SignatureInvalid(VerificationError):
    """Line 1: no valid key signed these bytes."""

    line = 1
    title = "A key that is valid at this place in the log signed exactly these bytes"


class UnknownSigner(SignatureInvalid):
    """Line 1: the key that signed is not among the issuer's."""


class SignatureMismatch(SignatureInvalid):
    """Line 1: a known key did not sign these bytes. Someone has changed them, or the signature."""


class StatementUnreadable(VerificationError):
    """Line 2: the signed bytes are not a statement of a known version."""

    line = 2
    title = "The statement is readable and of a known version"


class FileMismatch(VerificationError):
    """Line 3: the file is not the one certified."""

    line = 3
    title = "The model file is the one certified"


class NoiseTooSmall(VerificationError):
    """Line 4: the noise is less than the stated (ε, δ) needs."""

    line = 4
    title = "The noise is large enough for the stated ε and δ"


class AssuranceUnfounded(VerificationError):
    """Line 5: the certificate claims an assurance that its rule, family and assumptions do not support."""

    line = 5
    title = "Rule, model family and assumptions support the stated assurance"


class ChainBroken(VerificationError):
    """Line 6: an earlier certificate does not verify, or the running sums are wrong."""

    line = 6
    title = "Every earlier release verifies and the lifetime sum is correct"


class LogProofInvalid(VerificationError):
    """Line 7: the certificate log does not contain the chain under a valid tree head."""

    line = 7
    title = "The certificate log contains the whole chain under a signed tree head"


class EvidenceMismatch(VerificationError):
    """Line 8: the evidence does not open the commitment, or does not support the bound."""

    line = 8
    title = "The evidence opens its commitment and supports the bound"


class ReceiptInvalid(VerificationError):
    """Line 9: the receipt does not lead to this certificate, or is about someone else."""

    line = 9
    title = "The receipt is valid"


class OnnxMismatch(VerificationError):
    """Line 10: the ONNX file is not the named representation followed by the certified model."""

    line = 10
    title = "The ONNX file holds the certified model and nothing else"


class DigestMismatch(VerificationError):
    """Line 11: the certificate is another one than the digest names."""

    line = 11
    title = "The certificate is the one with the expected digest"


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
    OnnxMismatch,
    DigestMismatch,
)
