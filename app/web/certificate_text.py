"""A certificate in sentences, whichever format version it has."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.web.words import ASSUMPTION, counted
from certificate.predicate import Origins
from certificate.predicate_v1 import OriginsV1
from certificate.statement import AnyPredicate
from certificate.vocabulary import ASSUMPTIONS, RegistrationWarning


@dataclass(frozen=True)
class CertificateText:
    """What a reader needs besides the figures. `assumptions` are pairs of a title and a sentence."""

    erased: str
    people: int
    reference: str
    assumptions: Sequence[tuple[str, str]]
    limits: Sequence[str]
    origins: Origins | OriginsV1
    warnings: Sequence[str]


def text_of(predicate: AnyPredicate) -> CertificateText:
    """Return the sentences of a certificate of format 1 or 2."""
    guarantee, erased = predicate.guarantee, predicate.deletion_set
    return CertificateText(
        erased_sentence(erased.people, erased.records),
        erased.people,
        guarantee.reference_text,
        [(ASSUMPTION.get(name, name), sentence) for name, sentence in guarantee.assumption_texts],
        guarantee.limit_texts,
        predicate.objective.origins,
        warning_sentences(predicate.objective.warnings),
    )


def erased_sentence(people: int, records: int | None) -> str:
    """Say who was erased.

    >>> erased_sentence(1, None)
    'The data of 1 person was erased from this model.'
    >>> erased_sentence(30, 31)
    '31 records of 30 people were erased from this model.'
    """
    who = counted(people, "person", "people")
    if records is None:
        return f"The data of {who} was erased from this model."
    return (
        f"{counted(records, 'record')} of {who} {'was' if records == 1 else 'were'} erased from this model."
    )


def warning_sentences(warnings: Sequence[RegistrationWarning]) -> list[str]:
    """Return what registration noticed, in the sentences of the certificate's vocabulary."""
    return [ASSUMPTIONS[warning] for warning in warnings]
