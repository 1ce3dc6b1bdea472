"""Workers may share the file with the newest tree head."""

from pathlib import Path

import pytest

from app.db import rollback_guard


def test_workers_that_write_the_file_at_the_same_time_do_not_share_a_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In containers, several workers have the same process id."""
    file, drafts = tmp_path / "log" / "head", []
    replace = Path.replace

    def interrupted(draft: Path, target: Path) -> Path:
        drafts.append(draft.name)
        if len(drafts) == 1:
            rollback_guard.write(file, "the head of the other worker")
        return replace(draft, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    rollback_guard.write(file, "the head of this worker")
    assert len(set(drafts)) == 2
    assert file.read_text() == "the head of this worker"
    assert [each.name for each in file.parent.iterdir()] == ["head"]


def test_a_write_that_fails_leaves_the_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "head"
    rollback_guard.write(file, "before")

    def full(*_: object) -> None:
        raise OSError("full")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="full"):
        rollback_guard.write(file, "after")
    assert file.read_text() == "before"
    assert [each.name for each in tmp_path.iterdir()] == ["head"]
