"""Changes every field of every document, one at a time, and signs and logs the result with the real key.

An insider holds the key, so a signature proves nothing against them. A changed claim is refused because it no
longer follows from the rest. Each survey tries all changes of one document and counts the outcomes.

    python -m tests.unit.certificate.certificate_mutations     prints the table of docs/certificate.md
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

from lethe.certificate.envelope import sign
from lethe.certificate.errors import UnusableInput
from lethe.certificate.evidence import EvidenceRecord, commit
from lethe.certificate.keys import SigningKey
from lethe.certificate.merkle import MemoryTree, leaf_hash
from lethe.certificate.pack import LoggedEnvelope, build_pack
from lethe.certificate.predicate import Assurance, Inequality, Mechanism, Rule
from lethe.certificate.representation import RowCheck
from lethe.certificate.tree_head import TreeHead, sign_tree_head
from lethe.certificate.verify import VerificationReport, verify
from lethe.certificate.vocabulary import AssumptionName, Limit, Loss, Reference
from tests.unit.certificate.certificate_cases import ORIGIN, Issued, Issuer
from tests.unit.certificate.certificate_v1_cases import issue_v1
from tests.unit.certificate.representation_cases import certified

Path = tuple[str | int, ...]
KEY = SigningKey.generate()
_WORDS = [
    get_args(kind)
    for kind in (Mechanism, Assurance, Rule, Inequality, Loss, Reference, AssumptionName, Limit)
] + [get_args(RowCheck), ("analytic", "classical"), ("analytic", "sampled"), ("direct", "split")]
_DIGEST, _UUID = re.compile(r"[0-9a-f]{64}|[0-9a-f]{32}"), re.compile(r"[0-9a-f-]{36}")
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)T.*")
_MANY = 8  # of a longer list, only the ends are changed

# A chain of these kinds; the certificate at `place` is changed.
CHAINS: dict[str, tuple[str, tuple[str, ...], int]] = {
    "the last certificate: tr, proved": ("softmax", ("tr-proved", "tr-proved"), 1),
    "the last certificate: tr, conditional": ("mlp", ("tr-conditional", "tr-conditional"), 1),
    "the last certificate: tr, heuristic": ("softmax", ("tr-proved", "tr-heuristic"), 1),
    "the last certificate: retrain": ("mlp", ("tr-conditional", "retrain-proved"), 1),
    "the last certificate: tr-paper": ("mlp", ("tr-conditional", "tr-paper-as-published"), 1),
    "the last certificate: guo2020": ("softmax", ("tr-proved", "guo2020-as-published"), 1),
    "the last certificate: zhang2024": ("mlp", ("tr-conditional", "zhang2024-as-published"), 1),
    "the last certificate: discarded": ("softmax", ("tr-proved", "discarded-proved"), 1),
    "the last certificate: the first of its model": ("softmax", ("tr-proved",), 0),
    "the last certificate: after one of format 1": ("softmax", ("v1", "tr-proved"), 1),
    "the last certificate: with a representation": ("softmax", ("tr-proved", "tr-proved"), 1),
    "the last certificate: linearised": ("resnet18", ("tr-proved", "tr-proved"), 1),
    "an earlier certificate: the first": ("softmax", ("tr-proved", "tr-proved"), 0),
    "an earlier certificate: published": ("softmax", ("tr-proved", "tr-proved", "tr-proved"), 1),
    "an earlier certificate: discarded": ("softmax", ("tr-proved", "discarded-proved", "tr-proved"), 1),
    "an earlier certificate: conditional": ("mlp", ("tr-conditional", "tr-conditional"), 0),
    "an earlier certificate: with a representation": ("softmax", ("tr-proved", "tr-proved"), 0),
    "an earlier certificate: retrain": ("mlp", ("tr-conditional", "retrain-proved", "tr-conditional"), 1),
}
EVIDENCE = ("tr-proved", "tr-conditional", "tr-heuristic", "retrain-proved", "guo2020-as-published")


@dataclass(frozen=True)
class Mutation:
    """One change: the path of the field, the kind of change, and the resulting document."""

    path: Path
    how: str
    document: Any

    @property
    def where(self) -> str:
        """The path with list indices as `*`."""
        return ".".join("*" if isinstance(part, int) else part for part in self.path)


@dataclass
class Counts:
    """The outcomes of the changes of one document."""

    tried: int = 0
    refused: int = 0
    allowed: dict[str, int] = field(default_factory=dict)
    surviving: list[str] = field(default_factory=list)
    misplaced: list[str] = field(default_factory=list)


def mutations(document: Any) -> Iterator[Mutation]:
    """Yield every change of one field, one list element or one key of a JSON document."""
    for path, value in _fields(document):
        for how, changed in _changes(value):
            copied = copy.deepcopy(document)
            holder = copied
            for part in path[:-1]:
                holder = holder[part]
            if holder[path[-1]] != changed or type(holder[path[-1]]) is not type(changed):
                holder[path[-1]] = changed
                yield Mutation(path, how, copied)


def _fields(value: Any, here: Path = ()) -> Iterator[tuple[Path, Any]]:
    if here:
        yield here, value
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _fields(child, (*here, key))
    if isinstance(value, list):
        ends = range(len(value)) if len(value) <= _MANY else (0, 1, len(value) - 1)
        for place in ends:
            yield from _fields(value[place], (*here, place))


def _changes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield changed values by type. `bool` comes before `int`, because it is a subclass of `int`."""
    match value:
        case bool():
            yield "flipped", not value
        case int():
            yield from (("+1", value + 1), ("-1", value - 1), ("×2", 2 * value), ("÷2", value // 2))
            yield from (("zero", 0), ("negative", -value - 1))
        case float():
            yield from (("×0.5", value / 2), ("×2", value * 2), ("+1e-6", value * (1 + 1e-6)))
            yield from (("-1e-9", value * (1 - 1e-9)), ("+4 ulp", value * (1 + 2**-50)), ("zero", 0.0))
            yield from (("negative", -value - 1e-9), ("nan", float("nan")), ("infinite", float("inf")))
        case str():
            yield from _texts(value)
        case None:
            yield from (("a number", 1.0), ("a digest", "0" * 64), ("a text", "free text"), ("an object", {}))
        case list():
            yield from _lists(value)
        case dict():
            yield from (("emptied", {}), ("a text", "free text"))
            yield "one key more", value | {"extra": "free text"}
            for key in value:
                yield f"without {key}", {name: entry for name, entry in value.items() if name != key}
    if value is not None:
        yield "null", None


def _texts(value: str) -> Iterator[tuple[str, Any]]:
    yield from (("empty", ""), ("free text", "free text, as an insider likes it"), ("a number", 7))
    for words in _WORDS:
        if value in words:
            yield from ((f"the word {word}", word) for word in words if word != value)
    if _DIGEST.fullmatch(value) or _UUID.fullmatch(value):
        yield "another", value[:-1] + ("0" if value[-1] != "0" else "1")
    elif dated := _DATE.fullmatch(value):
        yield "a day earlier", value.replace(f"-{dated[3]}T", f"-{int(dated[3]) - 1:02d}T")
        yield "a day later", value.replace(f"-{dated[3]}T", f"-{int(dated[3]) + 1:02d}T")
    else:
        yield "another of the same kind", value + "x"


def _lists(value: list[Any]) -> Iterator[tuple[str, Any]]:
    if value:
        yield "first removed", value[1:]
        yield "last removed", value[:-1]
        yield "last twice", [*value, value[-1]]
    if len(value) > 1:
        yield "reversed", value[::-1]
    yield "free text added", [*value, "free text"]


def chain_of(name: str) -> tuple[Issuer, int]:
    """Return an honest chain and the place of the certificate to change."""
    family, kinds, place = CHAINS[name]
    represented = name.endswith("with a representation")
    layers = ("blocks.7", "head") if name.endswith("linearised") else None
    issuer = Issuer(KEY, family=family, representation=certified() if represented else None, layers=layers)
    for kind in kinds:
        issue_v1(issuer) if kind == "v1" else issuer.issue(kind)
    return issuer, place


class Insider:
    """Holds the key. Signs and logs changed statements, and names their digests in the following ones."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.payloads = [json.loads(entry.envelope.payload) for entry in issuer.chain]

    def report(self, place: int, statement: Any, **inputs: Any) -> VerificationReport | None:
        """Return the report on the chain with one statement replaced, or None if the pack is unreadable."""
        envelopes = [entry.envelope for entry in self.issuer.chain[:place]]
        envelopes.append(sign(json.dumps(statement, sort_keys=True).encode(), KEY))
        for following in self.payloads[place + 1 :]:
            payload = copy.deepcopy(following)
            payload["predicate"]["lifetime"]["previous_certificate_digest"] = envelopes[-1].digest
            envelopes.append(sign(json.dumps(payload, sort_keys=True).encode(), KEY))
        log = MemoryTree([leaf_hash(b"stranger")])
        places = [log.append(leaf_hash(bytes.fromhex(envelope.digest))) for envelope in envelopes]
        head, index = envelopes[-1], places[-1]
        pack = build_pack(
            envelope=head,
            tree_head=sign_tree_head(TreeHead(ORIGIN, log.size, log.root()), KEY),
            index=index,
            path=log.inclusion_proof(index),
            keys=self.issuer.keys,
            predecessors=[
                LoggedEnvelope(envelope, at, log.inclusion_proof(at))
                for envelope, at in zip(envelopes[:-1], places[:-1], strict=True)
            ],
        )
        last = self.issuer.chain[-1]
        receipts = {}
        if last.receipts:  # the last leaf's path depends on how many there are
            receipt = max(last.receipts, key=lambda entry: entry.leaf_index)
            receipts["receipt"] = receipt.model_copy(update={"certificate_digest": head.digest})
        usual: dict[str, Any] = {"weights": last.weights, "evidence": last.evidence, **receipts}
        try:
            return verify(pack.to_bytes(), keys=self.issuer.keys, **(usual | inputs))
        except UnusableInput:
            return None


def survey_statement(name: str, allowed: Callable[[str, Mutation], str | None]) -> Counts:
    """Change every field of one statement of a chain."""
    issuer, place = chain_of(name)
    insider = Insider(issuer)
    honest = insider.report(place, insider.payloads[place])
    assert honest is not None
    assert honest.verified, honest
    last = place == len(issuer.chain) - 1
    return _survey(
        name,
        mutations(insider.payloads[place]),
        lambda mutation: insider.report(place, mutation.document),
        allowed,
        lambda mutation: lines_of(mutation) if last else {6},
    )


def survey_evidence(kind: str, allowed: Callable[[str, Mutation], str | None]) -> Counts:
    """Change every field of an evidence record, and commit to the changed record."""
    issuer = Issuer(KEY)
    issued = issuer.issue(kind)
    insider = Insider(issuer)

    def report(mutation: Mutation) -> VerificationReport | None:
        data = json.dumps(mutation.document).encode()
        try:
            record = EvidenceRecord.read(data, "evidence")
        except UnusableInput:
            return None
        payload = copy.deepcopy(insider.payloads[0])
        payload["predicate"]["evidence"]["commitment"] = commit(record)
        return insider.report(0, payload, evidence=record)

    document = json.loads(issued.evidence.to_bytes())
    return _survey(f"evidence: {kind}", mutations(document), report, allowed, lambda _: {8})


def survey_pack(allowed: Callable[[str, Mutation], str | None]) -> Counts:
    """Change every field of a pack outside its signed parts, with given keys and a kept tree head."""
    issuer = Issuer(KEY)
    for _ in range(3):
        issued = issuer.issue("tr-proved")
    kept = issuer.head(4).encode()
    document = json.loads(issuer.pack().to_bytes())
    document["consistency"] = [entry for entry in document["consistency"] if entry["old_size"] in (2, 4)]

    def report(mutation: Mutation) -> VerificationReport | None:
        try:
            return verify(
                json.dumps(mutation.document).encode(), weights=issued.weights, keys=issuer.keys, since=kept
            )
        except UnusableInput:
            return None

    return _survey("pack", mutations(document), report, allowed, lambda _: {1, 6, 7})


def survey_receipt(allowed: Callable[[str, Mutation], str | None]) -> Counts:
    """Change every field of a receipt. It is not signed, but the root in the certificate binds it."""
    issuer = Issuer(KEY)
    issued: Issued = issuer.issue("tr-proved")
    pack = issuer.pack()

    def report(mutation: Mutation) -> VerificationReport | None:
        try:
            return verify(pack, weights=issued.weights, receipt=json.dumps(mutation.document).encode())
        except UnusableInput:
            return None

    document = json.loads(issued.receipts[3].to_bytes())
    return _survey("receipt", mutations(document), report, allowed, lambda _: {9})


def _survey(
    name: str,
    changes: Iterator[Mutation],
    report: Callable[[Mutation], VerificationReport | None],
    allowed: Callable[[str, Mutation], str | None],
    lines: Callable[[Mutation], set[int]],
) -> Counts:
    counts = Counts()
    for mutation in changes:
        counts.tried += 1
        verdict = report(mutation)
        label = f"{mutation.where}: {mutation.how}"
        if verdict is None or not verdict.verified:
            counts.refused += 1
            failed = set() if verdict is None else {line.number for line in verdict.failed if line.detail}
            if verdict is not None and not failed & lines(mutation):
                counts.misplaced.append(f"{label} fails {sorted(failed)}")
        elif reason := allowed(name, mutation):
            counts.allowed[reason] = counts.allowed.get(reason, 0) + 1
        else:
            counts.surviving.append(label)
    return counts


# The checklist lines that refuse a changed field of the last certificate.
_LINES: dict[str, set[int]] = {
    "subject": {2, 3},
    "predicate.certificate_id": {2, 3, 8},
    "predicate.model": {2, 3, 6},
    "predicate.version": {2, 3},
    "predicate.parent": {2, 6, 8},
    "predicate.mechanism": {2, 3, 5, 6},
    "predicate.objective": {2, 3, 4, 5, 6, 8},
    "predicate.deletion_set": {2, 8, 9},
    "predicate.guarantee": {2, 4, 5, 6},
    "predicate.bound": {2, 4, 5, 6, 8},
    "predicate.noise": {2, 4, 5, 6},
    "predicate.lifetime": {2, 6},
    "predicate.evidence": {2, 8},
    "predicate.runtime": {2},
    "predicate.issued_at": {2, 6},
}


def lines_of(mutation: Mutation) -> set[int]:
    """Return the checklist lines that may refuse this change."""
    where = mutation.where
    return next((lines for prefix, lines in _LINES.items() if where.startswith(prefix)), {2})


@dataclass(frozen=True)
class Allowance:
    """A change that makes another honest claim, or no claim. `name` and `change` are patterns."""

    name: str
    change: str
    reason: str


_HEAD_ONLY = "file, evidence and receipts of a certificate are checked only when it is the last of a pack"
ALLOWED: tuple[Allowance, ...] = (
    Allowance(".*", r".*: \+4 ulp", "numbers are compared to one part in 10¹²"),
    Allowance(
        "(the last|an earlier).*",
        r"predicate\.(bound\.distance_target|bound\.failure_probability|noise\.residual): -1e-9",
        "a sum may be overstated by one part in 10⁹, to the safe side",
    ),
    Allowance(
        "(the last|an earlier).*",
        r"predicate\.(evidence: without scheme|guarantee: without estimate|objective: without warnings)"
        r"|predicate\.parent: without (commitment|weights_sha256)"
        r"|predicate\.objective\.representation\.declaration: without (library|normalisation)"
        r"|predicate\.objective\.representation\.declaration\.input: without (encoding|resize|scale)",
        "leaving out a field that has its default value does not change the statement",
    ),
    Allowance(
        "(the last|an earlier).*",
        r"predicate\.guarantee\.(estimate\.)?epsilon: (×2|\+1e-6)",
        "a larger ε claims less than the noise gives",
    ),
    Allowance(
        "(the last|an earlier).*",
        r"predicate\.deletion_set\.requests: .*",
        "only the issuer vouches for the number of requests; receipts show people, not requests",
    ),
    Allowance(
        "(the last|an earlier).*",
        r"predicate\.lifetime\.cap: .*",
        "the policy chooses the cap; the total is compared with the stated cap, and a change is reported",
    ),
    Allowance(
        "(the last|an earlier).*",
        r"predicate\.issued_at: a day (later|earlier)",
        "a date is only what the signer wrote; the verifier checks its order along the chain",
    ),
    Allowance(
        "(the last|an earlier).*",
        r"predicate\.objective\.retained_data_commitment: another",
        "a keyed commitment: only the replay audit, which has the data and the key, can open it",
    ),
    Allowance(
        "(the last|an earlier).*",
        r"predicate\.runtime(\..*|: without flags)",
        "only the issuer vouches for the runtime, in a fixed form; the guarantee does not depend on it",
    ),
    Allowance(
        "(the last|an earlier).*with a representation",
        r"predicate\.objective\.representation\.row_check: the word rows-run-alone",
        "only the issuer vouches for how rows were kept apart; both ways are honest claims",
    ),
    Allowance(
        "(the last|an earlier).*retrain",
        r"predicate\.noise\.(sigma|residual|calibration): .*|predicate\.lifetime\.delta: .*",
        "a retrain is its own reference: it makes no claim about its noise, and its ε is 0 at every δ",
    ),
    Allowance(
        "the last certificate: retrain",
        r"predicate\.objective\.(anchor_sha256|origins\..*|regularisation): .*",
        "a retrain may minimise another objective, and says so",
    ),
    Allowance(
        "the last certificate: tr-paper",
        r"predicate\.noise\.calibration: the word analytic",
        "the stated noise is enough by either calibration",
    ),
    Allowance(
        "the last certificate: discarded|an earlier certificate: discarded",
        r"subject\.\*\.digest\.sha256: another|predicate\.certificate_id: another",
        "the file of a discarded draw is destroyed, so there is nothing to compare with",
    ),
    Allowance(
        "the last certificate: discarded",
        r"predicate\.mechanism: the word tr",
        "a release counts the same as a discarded draw, and the verdict says that no file was checked",
    ),
    Allowance(
        "the last certificate: the first of its model",
        r"predicate\.(model_id|objective\.(anchor_sha256|origins\..*|regularisation)): .*",
        "a model's first certificate has no earlier one to agree with",
    ),
    Allowance(
        "an earlier.*",
        r"predicate\.certificate_id: another|predicate\.parent\.commitment: another"
        r"|predicate\.evidence\.commitment: another|predicate\.deletion_set\.(commitments|records|root): .*",
        _HEAD_ONLY,
    ),
    Allowance("evidence.*", "salt: another", "another salt makes another commitment to the same record"),
    Allowance(
        "evidence.*",
        r"(trace|trace\..*|solver|solver\..*|seconds_total): .*",
        "the path of the solver proves nothing; only the final gradient does, and the trace must end there",
    ),
    Allowance("evidence.*", r"utility(\..*)?: .*", "the utility of a model is not part of the guarantee"),
    Allowance(
        "evidence.*",
        r"(gradient_norm|rounding_error|shift\.kl_.*|curvature\.ball_radius"
        r"|curvature\.runs\.\*\.(failure_probability|rounding_slack)): (-1e-9|\+1e-6)",
        "the change stays inside the gradient's own rounding error or the issuer's rounding to the safe side",
    ),
    Allowance("evidence.*", "shift: null", "an issuer may leave out the class drift"),
    Allowance(
        "evidence.*",
        r"curvature\.(ball_radius: ×2|hessian_lipschitz_derivation: .*)",
        "M also holds on a larger ball, and its derivation is text for an auditor",
    ),
    Allowance(
        "evidence: tr-heuristic",
        r"curvature\.hessian_lipschitz_source: the word analytic",
        "the certificate still says heuristic",
    ),
    Allowance(
        "evidence.*",
        r"curvature\.runs: (last removed|last twice|reversed)|curvature\.runs\.\*\..*",
        "the floor does not depend on a run that gives no better one, or on a value between the extremes",
    ),
    Allowance(
        "evidence: retrain-proved",
        r"(gradient_norm|rounding_error|posterior_distance): .*",
        "a retrain has no distance to bound",
    ),
    Allowance(
        "evidence: guo2020.*",
        r"(method|method\..*|posterior_distance): .*",
        "the constants of a baseline are repeated, not proved",
    ),
    Allowance("pack", r"consistency.*", "proofs from tree heads that the verifier did not ask about"),
    Allowance("pack", r"keys\..*", "the verifier supplied the keys, so those in the pack are not used"),
)


def reason_for(name: str, mutation: Mutation) -> str | None:
    """Return the reason why this change may pass, or None."""
    label = f"{mutation.where}: {mutation.how}"
    for entry in ALLOWED:
        if re.fullmatch(entry.name, name) and re.fullmatch(entry.change, label):
            return entry.reason
    return None


SURVEYS: dict[str, Callable[[], Counts]] = {
    **{name: partial(survey_statement, name, reason_for) for name in CHAINS},
    **{f"evidence: {kind}": partial(survey_evidence, kind, reason_for) for kind in EVIDENCE},
    "pack": partial(survey_pack, reason_for),
    "receipt": partial(survey_receipt, reason_for),
}


def table(surveys: dict[str, Counts]) -> str:
    """Return the counts as a Markdown table."""
    rows = ["| changed document | tried | refused | another honest claim |", "|---|---|---|---|"]
    for name, counts in surveys.items():
        rows.append(f"| {name} | {counts.tried:,} | {counts.refused:,} | {sum(counts.allowed.values()):,} |")
    tried, refused = (
        sum(getattr(counts, part) for counts in surveys.values()) for part in ("tried", "refused")
    )
    allowed = sum(sum(counts.allowed.values()) for counts in surveys.values())
    rows.append(f"| **together** | **{tried:,}** | **{refused:,}** | **{allowed:,}** |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(table({name: survey() for name, survey in SURVEYS.items()}) + "\n")
