"""Offline verification: a numbered checklist over a pack, the model file and whatever else is at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from certificate.assurance import check_assurance
from certificate.checkpoint import check_file
from certificate.checks import check_chain, check_log, check_noise, read_envelope
from certificate.envelope import Envelope, check_signature
from certificate.errors import (
    AssuranceUnfounded,
    ChainBroken,
    EvidenceMismatch,
    FileMismatch,
    LogProofInvalid,
    NoiseTooSmall,
    ReceiptInvalid,
    SignatureInvalid,
    StatementUnreadable,
    VerificationError,
)
from certificate.evidence import EvidenceRecord
from certificate.evidence_check import check_evidence
from certificate.keys import KeySet
from certificate.pack import EarlierHead, Pack
from certificate.receipt import (
    Receipt,
    describe_no_data_held,
    is_no_data_held,
    verify_no_data_held,
    verify_receipt,
)
from certificate.records import printable
from certificate.statement import AnyStatement, parse

PROVES = (
    "the holder of the key signed this statement about this exact file and logged it at this place",
    "σ, (ε, δ) and the lifetime's sum follow from the numbers stated",
)
DOES_NOT_PROVE = (
    "that the issuer measured honestly or ran what it says: for that there is the replay audit",
    "anything about the assumptions listed in the certificate",
)
KEYS_FROM_PACK = (
    "that the key is the issuer's: it came with the pack; compare it with the issuer's published keys"
)


@dataclass(frozen=True)
class Line:
    """One line of the checklist. `ok` is None for a check nobody asked for, False if it could not run."""

    number: int
    title: str
    ok: bool | None
    detail: str


@dataclass(frozen=True)
class Report:
    """`keys` says whose word it is that the keys are the issuer's: the verifier's, or only the pack's."""

    headline: str
    keys: Literal["from the pack", "given"]
    lines: tuple[Line, ...]
    proves: tuple[str, ...]
    does_not_prove: tuple[str, ...]

    @property
    def verified(self) -> bool:
        return all(line.ok is not False for line in self.lines)

    @property
    def failed(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.ok is False)

    def to_dict(self) -> dict[str, Any]:
        return {"verified": self.verified, **asdict(self)}


@dataclass(frozen=True)
class Case:
    """Everything the checks look at. Documents are parsed, nothing in them is trusted yet."""

    pack: Pack
    keys: KeySet
    model: bytes | Path | None
    evidence: EvidenceRecord | None
    receipt: Receipt | bytes | None
    since: EarlierHead | None
    subject: str | None


def verify(
    pack: Pack | bytes,
    *,
    model: bytes | Path | None = None,
    evidence: EvidenceRecord | bytes | None = None,
    receipt: Receipt | bytes | None = None,
    since: EarlierHead | bytes | None = None,
    keys: KeySet | bytes | None = None,
    subject: str | None = None,
) -> Report:
    """Run the checklist. `keys` pins the issuer's keys; else the pack's are used, and the report says so.

    Raises `UnusableInput` when a document cannot be read at all; everything else is a line of the report.
    """
    pack = Pack.read(pack, "pack") if isinstance(pack, bytes) else pack
    pinned = KeySet.read(keys, "keys") if isinstance(keys, bytes) else keys
    case = Case(
        pack=pack,
        keys=pack.keys if pinned is None else pinned,
        model=model,
        evidence=EvidenceRecord.read(evidence, "evidence")
        if isinstance(evidence, bytes)
        else evidence or pack.evidence,
        receipt=_read_receipt(receipt) or pack.receipt,
        since=_read_since(since) if isinstance(since, bytes) else since,
        subject=subject,
    )
    lines, statement = _run_checklist(case)
    limits = DOES_NOT_PROVE if pinned is not None else (KEYS_FROM_PACK, *DOES_NOT_PROVE)
    report = Report(
        headline=_headline(statement),
        keys="from the pack" if pinned is None else "given",
        lines=tuple(lines),
        proves=PROVES,
        does_not_prove=limits,
    )
    return report if report.verified else replace(report, proves=())


def _run_checklist(case: Case) -> tuple[list[Line], AnyStatement | None]:
    lines: list[Line] = []

    def run(check: type[VerificationError], function: Callable[[], str]) -> None:
        lines.append(_line(check, function))

    envelope, signature_line = _check_envelope(case)
    lines.append(signature_line)
    statement, statement_line = _check_statement(envelope if signature_line.ok else None)
    lines.append(statement_line)
    if statement is None or envelope is None:
        checks = (FileMismatch, NoiseTooSmall, AssuranceUnfounded, ChainBroken)
        lines.extend(_not_run(check) for check in checks)
    else:
        predicate, digest = statement.predicate, envelope.digest
        run(FileMismatch, lambda: check_file(case.model, statement.weights_sha256, predicate))
        run(NoiseTooSmall, lambda: check_noise(predicate))
        run(AssuranceUnfounded, lambda: check_assurance(predicate))
        run(ChainBroken, lambda: check_chain(statement, digest, case.pack.predecessors, case.keys))
    if envelope is None:
        lines.append(_not_run(LogProofInvalid))
    else:
        run(LogProofInvalid, lambda: check_log(case.pack, envelope.digest, case.keys, case.since))
    lines.extend(_optional_lines(case, envelope, statement))
    return lines, statement


