"""The in-toto statement a certificate signs: one weights file, one predicate of version 1 or 2."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from certificate.errors import StatementUnreadable, UnusableInput
from certificate.predicate import Predicate
from certificate.predicate_v1 import PredicateV1
from certificate.records import Record, Sha256, Text, first_problem, printable, read_object

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE_V1: Final = "urn:lethe:predicate:certified-unlearning:v1"
PREDICATE_TYPE: Final = "urn:lethe:predicate:certified-unlearning:v2"

AnyPredicate = Predicate | PredicateV1


class Digest(Record):
    sha256: Sha256


class Subject(Record):
    """The weights file."""

    name: Text
    digest: Digest


class _Statement(Record):
    """`type_` and `predicate_type` are written as in-toto spells them, `_type` and `predicateType`."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(default=STATEMENT_TYPE, alias="_type")
    subject: Annotated[tuple[Subject, ...], Field(min_length=1, max_length=1)]

    @property
    def weights_sha256(self) -> str:
        """The digest of the weights file the statement is about."""
        return self.subject[0].digest.sha256


class StatementV1(_Statement):
    """A statement of format version 1: read and verified, never issued any more."""

    predicate_type: Literal["urn:lethe:predicate:certified-unlearning:v1"] = Field(
        default=PREDICATE_TYPE_V1, alias="predicateType"
    )
    predicate: PredicateV1


class Statement(_Statement):
    """A statement as it is issued today."""

    predicate_type: Literal["urn:lethe:predicate:certified-unlearning:v2"] = Field(
        default=PREDICATE_TYPE, alias="predicateType"
    )
    predicate: Predicate

    @model_validator(mode="after")
    def _file_is_named_after_the_version(self) -> Self:
        expected = weights_file_name(self.predicate.model, self.predicate.version)
        if self.subject[0].name != expected:
            raise ValueError(f"the subject is not named {expected}")
        return self


AnyStatement = Statement | StatementV1
_BY_TYPE: dict[str, type[Statement] | type[StatementV1]] = {
    PREDICATE_TYPE: Statement,
    PREDICATE_TYPE_V1: StatementV1,
}


def weights_file_name(model: str, version: int) -> str:
    """Return the name under which a version's weights are published: the only one a statement may give.

    >>> weights_file_name("credit-scoring", 3)
    'credit-scoring-v3.safetensors'
    """
    return f"{model}-v{version}.safetensors"


def statement_for(*, file_name: str, weights_sha256: str, predicate: Predicate) -> Statement:
    """Return the statement that `predicate` holds for the file with this digest."""
    subject = Subject(name=file_name, digest=Digest(sha256=weights_sha256))
    return Statement(subject=(subject,), predicate=predicate)


def serialise(statement: Statement) -> bytes:
    """Serialise to deterministic JSON, once, before signing. Afterwards the signed bytes are what counts."""
    return statement.to_bytes()


def parse(payload: bytes) -> AnyStatement:
    """Parse the statement in signed bytes; refuse unknown versions and unknown fields by name."""
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
    """Parse a statement that this version of the service wrote itself."""
    statement = parse(payload)
    if not isinstance(statement, Statement):
        raise StatementUnreadable("the statement is of format version 1; new ones are of version 2")
    return statement


def _known(document: dict[str, Any], key: str, *values: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or value not in values:
        known = " and ".join(repr(entry) for entry in values)
        raise StatementUnreadable(f"{key} is {printable(value)!r}; this verifier knows {known}")
    return value
