"""Processes that the service starts import its own packages, whatever lies in the current folder."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_module_is_started_without_the_current_folder_on_its_path() -> None:
    sources = [path for name in ("app", "worker") for path in (ROOT / name).rglob("*.py")]
    starts = [line for path in sources for line in path.read_text().splitlines() if '"-m"' in line]
    assert len(starts) >= 3, "a part of `lethe up`, an attempt and a follower"
    assert [line for line in starts if not re.search(r'"-P", "-m"', line)] == []


def test_a_package_named_app_in_the_current_folder_is_not_imported(tmp_path: Path) -> None:
    for name in ("app", "worker"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('a stranger was imported')")
    for flags, stranger in (((), True), (("-P",), False)):
        command = [sys.executable, *flags, "-m", "lethe.cli", "gateway", "--help"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ("a stranger was imported" in done.stderr) == stranger
        assert (done.returncode == 0) != stranger
