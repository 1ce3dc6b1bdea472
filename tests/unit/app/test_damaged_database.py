"""SQLite after a crash of the machine: a write-ahead log that ends early costs its last commits."""

import shutil
from pathlib import Path

import pytest
from sqlalchemy import text

from app.db.session import Database


def _copy_with_short_log(source: Path, target: Path, cut: int) -> Database:
    for end in ("", "-wal"):
        shutil.copy(f"{source}{end}", f"{target}{end}")
    log = Path(f"{target}-wal")
    log.write_bytes(log.read_bytes()[:-cut])
    return Database(f"sqlite:///{target}")


@pytest.mark.parametrize("cut", [1, 100, 4096, 4120])
def test_a_truncated_write_ahead_log_loses_whole_commits_from_its_end(tmp_path: Path, cut: int) -> None:
    live = Database(f"sqlite:///{tmp_path / 'live.db'}")
    with live.writing() as session:
        session.execute(text("CREATE TABLE entries (number INTEGER PRIMARY KEY, content TEXT)"))
    for number in range(5):
        with live.writing() as session:
            session.execute(text("INSERT INTO entries VALUES (:n, :c)"), {"n": number, "c": "x" * 500})
    damaged = _copy_with_short_log(tmp_path / "live.db", tmp_path / "damaged.db", cut)
    with damaged.reading() as session:
        assert session.scalar(text("PRAGMA integrity_check")) == "ok"
        numbers = list(session.scalars(text("SELECT number FROM entries ORDER BY number")))
    assert numbers == list(range(len(numbers)))
    assert 3 <= len(numbers) <= 4
    with damaged.writing() as session:
        session.execute(text("INSERT INTO entries VALUES (9, 'afterwards')"))
    damaged.close()
    live.close()
