"""What documents may contain, how they are serialised, and what a public one must not reveal."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lethe.certificate.commitment import commit_retained
from lethe.certificate.errors import StatementUnreadable, UnusableInput
from lethe.certificate.evidence import EvidenceRecord, commit
from lethe.certificate.keys import SigningKey
from lethe.certificate.pack import Pack
from lethe.certificate.predicate import DeletionSet, Guarantee
from lethe.certificate.predicate_v1 import DeletionSetV1, describable
from lethe.certificate.schema import DOCUMENTS, schema_text
from lethe.certificate.statement import Statement, parse, parse_current, serialise
from tests.unit.certificate.certificate_cases import Issued, Issuer
from tests.unit.certificate.certificate_evidence_cases import KINDS, TARGET, evidence_for, uuid7

KEY = SigningKey.generate()
SCHEMAS = Path(__file__).parents[3] / "docs" / "schema"


def payload_of(issued: Issued) -> bytes:
    """The bytes of a statement as they are signed."""
    assert isinstance(issued.statement, Statement)
    return serialise(issued.statement)


@pytest.mark.parametrize("kind", KINDS)
def test_every_mechanism_and_tier_survives_its_bytes(kind):
    issued = Issuer(KEY).issue(kind)
    payload = payload_of(issued)
    assert parse(payload) == issued.statement
    assert serialise(parse_current(payload)) == payload
    assert EvidenceRecord.read(issued.evidence.to_bytes(), "evidence") == issued.evidence


def test_statement_is_an_in_toto_statement():
    document = json.loads(payload_of(Issuer(KEY).issue()))
    assert document["_type"] == "https://in-toto.io/Statement/v1"
    assert document["predicateType"] == "urn:lethe:predicate:certified-unlearning:v2"
    assert list(document["subject"][0]["digest"]) == ["sha256"]


def test_two_runs_that_differ_in_unnoised_values_alone_give_the_same_public_statement():
    def document(gradient_norm: float, salt: str) -> tuple[dict[str, Any], EvidenceRecord]:
        issuer = Issuer(KEY)
        record = evidence_for("tr-proved", uuid7(1), gradient_norm=gradient_norm, salt=salt)
        issued = issuer.issue(
            "tr-proved",
            evidence_edit={name: getattr(record, name) for name in EvidenceRecord.model_fields},
        )
        return json.loads(payload_of(issued)), issued.evidence

    first, first_record = document(5e-7, "00" * 16)
    second, second_record = document(3e-8, "11" * 16)
    assert first_record.distance != second_record.distance
    for side in (first, second):
        del side["predicate"]["evidence"]["commitment"], side["subject"][0]["digest"]
        del side["predicate"]["issued_at"]
    assert first == second


def test_no_exact_value_of_the_evidence_appears_in_the_statement():
    issued = Issuer(KEY).issue("tr-conditional")
    public = payload_of(issued).decode()
    exact = issued.evidence
    assert exact.curvature is not None
    secrets = [
        exact.gradient_norm,
        exact.distance,
        exact.curvature.floor,
        exact.curvature.ball_radius,
        exact.salt,
    ]
    assert not [value for value in secrets if str(value) in public]
    assert f'"distance_target":{TARGET!r}' in public


def test_a_commitment_needs_the_salt_and_binds_every_field():
    record = evidence_for("tr-proved", uuid7(1))
    assert commit(record) == commit(EvidenceRecord.read(record.to_bytes(), "evidence"))
    assert commit(record) != commit(record.model_copy(update={"salt": "00" * 16}))
    assert commit(record) != commit(record.model_copy(update={"distance": record.distance * (1 + 1e-15)}))


def test_retained_data_commitment_is_keyed_and_ordered():
    digests = ["00" * 32, "11" * 32]
    one = commit_retained(key=b"a" * 32, part_digests=digests)
    assert one != commit_retained(key=b"b" * 32, part_digests=digests)
    assert one != commit_retained(key=b"a" * 32, part_digests=digests[::-1])
    with pytest.raises(ValueError, match="128 bits"):
        commit_retained(key=b"short", part_digests=digests)


def erased(subjects: int, histogram: dict[str, int] | None, **more: Any) -> DeletionSetV1:
    parts: dict[str, Any] = {"requests": 1, "records": sum((histogram or {}).values())} | more
    return DeletionSetV1(subjects=subjects, root="0" * 64, class_histogram=histogram, **parts)


@pytest.mark.parametrize(
    ("subjects", "histogram"),
    [
        (1, {"0": 40}),  # many records of one person
        (19, {"0": 40}),
        (19, {"0": 19}),
        (20, {"0": 36, "1": 4}),  # a class of few
        (20, {"0": 39, "1": 1}),
        (20, {"0": 0}),
        (20, {}),
    ],
)
def test_a_small_deletion_set_is_not_described(subjects, histogram):
    assert not describable(subjects, sum(histogram.values()), histogram)
    with pytest.raises(ValidationError, match="must not be described"):
        erased(subjects, histogram)
    with pytest.raises(ValidationError, match="together with"):
        erased(subjects, None, records=40, kl_retained_original=0.1)
    erased(subjects, None, records=40)


def test_a_release_that_erased_nobody_has_an_empty_deletion_set():
    issued = Issuer(KEY).issue(people=0)
    assert parse(issued.envelope.payload) == issued.statement
    empty = issued.predicate.deletion_set
    assert (empty.requests, empty.people, empty.commitments, empty.records) == (0, 0, 0, None)
    for change in ({"requests": 1}, {"records": 0}, {"root": "0" * 64}):
        with pytest.raises(ValidationError):
            DeletionSet.model_validate(empty.model_dump() | change)


def test_records_of_few_people_are_not_counted():
    few = Issuer(KEY).issue(people=19).predicate.deletion_set
    assert few.records is None
    with pytest.raises(ValidationError, match="twenty people or more"):
        DeletionSet.model_validate(few.model_dump() | {"records": 30})


def test_a_described_set_adds_up_and_is_rounded():
    erased(20, {"0": 15, "1": 5, "2": 0}, kl_retained_original=0.123, kl_original_retained=0.0)
    with pytest.raises(ValidationError, match="add up"):
        erased(20, {"0": 20}, records=21)
    for name in ("kl_retained_original", "kl_original_retained"):
        with pytest.raises(ValidationError, match="three significant digits"):
            erased(20, {"0": 20}, **{name: 0.1234})


def test_a_heuristic_certificate_has_no_headline_and_others_do():
    words: dict[str, Any] = {"reference": "itself", "assumptions": (), "not_covered": ()}
    with pytest.raises(ValidationError, match="no \\(epsilon, delta\\)"):
        Guarantee(epsilon=1.0, delta=1e-5, assurance="heuristic", **words)
    with pytest.raises(ValidationError, match="carries \\(epsilon, delta\\)"):
        Guarantee(epsilon=None, delta=None, assurance="proved", **words)


def _set(document: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for part in parents:
        document = document[part]
    document[last] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("_type", "https://in-toto.io/Statement/v0.1"),
        ("predicateType", "urn:lethe:predicate:certified-unlearning:v1"),
        ("subject", []),
        ("predicate.unknown", 1),
        ("predicate.noise.sigma", "1.0"),
        ("predicate.noise.sigma", 0.0),
        ("predicate.noise.sigma", 1e400),
        ("predicate.noise.sigma", float("nan")),
        ("predicate.version", 1.5),
        ("predicate.version", 0),
        ("predicate.certificate_id", "018f0000-0000-4000-8000-000000000001"),
        ("predicate.mechanism", "magic"),
        ("predicate.model", "line\nbreak"),
        ("predicate.model", "\x1b[2J"),
        ("predicate.issued_at", "2025-01-01T00:00:00"),
        ("predicate.bound.rule", "retrain"),
        ("predicate.lifetime.index", 1),
        ("predicate.version", 2),
        ("predicate.model", "Credit Scoring"),
        ("predicate.objective.family", "softmax, more or less"),
        ("predicate.objective.loss", "some loss"),
        ("predicate.objective.origins.features", "x" * 501),
        ("predicate.objective.warnings", ["features-look-standardised"] * 2),
        ("predicate.guarantee.reference", "retraining, in our own words"),
        ("predicate.guarantee.assumptions", ["nothing much"]),
        ("predicate.guarantee.not_covered", ["the weather"]),
        ("predicate.bound.inequalities", ["all is well"]),
        ("predicate.runtime.torch", "2.7.0 (fast)"),
        ("predicate.runtime.device", "a computer"),
        ("predicate.runtime.flags", ["free text"]),
        ("predicate.deletion_set.class_histogram", {"0": 25}),
        ("predicate.deletion_set.people", 0),
        ("predicate.deletion_set.requests", 0),
        ("predicate.deletion_set.commitments", 401),
        ("predicate.deletion_set.records", 19),
        ("predicate.deletion_set.records", None),
        ("predicate.deletion_set.root", hashlib.sha256(b"").hexdigest()),
        ("predicate.parent.weights_sha256", "0" * 64),
        ("predicate.parent.commitment", None),
    ],
)
def test_what_version_2_does_not_know_is_refused(path, value):
    document = json.loads(payload_of(Issuer(KEY).issue()))
    _set(document, path, value)
    with pytest.raises(StatementUnreadable):
        parse(json.dumps(document).encode())


def test_duplicate_keys_are_refused():
    payload = payload_of(Issuer(KEY).issue())
    doubled = payload.replace(b'"sigma":', b'"sigma":1e9,"sigma":', 1)
    with pytest.raises(StatementUnreadable, match="twice"):
        parse(doubled)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_arbitrary_json_is_refused_without_any_other_error(value):
    data = json.dumps(value).encode()
    with pytest.raises(StatementUnreadable):
        parse(data)
    for document in (Pack, EvidenceRecord):
        with pytest.raises(UnusableInput):
            document.read(data, "document")


def test_records_are_frozen_and_time_is_utc():
    issued = Issuer(KEY).issue()
    statement = issued.statement
    with pytest.raises(ValidationError, match="frozen"):
        statement.predicate.noise.sigma = 1.0  # type: ignore[misc]
    assert statement.predicate.issued_at == datetime(2026, 1, 2, 3, 5, 5, tzinfo=UTC)
    assert b'"issued_at":"2026-01-02T03:05:05Z"' in payload_of(issued)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_exported_schema_is_current(name):
    """Stale: run `python -m lethe.certificate.schema docs/schema`."""
    assert (SCHEMAS / f"{name}.json").read_text(encoding="utf-8") == schema_text(name)


def test_no_other_schema_is_exported():
    assert {path.stem for path in SCHEMAS.glob("*.json")} == set(DOCUMENTS)
    assert Statement in DOCUMENTS.values()
