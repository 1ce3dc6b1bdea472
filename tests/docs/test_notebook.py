"""The notebook runs from its first cell to its last, and starts and stops its own service."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import eventually
from tests.docs.pages import ROOT

pytestmark = pytest.mark.slow
NOTEBOOK = ROOT / "examples" / "first_certificate.ipynb"


def test_the_notebook_runs_and_leaves_no_process(tmp_path: Path) -> None:
    shutil.copy(NOTEBOOK, tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LETHE_")}
    environment |= {"TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", "from nbclient.cli import main; main()", "--inplace", NOTEBOOK.name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    cells = json.loads((tmp_path / NOTEBOOK.name).read_text())["cells"]
    printed = "".join("".join(output.get("text", "")) for cell in cells for output in cell.get("outputs", ()))
    assert "completed" in printed
    assert "verified: True" in printed
    eventually(lambda: not [p for p in psutil.process_iter() if any(str(tmp_path) in w for w in _words(p))])


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_the_notebook_is_stored_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
