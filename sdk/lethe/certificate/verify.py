"""Offline verification: a numbered checklist over a pack, the weights file and further documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from lethe.certificate.assurance import check_assurance
from lethe.certificate.chain_check import check_chain
from lethe.certificate.disclosures import describe_failure, describe_statement, disclose
from lethe.certificate.envelope import Envelope, check_signature, from_base64
from lethe.certificate.envelope import parse as parse_envelope
from lethe.certificate.errors import (
    AssuranceUnfounded,
    ChainBroken,
    DigestMismatch,
    EvidenceMismatch,
    FileMismatch,
    LogProofInvalid,
    NoiseTooSmall,
    OnnxMismatch,
    ReceiptInvalid,
    SignatureInvalid,
    SignatureMismatch,
    StatementUnreadable,
    UnknownSigner,
    UnusableInput,
    VerificationError,
)
from lethe.certificate.evidence import EvidenceRecord
from lethe.certificate.evidence_check import check_evidence
from lethe.certificate.keys import KeySet
from lethe.certificate.log_check import check_log
from lethe.certificate.noise_check import check_noise
from lethe.certificate.onnx_file import check_onnx, parts_for, read_onnx
from lethe.certificate.pack import AnyPack, EarlierHead, LogConsistency, Pack, PackV1, read_pack
from lethe.certificate.receipt import (
    NoDataReceipt,
    Receipt,
    describe_no_data_held,
    is_no_data_held,
    verify_no_data_held,
    verify_receipt,
)
from lethe.certificate.records import (
    MAX_DOCUMENT,
    Record,
    canonical_json,
    file_problem,
    printable,
    read_object,
)
from lethe.certificate.statement import AnyStatement, parse
from lethe.certificate.weights_file import check_file

SIGNED_WITH_FILE = (
    "that the holder of the key signed this statement about this exact file and put it in the log at this "
    "place"
)
SIGNED = "that the holder of the key signed this statement and put it in the log at this place"
FOLLOWS = (
    "that σ, (ε, δ) and the lifetime sum follow from the stated numbers, for this release and each earlier "
    "one in the pack"
)

DOES_NOT_PROVE = (
    "that the issuer measured honestly or ran what it states: only the replay audit can show that",
    "that the assumptions listed in the certificate are true",
)
WITHOUT_FILE = (
    "that a file you hold is the certified one, with the stated number of weights, each on the public grid: "
    "no file was checked"
)
FORMAT_1 = (
    "that the noise hides what it should: this certificate is of format 1, whose noise was drawn in floating "
    "point, and a known attack can distinguish such a file from its reference"
)
KEYS_FROM_PACK = (
    "that the key belongs to the issuer: it came with the pack, so compare it with the keys that the issuer "
    "publishes"
)
ORDER_NOT_PROVED = (
    "the order in which the earlier certificates of the chain were logged: a pack of format 1 does not state "
    "it"
)

Source = bytes | str | Path
"""The contents of a file as bytes, or the path to it. A `str` is always a path."""

Verdict = Literal["verified", "verified without the model file", "not verified"]
T = TypeVar("T")


@dataclass(frozen=True)
class CheckResult:
    """One line of the checklist.

    `ok` is False for a check that failed. It is None for one that was not requested, or that depends on a
    check that failed.
    """

    number: int
    title: str
    ok: bool | None
    detail: str


@dataclass(frozen=True)
class VerificationReport:
    """The result of verifying a certificate.

    `keys` is "given" if the verifier supplied the issuer's keys, and "from the pack" if only the pack did.
    `rests_on` are the assumptions of the guarantee, `declared` the owner's declarations and the warnings from
    registration, and `not_covered` what the guarantee leaves out, all as the certificate states them.
    `representation` describes the public function that turned raw rows into features, if there is one.
    """

    headline: str
    keys: Literal["from the pack", "given"]
    lines: tuple[CheckResult, ...]
    proves: tuple[str, ...]
    does_not_prove: tuple[str, ...]
    rests_on: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    representation: tuple[str, ...] = ()

    @property
    def verified(self) -> bool:
        """Whether no check failed. This can be true without the weights file: see `verdict`."""
        return all(line.ok is not False for line in self.lines)

    @property
    def verdict(self) -> Verdict:
        """The outcome in words."""
        if not self.verified:
            return "not verified"
        unchecked = any(line.number == FileMismatch.line and line.ok is None for line in self.lines)
        return "verified without the model file" if unchecked else "verified"

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(line for line in self.lines if line.ok is False)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {"verified": self.verified, "verdict": self.verdict, **asdict(self)}


def verify(
    pack: AnyPack | Mapping[str, Any] | Source,
    *,
    weights: Source | None = None,
    keys: KeySet | Mapping[str, Any] | Source | None = None,
    evidence: EvidenceRecord | Mapping[str, Any] | Source | None = None,
    receipt: Receipt | NoDataReceipt | Mapping[str, Any] | Source | None = None,
    subject: str | None = None,
    since: EarlierHead | LogConsistency | Mapping[str, Any] | Source | None = None,
    onnx: Source | None = None,
    digest: str | None = None,
    without_weights: str = "no model file was given",
    without_evidence: str = "no evidence record was given",
) -> VerificationReport:
    """Verify a certificate offline and return the checklist as a report.

    Pass each document as a path (`Path` or `str`), as `bytes`, or as an object that you have already parsed.
    A `str` is always a path, never the document itself.

    - `pack`: the certificate with its chain, its log proofs and the issuer's keys.
    - `weights`: the safetensors file that the certificate is about. Without it the verdict is at best
      "verified without the model file", and the report gives `without_weights` as the reason.
    - `onnx`: the model as an ONNX file, as `lethe export` writes it. It contains the weights, so it takes the
      place of `weights`.
    - `keys`: the issuer's keys, obtained from the issuer. Without them the keys inside the pack are used, and
      the report says so.
    - `evidence`: the restricted evidence record, from which the certified distance is recomputed. Without it
      this check is not run, and the report gives `without_evidence` as the reason.
    - `receipt`: a person's receipt or "no data held" statement.
    - `subject`: the identifier that the receipt must be about. It needs a receipt.
    - `since`: a signed tree head that you kept. The log must have only grown between it and the pack.
    - `digest`: the digest that the certificate must have, for example from a printed page or its QR code.

    Raise `UnusableInput` if a document cannot be read. A failed check raises nothing: it is a line of the
    report.
    """
    inputs = _read_inputs(pack, weights, keys, evidence, receipt, subject, since)
    inputs = replace(inputs, without_weights=without_weights, without_evidence=without_evidence)
    inputs = inputs if onnx is None else replace(inputs, onnx=read_onnx(_path_or_bytes(onnx)))
    inputs = inputs if digest is None else replace(inputs, digest=parse_digest(digest))
    if subject is not None and inputs.receipt is None:
        raise UnusableInput("an identifier is compared with a receipt, and there is none: add --receipt")
    lines, statement, forgery = _run_checklist(inputs)
    failed = [line.number for line in lines if line.ok is False]
    report = VerificationReport(
        headline=describe_failure(statement, failed, tampered=isinstance(forgery, SignatureMismatch))
        if failed
        else describe_statement(statement),
        keys="from the pack" if keys is None else "given",
        lines=tuple(lines),
        proves=(),
        does_not_prove=(),
        **({} if statement is None else disclose(statement.predicate)),
    )
    limits = _does_not_prove(report, inputs.pack, statement)
    if not report.verified:
        return replace(report, does_not_prove=limits)
    with_file = report.verdict == "verified" and (weights is not None or onnx is not None)
    proves = (SIGNED_WITH_FILE if with_file else SIGNED, FOLLOWS)
    return replace(report, proves=proves, does_not_prove=limits)


# ---- The checklist ----


@dataclass(frozen=True)
class _Inputs:
    """The parsed inputs of a verification. Nothing in them is trusted yet.

    `receipt` is bytes for a "no data held" statement of either format.
    """

    pack: AnyPack
    keys: KeySet
    weights: bytes | Path | None
    evidence: EvidenceRecord | None
    receipt: Receipt | bytes | None
    since: EarlierHead | None
    subject: str | None
    onnx: bytes | None = None
    digest: str | None = None
    without_weights: str = ""
    without_evidence: str = ""


@dataclass(frozen=True)
class _Signed:
    """A statement and the envelope whose signature was checked."""

    envelope: Envelope
    statement: AnyStatement


def _run_checklist(inputs: _Inputs) -> tuple[list[CheckResult], AnyStatement | None, SignatureInvalid | None]:
    """Run the checks in order and return their results, with the statement if it is signed and readable.

    The third value is the error if someone has changed the signed bytes, or an unknown key signed them.

    Lines 3 to 6 need a statement that passed lines 1 and 2, because an unsigned statement is worth nothing.
    Line 7 needs only an envelope that a known key signed. A line that cannot run is not a failure of its own.
    """
    pack, keys = inputs.pack, inputs.keys
    # 1. A key that is valid at this place in the log signed exactly these bytes.
    envelope, signature_line, forgery = _check_signature(inputs)
    # 2. The statement is readable and of a known version.
    signed, statement_line = _check_statement(envelope if signature_line.ok else None)
    envelope = None if forgery else envelope
    version = 1 if signed is None else signed.statement.predicate.format_version
    lines = [
        signature_line,
        statement_line,
        # 3. The weights file is the one certified.
        _check_weights(inputs, signed),
        # 4. The noise is large enough for the stated ε and δ.
        _check(NoiseTooSmall, signed, lambda s: check_noise(s.statement.predicate)),
        # 5. Rule, family and assumptions support the stated assurance.
        _check(AssuranceUnfounded, signed, lambda s: check_assurance(s.statement.predicate)),
        # 6. Every earlier certificate verifies, and the running sums are correct.
        _check(ChainBroken, signed, lambda s: check_chain(s.statement, s.envelope.digest, pack, keys)),
        # 7. The log contains the whole chain under a signed tree head.
        _check(
            LogProofInvalid,
            envelope,
            lambda e: check_log(pack, e.digest, keys, inputs.since, format_version=version),
        ),
        # 8. The evidence opens its commitment and supports the bound, if there is evidence.
        _check_evidence(inputs, signed),
    ]
    # 9. The receipt leads to this certificate, if there is a receipt.
    if (receipt := inputs.receipt) is not None:
        lines.append(_check(ReceiptInvalid, signed, lambda s: _check_receipt(inputs, receipt, s)))
    # 10. The ONNX file is the representation's graph and the certified model, if there is an ONNX file.
    if (onnx := inputs.onnx) is not None:
        lines.append(
            _check(
                OnnxMismatch,
                signed,
                lambda s: check_onnx(onnx, s.statement.weights_sha256, s.statement.predicate),
            )
        )
    # 11. The certificate is the one on a printed page, if its digest is known from there.
    if (digest := inputs.digest) is not None:
        lines.append(_check(DigestMismatch, envelope, lambda e: _check_digest(e, digest)))
    return lines, None if signed is None else signed.statement, forgery


def parse_digest(text: str) -> str:
    """Return the digest in a text: 64 hex digits, with or without the `lethe:sha256:` of a QR code.

    Spaces, as on paper, do not matter. Raise `UnusableInput` if the text is not a digest.

    >>> parse_digest("lethe:sha256:" + 32 * "Ab ") == 32 * "ab"
    True
    """
    digits = "".join(text.split()).lower().removeprefix("lethe:").removeprefix("sha256:")
    if not re.fullmatch("[0-9a-f]{64}", digits):
        raise UnusableInput("the digest must have 64 hexadecimal digits")
    return digits


def _check_digest(envelope: Envelope, digest: str) -> str:
    if envelope.digest != digest:
        raise DigestMismatch(f"this certificate has another digest, {envelope.digest}")
    return f"its digest is {digest}"


def _check_signature(inputs: _Inputs) -> tuple[Envelope | None, CheckResult, SignatureInvalid | None]:
    """Check line 1. The third value is the error if no known key signed these bytes.

    Line 7 then proves the place in the log at which the key must be valid.
    """
    place = inputs.pack.log.index
    forgeries: list[SignatureInvalid] = []
    try:
        envelope = parse_envelope(from_base64(inputs.pack.envelope))
    except SignatureInvalid as error:
        line = CheckResult(SignatureInvalid.line, SignatureInvalid.title, False, printable(error))
        return None, line, None

    def check(envelope: Envelope) -> str:
        try:
            key = check_signature(envelope, inputs.keys, position=place)
        except (SignatureMismatch, UnknownSigner) as error:
            forgeries.append(error)
            raise
        return f"signed by key {key.key_id} at place {place} of the log"

    line = _check(SignatureInvalid, envelope, check)
    return envelope, line, forgeries[0] if forgeries else None


def _check_statement(envelope: Envelope | None) -> tuple[_Signed | None, CheckResult]:
    """Check line 2."""
    signed: list[_Signed] = []

    def check(envelope: Envelope) -> str:
        signed.append(_Signed(envelope, parse(envelope.payload)))
        predicate = signed[0].statement.predicate
        model = f"{printable(predicate.model)} ({predicate.model_id})"
        return f"certificate {predicate.certificate_id} for version {predicate.version} of {model}"

    line = _check(StatementUnreadable, envelope, check)
    return (signed[0] if signed else None), line


def _check_weights(inputs: _Inputs, signed: _Signed | None) -> CheckResult:
    """Check line 3 if there is a file. A draw that was destroyed has none, and passes without one."""
    weights = inputs.weights
    if signed is None:
        return _not_run(FileMismatch)
    if weights is not None:
        return _check(
            FileMismatch,
            signed,
            lambda s: check_file(weights, s.statement.weights_sha256, s.statement.predicate),
        )
    if (onnx := inputs.onnx) is not None:
        return _check(FileMismatch, signed, lambda s: _check_onnx_weights(onnx, s.statement))
    if signed.statement.predicate.mechanism == "discarded":
        destroyed = "this draw was evaluated and destroyed, so there is no file"
        return CheckResult(FileMismatch.line, FileMismatch.title, True, destroyed)
    return _skipped(FileMismatch, inputs.without_weights)


def _check_onnx_weights(onnx: bytes, statement: AnyStatement) -> str:
    """Check line 3 on the weights file rebuilt from an ONNX file."""
    try:
        weights = parts_for(onnx, statement.predicate).weights
    except OnnxMismatch as error:
        raise FileMismatch(f"the weights cannot be read from the ONNX file: {error}") from None
    detail = check_file(weights, statement.weights_sha256, statement.predicate)
    return f"the weights in the ONNX file: {detail}"


def _check_evidence(inputs: _Inputs, signed: _Signed | None) -> CheckResult:
    """Check line 8 if there is an evidence record."""
    evidence = inputs.evidence
    if evidence is None:
        return _skipped(EvidenceMismatch, inputs.without_evidence)
    return _check(EvidenceMismatch, signed, lambda s: check_evidence(evidence, s.statement.predicate))


def _check_receipt(inputs: _Inputs, receipt: Receipt | bytes, signed: _Signed) -> str:
    """Check line 9 and return the detail to show, or raise `ReceiptInvalid`."""
    predicate = signed.statement.predicate
    opened = (
        "The commitment was not opened, because no identifier was given"
        if inputs.subject is None
        else "The commitment opens with the given identifier"
    )
    if isinstance(receipt, bytes):
        later = None if inputs.since is None else (inputs.since.checkpoint, inputs.since.path)
        statement = verify_no_data_held(receipt, inputs.keys, subject_id=inputs.subject, later=later)
        if statement.model_id != predicate.model_id:
            raise ReceiptInvalid("the receipt is about another model")
        return f"{describe_no_data_held(statement)} {opened}"
    verify_receipt(
        receipt,
        certificate_digest=signed.envelope.digest,
        deletion_set=predicate.deletion_set,
        subject_id=inputs.subject,
    )
    return f"request {printable(receipt.request_id)} is in this deletion set. {opened}"


def _check(check: type[VerificationError], subject: T | None, function: Callable[[T], str]) -> CheckResult:
    """Run one check on `subject` and return its line of the checklist."""
    if subject is None:
        return _not_run(check)
    try:
        return CheckResult(check.line, check.title, True, function(subject))
    except VerificationError as error:
        return CheckResult(check.line, check.title, False, printable(error))
    except (ArithmeticError, ValueError) as error:  # numbers that no honest certificate contains
        return CheckResult(check.line, check.title, False, printable(f"cannot be computed: {error}"))


def _not_run(check: type[VerificationError]) -> CheckResult:
    return _skipped(check, "there is no signed and readable statement")


def _skipped(check: type[VerificationError], reason: str) -> CheckResult:
    return CheckResult(check.line, check.title, None, f"not checked: {reason}")


# ---- The sentences around the checklist ----


def _does_not_prove(
    report: VerificationReport, pack: AnyPack, statement: AnyStatement | None
) -> tuple[str, ...]:
    limits = list(DOES_NOT_PROVE)
    if isinstance(pack, PackV1) and pack.predecessors:
        limits.append(ORDER_NOT_PROVED)
    if statement is not None and statement.predicate.format_version == 1:
        limits.insert(0, FORMAT_1)
    if report.verdict == "verified without the model file":
        limits.insert(0, WITHOUT_FILE)
    if report.keys == "from the pack":
        limits.insert(0, KEYS_FROM_PACK)
    return tuple(limits)


# ---- Reading the inputs ----


def _read_inputs(
    pack: AnyPack | Mapping[str, Any] | Source,
    weights: Source | None,
    keys: KeySet | Mapping[str, Any] | Source | None,
    evidence: EvidenceRecord | Mapping[str, Any] | Source | None,
    receipt: Receipt | NoDataReceipt | Mapping[str, Any] | Source | None,
    subject: str | None,
    since: EarlierHead | LogConsistency | Mapping[str, Any] | Source | None,
) -> _Inputs:
    """Read and parse every input, or raise `UnusableInput`."""
    if not isinstance(pack, Pack | PackV1):
        pack = read_pack(_bytes_of(pack, "pack"))
    if keys is not None and not isinstance(keys, KeySet):
        keys = KeySet.read(_bytes_of(keys, "keys"), "keys")
    if evidence is not None and not isinstance(evidence, EvidenceRecord):
        evidence = EvidenceRecord.read(_bytes_of(evidence, "evidence"), "evidence")
    return _Inputs(
        pack=pack,
        keys=pack.keys if keys is None else keys,
        weights=None if weights is None else _path_or_bytes(weights),
        evidence=pack.evidence if evidence is None else evidence,
        receipt=pack.receipt if receipt is None else _read_receipt(receipt),
        since=None if since is None else _read_since(since),
        subject=subject,
    )


def _path_or_bytes(source: Source) -> bytes | Path:
    return Path(source) if isinstance(source, str) else source


def _read_receipt(receipt: Receipt | NoDataReceipt | Mapping[str, Any] | Source) -> Receipt | bytes:
    if isinstance(receipt, Receipt):
        return receipt
    data = _bytes_of(receipt, "receipt")
    return data if is_no_data_held(data) else Receipt.read(data, "receipt")


def _read_since(since: EarlierHead | LogConsistency | Mapping[str, Any] | Source) -> EarlierHead:
    """Read a signed tree head: as bare text, with its proof, or as the response of `/v1/log/consistency`."""
    if isinstance(since, EarlierHead):
        return since
    what = "earlier tree head"
    data = _bytes_of(since, what)
    if not data.lstrip().startswith(b"{"):
        return EarlierHead(checkpoint=data.decode(errors="replace"))
    if "new_size" not in read_object(data, what):
        return EarlierHead.read(data, what)
    response = LogConsistency.read(data, what)
    return EarlierHead(checkpoint=response.checkpoint, path=response.path)


def _bytes_of(source: Record | Mapping[str, Any] | Source, what: str) -> bytes:
    """Return the bytes of a document. Read no more of a file than the largest document may have."""
    if isinstance(source, bytes):
        return source
    if isinstance(source, Record):
        return source.to_bytes()
    if isinstance(source, Mapping):
        try:
            return canonical_json(dict(source))
        except (TypeError, ValueError) as error:
            raise UnusableInput(f"{what}: cannot be written as JSON ({printable(error)})") from None
    try:
        with Path(source).open("rb") as stream:
            return stream.read(EvidenceRecord.size_factor * MAX_DOCUMENT + 1)
    except (OSError, ValueError) as error:
        raise UnusableInput(f"{what}: {file_problem(error)}") from None
