"""The sentences on a certificate page, for formats 1 and 2."""

import base64
import json
from pathlib import Path

import pytest

from app.gateway.dashboard.certificate_pages import (
    describe_certificate,
    describe_erased,
    describe_warnings,
)
from lethe.certificate import envelope, statement
from lethe.certificate.vocabulary import ASSUMPTIONS

GOLDEN = Path("tests/golden/v1")


@pytest.mark.parametrize("case", ["tr-proved", "retrain-proved", "tr-heuristic", "discarded-proved"])
def test_a_certificate_of_format_1_is_still_shown_in_full(case: str) -> None:
    pack = json.loads((GOLDEN / case / "pack.json").read_bytes())
    predicate = statement.parse(envelope.parse(base64.b64decode(pack["envelope"])).payload).predicate
    text = describe_certificate(predicate)
    assert text.people == predicate.deletion_set.people
    assert text.origins.features
    assert text.limits
    assert all(title and sentence for title, sentence in text.assumptions)


@pytest.mark.parametrize(
    ("people", "records", "sentence"),
    [
        (2, None, "The data of 2 people was erased from this model."),
        (20, 20, "20 records of 20 people were erased from this model."),
    ],
)
def test_records_are_counted_where_the_certificate_counts_them(
    people: int, records: int | None, sentence: str
) -> None:
    assert describe_erased(people, records) == sentence


def test_warnings_use_the_vocabulary_of_the_certificate() -> None:
    assert describe_warnings(["features-look-standardised"]) == [ASSUMPTIONS["features-look-standardised"]]
