"""Long files are sent in chunks: neither line by line nor as a whole."""

from collections.abc import Iterator

from app.gateway import csv_files


def test_lines_are_joined_to_chunks_of_bounded_size() -> None:
    taken = 0

    def rows() -> Iterator[tuple[int, str]]:
        nonlocal taken
        for taken in range(1, 20_001):
            yield taken, "é" * 20

    chunks = csv_files.in_chunks(csv_files.csv_lines(("number", "text"), rows()))
    first = next(chunks)
    assert csv_files.CHUNK_BYTES <= len(first) < csv_files.CHUNK_BYTES + 100
    assert taken < 2_000, "only the rows of the first chunk were read"
    rest = list(chunks)
    assert len(rest) < 20
    lines = b"".join((first, *rest)).decode().splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("number,text", "20000," + "é" * 20, 20_001)


def test_nothing_is_sent_for_nothing() -> None:
    assert list(csv_files.in_chunks([])) == []
