"""The in-toto statement a certificate signs: one checkpoint file, one predicate."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, ValidationError

from certificate.errors import StatementUnreadable, UnusableInput
from certificate.predicate import (
    Assumption,
    Assurance,
    Bound,
    DeletionSet,
    Estimate,
    EvidenceCommitment,
    Guarantee,
    Lifetime,
    Mechanism,
    Noise,
    Objective,
    Origins,
    Parent,
    Predicate,
    Rule,
    Runtime,
)
from certificate.records import Record, Sha256, Text, first_problem, printable, read_object

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "urn:lethe:predicate:certified-unlearning:v1"

__all__ = [
    "PREDICATE_TYPE",
    "STATEMENT_TYPE",
    "Assumption",
    "Assurance",
    "Bound",
    "DeletionSet",
    "Digest",
    "Estimate",
    "EvidenceCommitment",
    "Guarantee",
    "Lifetime",
    "Mechanism",
    "Noise",
    "Objective",
    "Origins",
    "Parent",
    "Predicate",
    "Rule",
    "Runtime",
    "Statement",
    "Subject",
    "parse",
    "serialise",
    "statement_for",
]


class Digest(Record):
    sha256: Sha256


class Subject(Record):
    """The checkpoint file."""

    name: Text
    digest: Digest


class Statement(Record):
    """`type_` and `predicate_type` are written as in-toto spells them, `_type` and `predicateType`."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(default=STATEMENT_TYPE, alias="_type")
    subject: Annotated[tuple[Subject, ...], Field(min_length=1, max_length=1)]
    predicate_type: Literal["urn:lethe:predicate:certified-unlearning:v1"] = Field(
        default=PREDICATE_TYPE, alias="predicateType"
    )
    predicate: Predicate

    @property
    def checkpoint_sha256(self) -> str:
        return self.subject[0].digest.sha256


def statement_for(*, file_name: str, checkpoint_sha256: str, predicate: Predicate) -> Statement:
    subject = Subject(name=file_name, digest=Digest(sha256=checkpoint_sha256))
    return Statement(subject=(subject,), predicate=predicate)


def serialise(statement: Statement) -> bytes:
    """Deterministic JSON. Used once, before signing; afterwards the signed bytes are what counts."""
    return statement.to_bytes()


def parse(payload: bytes) -> Statement:
    """The statement in signed bytes, refusing unknown versions and unknown fields by name."""
    try:
        document = read_object(payload, "statement")
    except UnusableInput as error:
        raise StatementUnreadable(str(error)) from None
    _check_version(document, "_type", STATEMENT_TYPE)
    _check_version(document, "predicateType", PREDICATE_TYPE)
    try:
        return Statement.model_validate_json(payload)
    except ValidationError as error:
        raise StatementUnreadable(first_problem(error)) from None


def _check_version(document: dict[str, Any], key: str, known: str) -> None:
    if document.get(key) != known:
        raise StatementUnreadable(f"{key} is {printable(document.get(key))!r}; this verifier knows {known!r}")
