"""Compiled products equal the explicit ones."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
from tests.unit.engine.network_problems import TINY, problem, nearby
import torch
from worker.engine.networks.objective import NetworkObjective

plain = problem(TINY[0])
compiled = NetworkObjective(plain.rows, TINY[0], plain.lam, plain.anchor, compiled=True)
w = nearby(plain)
v = torch.linspace(-1, 1, plain.dimension, dtype=torch.float64)
torch.testing.assert_close(compiled.hvp(w, v), plain.hvp(w, v), rtol=1e-12, atol=1e-13)
print("the same")
"""


def test_compiled_products_are_those_written_out(tmp_path: Path) -> None:
    """Runs in its own process, because the compiler emits warnings, starts threads and leaves files."""
    if shutil.which("g++") is None:
        pytest.skip("NOT TESTED: compiled products; there is no `g++` on the PATH")
    paths = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[3])))
    more = {
        "PYTHONPATH": paths,
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    command = [sys.executable, "-W", "ignore", "-c", CODE]
    done = subprocess.run(
        command, env={**os.environ, **more}, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.stdout.strip() == "the same", done.stderr
