"""Reading the subjects of a bulk erasure."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.gateway.erasures.bulk import MAX_LINE_BYTES, read_subjects
from app.gateway.errors import InvalidRequest, UnsupportedMedia

NDJSON, CSV = "application/x-ndjson", "text/csv; charset=utf-8"
identifiers = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=40)


def _chunked(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


@given(st.lists(identifiers, min_size=1), st.integers(1, 50))
def test_ndjson_reads_back_whatever_the_chunks(people: list[str], size: int) -> None:
    body = "".join(json.dumps({"subject_id": person}, ensure_ascii=False) + "\n" for person in people)
    assert list(read_subjects(NDJSON, _chunked(body.encode(), size))) == people


@given(st.lists(st.from_regex(r"[a-z0-9,\" ]{0,10}[a-z0-9]", fullmatch=True), min_size=1), st.integers(1, 50))
def test_csv_reads_back_whatever_the_chunks(people: list[str], size: int) -> None:
    quoted = [person.replace('"', '""') for person in people]
    body = "other,subject_id\r\n" + "".join(f'x,"{person}"\r\n' for person in quoted)
    assert list(read_subjects(CSV, _chunked(body.encode(), size))) == people


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (NDJSON, b"", "no subject"),
        (NDJSON, b'{"subject_id": "a"}\n{nope\n', "Line 2 is not JSON"),
        (NDJSON, b'{"subject_id": 7}\n', "Line 1: subject_id"),
        (NDJSON, b'{"other": "a"}\n', "Line 1: subject_id"),
        (NDJSON, b'{"subject_id": "a\\u0000b"}\n', "Line 1: subject_id"),
        (NDJSON, b'"' + b"a" * MAX_LINE_BYTES + b'"\n', "Line 1 is longer"),
        (NDJSON, b"\xff\xfe\n", "Line 1 is not UTF-8"),
        (CSV, b"name\na\n", "first line must name"),
        (CSV, b"subject_id\n", "no subject"),
        (CSV, b"x,subject_id\nonly\n", "Line 2: subject_id"),
        (CSV, b'subject_id\n"open\n', "Line 2 is not CSV"),
    ],
)
def test_a_bad_line_is_named_and_not_quoted(kind: str, body: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest) as problem:
        list(read_subjects(kind, [body]))
    assert said in problem.value.detail


def test_other_media_are_refused() -> None:
    with pytest.raises(UnsupportedMedia):
        list(read_subjects("application/json", [b"{}"]))
