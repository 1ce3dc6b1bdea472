"""`make demo` ends by itself, with a good model, a verified certificate and a report."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    """Nothing here depends on chance: tests/unit/test_demo.py bounds the effect of the noise on the score."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "bench.demo"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = " ".join(done.stdout.split())
    assert "VERIFIED. This proves: + that" in text
    assert "It does not prove: - that" in text
    assert text.count("✗ NOT VERIFIED") == 4
    found = re.search(r"F1 was ([\d.]+) % before and is ([\d.]+) % now", text)
    assert found is not None
    assert min(float(found[1]), float(found[2])) >= 97
    attacked = re.search(r"(\d+) times in 100 on the original model, and (\d+) times in 100", text)
    assert attacked is not None
    assert int(attacked[1]) > 70  # of a model without noise, so this figure is always the same
    assert int(attacked[2]) < 65
    _check_report((tmp_path / "lethe-report" / "index.html").read_text())


def _check_report(page: str) -> None:
    """The report is complete, and it loads nothing."""
    assert page.count("<svg") == 4
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    assert re.findall(r"(?:src|href)=[\"'](?!#)[^\"']*", page) == []
    assert "url(http" not in page
