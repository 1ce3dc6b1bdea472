"""The in-toto statement that a certificate signs: a predicate of version 1 or 2 about one weights file."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from lethe.certificate.errors import StatementUnreadable, UnusableInput
from lethe.certificate.predicate import Predicate
from lethe.certificate.predicate_v1 import PredicateV1
from lethe.certificate.records import Record, Sha256, Text, first_problem, printable, read_object

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE_V1: Final = "urn:lethe:predicate:certified-unlearning:v1"
PREDICATE_TYPE: Final = "urn:lethe:predicate:certified-unlearning:v2"

AnyPredicate = Predicate | PredicateV1


class Digest(Record):
    """The digest of a file."""

    sha256: Sha256


class Subject(Record):
    """The weights file: its name and digest."""

    name: Text
    digest: Digest


class _Statement(Record):
    """Fields of both versions. In JSON, `type_` and `predicate_type` are `_type` and `predicateType`."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(default=STATEMENT_TYPE, alias="_type")
    subject: Annotated[tuple[Subject, ...], Field(min_length=1, max_length=1)]

    @property
    def weights_sha256(self) -> str:
        """The SHA-256 of the weights file that the statement is about."""
        return self.subject[0].digest.sha256


class StatementV1(_Statement):
    """A statement of format version 1. It can be read and verified, but is no longer issued."""

    predicate_type: Literal["urn:lethe:predicate:certified-unlearning:v1"] = Field(
        default=PREDICATE_TYPE_V1, alias="predicateType"
    )
    predicate: PredicateV1


class Statement(_Statement):
    """A statement of format version 2, the one that is issued."""

    predicate_type: Literal["urn:lethe:predicate:certified-unlearning:v2"] = Field(
        default=PREDICATE_TYPE, alias="predicateType"
    )
    predicate: Predicate

    @model_validator(mode="after")
    def _file_is_named_after_the_version(self) -> Self:
        expected = weights_file_name(self.predicate.model, self.predicate.version)
        if self.subject[0].name != expected:
            raise ValueError(f"the subject must be named {expected}")
        return self


AnyStatement = Statement | StatementV1
_BY_TYPE: dict[str, type[Statement] | type[StatementV1]] = {
    PREDICATE_TYPE: Statement,
    PREDICATE_TYPE_V1: StatementV1,
}


def weights_file_name(model: str, version: int) -> str:
    """Return the file name of a version's weights. A statement may use no other name for them.

    >>> weights_file_name("credit-scoring", 3)
    'credit-scoring-v3.safetensors'
    """
    return f"{model}-v{version}.safetensors"


def statement_for(*, file_name: str, weights_sha256: str, predicate: Predicate) -> Statement:
    """Build the statement that `predicate` holds for the file with this digest."""
    subject = Subject(name=file_name, digest=Digest(sha256=weights_sha256))
    return Statement(subject=(subject,), predicate=predicate)


def serialise(statement: Statement) -> bytes:
    """Serialise a statement for signing. Once it is signed, use the signed bytes and never do this again."""
    return statement.to_bytes()


def parse(payload: bytes) -> AnyStatement:
    """Parse the statement in signed bytes. Raise `StatementUnreadable` for unknown versions or fields."""
    try:
        document = read_object(payload, "statement")
    except UnusableInput as error:
        raise StatementUnreadable(str(error)) from None
    kind = _known(document, "predicateType", *_BY_TYPE)
    _known(document, "_type", STATEMENT_TYPE)
    try:
        return _BY_TYPE[kind].model_validate_json(payload)
    except ValidationError as error:
        raise StatementUnreadable(first_problem(error)) from None


def parse_current(payload: bytes) -> Statement:
    """Parse a statement of the version that is issued. Raise `StatementUnreadable` for an older one."""
    statement = parse(payload)
    if not isinstance(statement, Statement):
        raise StatementUnreadable("the statement is of format version 1, but version 2 is required")
    return statement


def _known(document: dict[str, Any], key: str, *values: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or value not in values:
        known = " and ".join(repr(entry) for entry in values)
        raise StatementUnreadable(f"{key} is {printable(value)!r}, but this verifier knows only {known}")
    return value