def _check_envelope(case: Case) -> tuple[Envelope | None, Line]:
    """Line 1. The place in the log that dates the key is itself proved on line 7."""
    parsed: list[Envelope] = []

    def check() -> str:
        envelope = read_envelope(case.pack)
        parsed.append(envelope)
        key = check_signature(envelope, case.keys, position=case.pack.log.index)
        return f"key {key.key_id}, place {case.pack.log.index}"

    line = _line(SignatureInvalid, check)
    return (parsed[0] if parsed else None), line


def _check_statement(envelope: Envelope | None) -> tuple[AnyStatement | None, Line]:
    if envelope is None:
        return None, _not_run(StatementUnreadable)
    parsed: list[AnyStatement] = []

    def check() -> str:
        parsed.append(parse(envelope.payload))
        predicate = parsed[0].predicate
        model = f"{printable(predicate.model)} ({predicate.model_id})"
        return f"certificate {predicate.certificate_id}, {model} version {predicate.version}"

    line = _line(StatementUnreadable, check)
    return (parsed[0] if parsed else None), line


def _optional_lines(case: Case, envelope: Envelope | None, statement: AnyStatement | None) -> list[Line]:
    """Lines 8 and 9: asked for by giving an evidence record or a receipt."""
    evidence, receipt = case.evidence, case.receipt
    lines: list[Line] = []
    if evidence is None:
        lines.append(Line(8, EvidenceMismatch.title, None, "not asked: no evidence record given"))
    elif statement is None:
        lines.append(_not_run(EvidenceMismatch))
    else:
        lines.append(_line(EvidenceMismatch, lambda: check_evidence(evidence, statement.predicate)))
    if receipt is not None:
        if statement is None or envelope is None:
            lines.append(_not_run(ReceiptInvalid))
        else:
            lines.append(_line(ReceiptInvalid, lambda: _check_receipt(case, receipt, envelope, statement)))
    return lines


def _check_receipt(case: Case, receipt: Receipt | bytes, envelope: Envelope, statement: AnyStatement) -> str:
    opened = "opened with the subject given" if case.subject is not None else "not opened: no subject given"
    if isinstance(receipt, bytes):
        held = verify_no_data_held(receipt, case.keys, subject_id=case.subject)
        if held.model_id != statement.predicate.model_id:
            raise ReceiptInvalid("the receipt is about another model")
        return f"{describe_no_data_held(held)} Commitment {opened}"
    verify_receipt(
        receipt,
        certificate_digest=envelope.digest,
        deletion_set=statement.predicate.deletion_set,
        subject_id=case.subject,
    )
    return f"request {printable(receipt.request_id)} is in this deletion set; commitment {opened}"


def _line(check: type[VerificationError], function: Callable[[], str]) -> Line:
    try:
        return Line(check.line, check.title, True, function())
    except VerificationError as error:
        return Line(check.line, check.title, False, printable(error))
    except (ArithmeticError, ValueError) as error:  # numbers no honest certificate holds
        return Line(check.line, check.title, False, printable(f"cannot be computed: {error}"))


def _not_run(check: type[VerificationError]) -> Line:
    return Line(check.line, check.title, False, "not run: nothing signed and readable to check")


def _read_receipt(receipt: Receipt | bytes | None) -> Receipt | bytes | None:
    if not isinstance(receipt, bytes):
        return receipt
    return receipt if is_no_data_held(receipt) else Receipt.read(receipt, "receipt")


def _read_since(since: bytes) -> EarlierHead:
    """A bare signed note, or a JSON document with the note and the proof that leads from it."""
    if since.lstrip().startswith(b"{"):
        return EarlierHead.read(since, "earlier tree head")
    return EarlierHead(checkpoint=since.decode(errors="replace"))


def _headline(statement: AnyStatement | None) -> str:
    if statement is None:
        return "not a certificate that can be read"
    predicate = statement.predicate
    guarantee, what = predicate.guarantee, f"{printable(predicate.model)} version {predicate.version}"
    if guarantee.estimate is not None:
        return f"ESTIMATE, NOT A GUARANTEE: {what}, {predicate.mechanism}, no (ε, δ) is certified"
    if predicate.mechanism == "discarded":
        return f"{what}: a draw that was evaluated and destroyed; it counts as a release"
    people = predicate.deletion_set.people
    erased = f"{people} {'person' if people == 1 else 'people'} erased by {predicate.mechanism}"
    return f"{what}: {erased}, ε = {guarantee.epsilon:g}, δ = {guarantee.delta:g}, {guarantee.assurance}"
