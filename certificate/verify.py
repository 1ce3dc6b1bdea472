"""Offline verification: a numbered checklist over a pack, the model file and whatever else is at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from certificate.assurance import check_assurance
from certificate.chain_check import ORDER_NOT_PROVED, check_chain
from certificate.checkpoint import check_file
from certificate.envelope import Envelope, check_signature, from_base64
from certificate.envelope import parse as parse_envelope
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
from certificate.log_check import check_log
from certificate.noise_check import check_noise
from certificate.pack import AnyPack, EarlierHead, LogConsistency, PackV1, read_pack
from certificate.receipt import (
    Receipt,
    describe_no_data_held,
    is_no_data_held,
    verify_no_data_held,
    verify_receipt,
)
from certificate.records import printable, read_object
from certificate.statement import AnyPredicate, AnyStatement, parse
from certificate.vocabulary import ASSUMPTIONS

SIGNED_WITH_FILE = (
    "the holder of the key signed this statement about this exact file and logged it at this place"
)
SIGNED = "the holder of the key signed this statement and logged it at this place"
FOLLOWS = (
    "σ, (ε, δ) and the lifetime's sum follow from the numbers stated, for this release and each before it"
)

DOES_NOT_PROVE = (
    "that the issuer measured honestly or ran what it says: for that there is the replay audit",
    "anything about the assumptions listed in the certificate",
)
WITHOUT_FILE = (
    "that a file you hold is the one certified, holds as many weights as stated and has them on the public "
    "grid: no file was checked"
)
FORMAT_1 = (
    "that the noise hides what it should: the certificate is of format 1, whose noise was drawn in floating "
    "point; a known attack can tell such a file from its reference"
)
KEYS_FROM_PACK = (
    "that the key is the issuer's: it came with the pack; compare it with the issuer's published keys"
)


Verdict = Literal["verified", "verified without the model file", "not verified"]


@dataclass(frozen=True)
class Line:
    """One line of the checklist. `ok` is None for a check nobody asked for, False if it could not run."""

    number: int
    title: str
    ok: bool | None
    detail: str


@dataclass(frozen=True)
class Report:
    """`keys` says whose word it is that the keys are the issuer's: the verifier's, or only the pack's.

    `rests_on` are the assumptions the guarantee is made under, `declared` what the model's owner declared
    and what registration noticed, `not_covered` what the guarantee leaves out: all as the certificate states.
    """

    headline: str
    keys: Literal["from the pack", "given"]
    lines: tuple[Line, ...]
    proves: tuple[str, ...]
    does_not_prove: tuple[str, ...]
    rests_on: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()

    @property
    def verified(self) -> bool:
        """Whether no check failed. Without the model file this is so, too: see `verdict`."""
        return all(line.ok is not False for line in self.lines)

    @property
    def verdict(self) -> Verdict:
        """The outcome in words."""
        if not self.verified:
            return "not verified"
        unchecked = any(line.number == FileMismatch.line and line.ok is None for line in self.lines)
        return "verified without the model file" if unchecked else "verified"

    @property
    def failed(self) -> tuple[Line, ...]:
        """The lines that say no."""
        return tuple(line for line in self.lines if line.ok is False)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {"verified": self.verified, "verdict": self.verdict, **asdict(self)}


@dataclass(frozen=True)
class Case:
    """Everything the checks look at. Documents are parsed, nothing in them is trusted yet."""

    pack: AnyPack
    keys: KeySet
    model: bytes | Path | None
    without_model: str
    evidence: EvidenceRecord | None
    receipt: Receipt | bytes | None
    since: EarlierHead | None
    subject: str | None


def verify(
    pack: AnyPack | bytes,
    *,
    model: bytes | Path | None = None,
    evidence: EvidenceRecord | bytes | None = None,
    receipt: Receipt | bytes | None = None,
    since: EarlierHead | bytes | None = None,
    keys: KeySet | bytes | None = None,
    subject: str | None = None,
    without_model: str = "no model file was given",
) -> Report:
    """Run the checklist. `keys` pins the issuer's keys; else the pack's are used, and the report says so.

    Without `model` the file is not checked, and the verdict says so; `without_model` is the reason to show.
    Raises `UnusableInput` when a document cannot be read at all; everything else is a line of the report.
    """
    pack = read_pack(pack) if isinstance(pack, bytes) else pack
    pinned = KeySet.read(keys, "keys") if isinstance(keys, bytes) else keys
    case = Case(
        pack=pack,
        keys=pack.keys if pinned is None else pinned,
        model=model,
        without_model=without_model,
        evidence=EvidenceRecord.read(evidence, "evidence")
        if isinstance(evidence, bytes)
        else evidence or pack.evidence,
        receipt=_read_receipt(receipt) or pack.receipt,
        since=_read_since(since) if isinstance(since, bytes) else since,
        subject=subject,
    )
    lines, statement = _run_checklist(case)
    report = Report(
        headline=_headline(statement),
        keys="from the pack" if pinned is None else "given",
        lines=tuple(lines),
        proves=(),
        does_not_prove=(),
        **({} if statement is None else _stated(statement.predicate)),
    )
    limits = _does_not_prove(report, case, statement)
    if not report.verified:
        return replace(report, does_not_prove=limits)
    signed = SIGNED_WITH_FILE if report.verdict == "verified" and model is not None else SIGNED
    return replace(report, proves=(signed, FOLLOWS), does_not_prove=limits)


def _stated(predicate: AnyPredicate) -> dict[str, tuple[str, ...]]:
    """What a reader must know of the certificate beside its checklist, in sentences."""
    origins, guarantee = predicate.objective.origins, predicate.guarantee
    declared = [
        f"{name}: {value}"
        for name, value in (
            ("features", origins.features),
            ("constants", origins.constants),
            ("anchor", origins.anchor),
        )
    ]
    noticed = [f"registration noticed: {ASSUMPTIONS[warning]}" for warning in predicate.objective.warnings]
    return {
        "rests_on": tuple(printable(f"{name}: {sentence}") for name, sentence in guarantee.assumption_texts),
        "declared": tuple(printable(sentence) for sentence in [*declared, *noticed]),
        "not_covered": tuple(printable(sentence) for sentence in guarantee.limit_texts),
    }


def _does_not_prove(report: Report, case: Case, statement: AnyStatement | None) -> tuple[str, ...]:
    limits = list(DOES_NOT_PROVE)
    if isinstance(case.pack, PackV1) and case.pack.predecessors:
        limits.append(ORDER_NOT_PROVED)
    if statement is not None and statement.predicate.format_version == 1:
        limits.insert(0, FORMAT_1)
    if report.verdict == "verified without the model file":
        limits.insert(0, WITHOUT_FILE)
    if report.keys == "from the pack":
        limits.insert(0, KEYS_FROM_PACK)
    return tuple(limits)


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
        lines.append(_file_line(case, statement))
        run(NoiseTooSmall, lambda: check_noise(predicate))
        run(AssuranceUnfounded, lambda: check_assurance(predicate))
        run(ChainBroken, lambda: check_chain(statement, digest, case.pack, case.keys))
    if envelope is None:
        lines.append(_not_run(LogProofInvalid))
    else:
        version = 1 if statement is None else statement.predicate.format_version
        run(
            LogProofInvalid,
            lambda: check_log(case.pack, envelope.digest, case.keys, case.since, format_version=version),
        )
    lines.extend(_optional_lines(case, envelope, statement))
    return lines, statement


def _file_line(case: Case, statement: AnyStatement) -> Line:
    """Line 3: checked with the file, not asked without one. A draw that was destroyed has no file."""
    model, predicate = case.model, statement.predicate
    if model is not None:
        return _line(FileMismatch, lambda: check_file(model, statement.weights_sha256, predicate))
    if predicate.mechanism == "discarded":
        gone = "a draw that was evaluated and destroyed: there is no file"
        return Line(FileMismatch.line, FileMismatch.title, True, gone)
    return Line(FileMismatch.line, FileMismatch.title, None, f"not checked: {case.without_model}")


def _check_envelope(case: Case) -> tuple[Envelope | None, Line]:
    """Line 1. The place in the log that dates the key is itself proved on line 7."""
    parsed: list[Envelope] = []

    def check() -> str:
        envelope = parse_envelope(from_base64(case.pack.envelope))
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
        later = None if case.since is None else (case.since.checkpoint, case.since.path)
        held = verify_no_data_held(receipt, case.keys, subject_id=case.subject, later=later)
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
    """Read a signed tree head: bare, with the proof between it and the pack's, or as the log's answer."""
    if since.lstrip().startswith(b"{"):
        if "new_size" in read_object(since, "earlier tree head"):
            answer = LogConsistency.read(since, "earlier tree head")
            return EarlierHead(checkpoint=answer.checkpoint, path=answer.path)
        return EarlierHead.read(since, "earlier tree head")
    return EarlierHead(checkpoint=since.decode(errors="replace"))


def _headline(statement: AnyStatement | None) -> str:
    if statement is None:
        return "not a certificate that can be read"
    predicate = statement.predicate
    guarantee, what = predicate.guarantee, f"{printable(predicate.model)} version {predicate.version}"
    if predicate.format_version == 1:
        what = f"{what} (certificate of format 1: its noise was drawn in floating point)"
    if guarantee.estimate is not None:
        return f"ESTIMATE, NOT A GUARANTEE: {what}, {predicate.mechanism}, no (ε, δ) is certified"
    if predicate.mechanism == "discarded":
        return f"{what}: a draw that was evaluated and destroyed; it counts as a release"
    people = predicate.deletion_set.people
    erased = f"{people} {'person' if people == 1 else 'people'} erased by {predicate.mechanism}"
    return f"{what}: {erased}, ε = {guarantee.epsilon:g}, δ = {guarantee.delta:g}, {guarantee.assurance}"
