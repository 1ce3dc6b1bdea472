"""Rows are matched to people exactly after normalisation. A looser folding only warns."""

import io
import unicodedata
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.storage import Storage
from lethe.certificate.commitment import normalise_identifier
from worker.data import datasets, identifiers
from worker.data.inspection import Distinct

COMPOSED, DECOMPOSED = "Zo\u00eb", "Zoe\u0308"
# Letters that decompose, combining marks in any order, Hangul, compatibility forms, singletons.
LETTERS = st.text(
    st.sampled_from("aeZ\u00eb\u0308\u0323\u1e69\u0307\uac00\u1100\u1161\uff21\u212b\u0958"), max_size=8
)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(f"file://{tmp_path / 'storage'}")


def write(storage: Storage, subjects: list[str | None], path: str = "data/part") -> str:
    rows = len(subjects)
    features = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(2 * rows)), 2)
    sink = io.BytesIO()
    labels = pa.array([number % 2 for number in range(rows)])
    pq.write_table(
        pa.table({"subject_id": pa.array(subjects, pa.string()), "label": labels, "features": features}), sink
    )
    storage.write(path, [sink.getvalue()])
    return path


@given(st.lists(LETTERS, max_size=6), st.sampled_from(["NFC", "NFD"]))
def test_arrow_and_python_agree_on_the_normal_form(texts: list[str], form: Literal["NFC", "NFD"]) -> None:
    """Python's form goes into commitments, and Arrow's is used to match rows."""
    stored = [unicodedata.normalize(form, text) for text in texts]
    assert identifiers.normalised(pa.array(stored, pa.string())).to_pylist() == [
        normalise_identifier(text) for text in texts
    ]


@given(st.text(max_size=20))
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise_identifier(normalise_identifier(text)) == normalise_identifier(text)


def test_ascii_and_empty_columns_are_left_unchanged() -> None:
    for values in (["a", None, "b "], [], [None]):
        assert identifiers.normalised(pa.array(values, pa.string())).to_pylist() == values


def test_every_step_sees_the_rows_of_one_person_in_every_form(storage: Storage, tmp_path: Path) -> None:
    part = write(storage, [COMPOSED, "ada", DECOMPOSED, "Zoe", None])
    for asked in (COMPOSED, DECOMPOSED):
        assert datasets.holders(storage, part, [asked, "nobody"]) == {asked}
        assert datasets.class_counts(storage, part, [asked]).total() == 2
        datasets.rewrite_without(storage, part, [asked], "data/new", tmp_path)
        assert list(datasets.subjects(storage, "data/new")) == ["ada", "Zoe"]
        mapped = datasets.memory_map(storage, [part], 2, tmp_path / "rows", [asked])
        assert len(mapped.labels) == 2


def test_two_forms_are_counted_as_one_subject() -> None:
    distinct = Distinct()
    distinct.add(pa.array([COMPOSED, "ada"]))
    distinct.add(pa.array([DECOMPOSED]))
    assert len(distinct.seen) == 2


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("alice", "Alice"),
        ("alice", " alice\u00a0"),
        ("alice smith", "Alice \t  Smith"),
        ("alice", "al\u200bice\ufeff"),
        ("alice", "\uff21lice"),
        ("stra\u00dfe", "STRASSE"),
        (COMPOSED, "zoe\u0308"),
        ("\u03c3\u03c2", "\u03a3\u03a3"),
    ],
)
def test_identifiers_that_people_confuse_fold_to_the_same_form(one: str, two: str) -> None:
    assert identifiers.folded(one) == identifiers.folded(two)
    assert normalise_identifier(one) != normalise_identifier(two)


@pytest.mark.parametrize(
    ("one", "two"), [("alice", "alicia"), ("p-1", "p-10"), ("p-1", "p1"), ("Zoe", COMPOSED)]
)
def test_identifiers_of_different_people_fold_differently(one: str, two: str) -> None:
    assert identifiers.folded(one) != identifiers.folded(two)


def test_near_matches_are_grouped_by_the_form_they_share(storage: Storage) -> None:
    part = write(storage, ["alice", "alice", "ALICE", DECOMPOSED, COMPOSED, "bob", None])
    folds = {identifiers.folded("Alice "), identifiers.folded("ZO\u00cb"), identifiers.folded("carl")}
    assert datasets.near_matches(storage, part, folds) == {
        "alice": {"alice", "ALICE"},
        "zo\u00eb": {COMPOSED},
    }
