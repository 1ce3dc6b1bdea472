"""`make demo` ends by itself, with a verified certificate."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def test_the_demonstration_ends_well() -> None:
    done = subprocess.run([sys.executable, "-m", "bench.demo"], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "VERIFIED." in done.stdout
    assert "records erased" in done.stdout
