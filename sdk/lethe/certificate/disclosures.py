"""The sentences of a report beside its checklist: the headline, and what a reader must know."""

from __future__ import annotations

from collections.abc import Sequence

from lethe.certificate.predicate import Predicate
from lethe.certificate.records import printable
from lethe.certificate.representation import CertifiedRepresentation
from lethe.certificate.statement import AnyPredicate, AnyStatement
from lethe.certificate.vocabulary import ASSUMPTIONS, LIMITS

NO_CERTIFICATE = "NOT VERIFIED: the pack contains no readable certificate with a valid signature"
TAMPERED = "TAMPERED WITH: the signature does not match the certificate, so someone has changed the pack"


def describe_failure(statement: AnyStatement | None, failed: Sequence[int], *, tampered: bool) -> str:
    """Return the first line of a report with failed checks. `failed` are their numbers."""
    if tampered:
        return TAMPERED
    if statement is None:
        return NO_CERTIFICATE
    *others, last = map(str, failed)
    checks = f"checks {', '.join(others)} and {last}" if others else f"check {last}"
    return f"NOT VERIFIED, because of {checks}. The certificate states: {describe_statement(statement)}"


def describe_statement(statement: AnyStatement | None) -> str:
    """Return the first line of a report: the model, the people erased, ε, δ and the assurance."""
    if statement is None:
        return NO_CERTIFICATE
    predicate = statement.predicate
    guarantee, what = predicate.guarantee, f"{printable(predicate.model)} version {predicate.version}"
    if predicate.format_version == 1:
        what = f"{what} (certificate of format 1, whose noise was drawn in floating point)"
    if guarantee.estimate is not None:
        return f"ESTIMATE, NOT A GUARANTEE: {what}, by {predicate.mechanism}; no (ε, δ) is certified"
    if predicate.mechanism == "discarded":
        return f"{what}: this draw was evaluated and destroyed, and it counts as a release"
    people = predicate.deletion_set.people
    erased = f"{people} {'person' if people == 1 else 'people'} erased by {predicate.mechanism}"
    return f"{what}: {erased}, ε = {guarantee.epsilon:g}, δ = {guarantee.delta:g}, {guarantee.assurance}"


def disclose(predicate: AnyPredicate) -> dict[str, tuple[str, ...]]:
    """Return the sentences on assumptions, declarations, limits and the representation."""
    origins, guarantee = predicate.objective.origins, predicate.guarantee
    declared = [
        f"{name}: {value}"
        for name, value in (
            ("features", origins.features),
            ("constants", origins.constants),
            ("anchor", origins.anchor),
        )
    ]
    warnings = [f"warning from registration: {ASSUMPTIONS[name]}" for name in predicate.objective.warnings]
    represented = predicate.objective.representation if isinstance(predicate, Predicate) else None
    return {
        "rests_on": tuple(printable(f"{name}: {sentence}") for name, sentence in guarantee.assumption_texts),
        "declared": tuple(printable(sentence) for sentence in [*declared, *warnings]),
        "not_covered": tuple(printable(sentence) for sentence in guarantee.limit_texts),
        "representation": () if represented is None else describe_representation(represented),
    }


def describe_representation(representation: CertifiedRepresentation) -> tuple[str, ...]:
    """Return the sentences about a representation: its origin and licence, its digests and the row check."""
    declaration = representation.declaration
    sentences = [
        f"declared origin: {declaration.origin}",
        f"declared licence: {declaration.licence}",
        f"sha256 of the function (files, constants and outputs): {representation.digest}",
        f"sha256 of the ONNX graph ({representation.graph_bytes} bytes): {representation.graph_sha256}",
    ]
    if representation.tokenizer_sha256 is not None:
        sentences.append(f"sha256 of the tokenizer: {representation.tokenizer_sha256}")
    sentences.append(f"how rows were kept apart: {representation.row_check_text}")
    sentences.append(f"outside this certificate: {LIMITS['representation-training-data']}")
    return tuple(printable(sentence) for sentence in sentences)
