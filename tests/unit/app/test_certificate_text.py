"""Sentences of a certificate page, for format 1 and format 2."""

import base64
import json
from pathlib import Path

import pytest

from app.web.certificate_text import erased_sentence, text_of, warning_sentences
from certificate import envelope, statement
from certificate.vocabulary import ASSUMPTIONS

GOLDEN = Path("tests/golden/v1")


@pytest.mark.parametrize("case", ["tr-proved", "retrain-proved", "tr-heuristic", "discarded-proved"])
def test_a_certificate_of_format_1_is_still_shown_in_full(case: str) -> None:
    pack = json.loads((GOLDEN / case / "pack.json").read_bytes())
    predicate = statement.parse(envelope.parse(base64.b64decode(pack["envelope"])).payload).predicate
    text = text_of(predicate)
    assert text.people == predicate.deletion_set.subjects  # type: ignore[union-attr]
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
def test_records_are_told_where_the_certificate_tells_them(
    people: int, records: int | None, sentence: str
) -> None:
    assert erased_sentence(people, records) == sentence


def test_warnings_use_the_certificates_own_words() -> None:
    assert warning_sentences(["features-look-standardised"]) == [ASSUMPTIONS["features-look-standardised"]]
