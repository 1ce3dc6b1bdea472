"""Deletion lists of California's DROP: the published hashes, and matching."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lethe.certificate.errors import UnusableInput
from lethe.client.drop import (
    Match,
    drop_hash,
    list_type,
    match_list,
    read_list,
    read_people,
    standardise_email,
    standardise_phone,
    write_report,
)


@pytest.mark.parametrize(
    ("phone", "standardised", "published"),
    [
        ("+1(415)555-9317", "4155559317", "vGM7y5n+hBXRSEAklhHDPCbysyNgYTmXdMcagGUOY8E="),
        ("+84(90)123 4567", "4901234567", "ptzVkgbv9DonwvPCHmXmJ2SEOaolSh37z3ZzY/Gmm+U="),
    ],
)
def test_phone_numbers_have_the_published_hashes(phone: str, standardised: str, published: str) -> None:
    assert standardise_phone(phone) == standardised
    assert drop_hash(standardised) == published


@given(st.text())
def test_standardising_twice_changes_nothing(text: str) -> None:
    phone = standardise_phone(text)
    assert standardise_phone(phone) == phone
    assert phone.isascii()
    email = standardise_email(text)
    assert email == email.strip()


def test_people_on_the_list_are_found_by_their_hash(tmp_path: Path) -> None:
    people, deletion = tmp_path / "people.csv", tmp_path / "20260801_7_Email.csv"
    people.write_text("Subject_ID,Email\np1,Ada@Example.com\np2,bob@example.com\np3, ADA@example.com \np4,\n")
    rows = [f"w1,{drop_hash('ada@example.com')}", f"w2,{drop_hash('eve@example.com')}"]
    deletion.write_text("\ufeffID,Hash\n" + "\n".join(rows) + f"\nw3,{drop_hash('bob@example.com')}\n")
    assert list_type(deletion.name) == "email"
    matches = match_list(read_list(deletion), read_people(people, "email"))
    assert matches == [Match("w1", ("p1", "p3")), Match("w2", ()), Match("w3", ("p2",))]
    assert [match.shared for match in matches] == [True, False, False]
    write_report(tmp_path / "report.csv", matches, [matches[2]], "e-1")
    assert (tmp_path / "report.csv").read_text().splitlines() == [
        "ID,matched,shared,erasure_id",
        "w1,yes,yes,",
        "w2,no,no,",
        "w3,yes,no,e-1",
    ]


def test_an_empty_list_matches_nobody(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("ID,Hash\n")
    assert read_list(tmp_path / "l.csv") == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "column ID"),
        ("ID\nw1\n", "column Hash"),
        ("ID,Hash\nw1,notahash\n", "line 2"),
        ("ID,Hash\n," + drop_hash("a") + "\n", "line 2"),
        ('ID,Hash\n"w1\n', "not CSV"),
    ],
)
def test_a_malformed_list_is_refused_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "l.csv").write_text(text)
    with pytest.raises(UnusableInput, match=problem):
        read_list(tmp_path / "l.csv")


def test_people_without_the_column_are_refused(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("subject_id,email\np1,a@b.c\n")
    with pytest.raises(UnusableInput, match="column phone"):
        read_people(tmp_path / "p.csv", "phone")
    with pytest.raises(UnusableInput, match=r"cannot read|No such file"):
        read_people(tmp_path / "none.csv", "phone")
