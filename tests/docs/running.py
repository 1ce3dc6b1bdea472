"""Run the examples of a page like a reader would: in order, in one shell and one folder."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import eventually
from tests.docs.pages import ROOT, Block, Page

SCRIPTS = sysconfig.get_path("scripts")
START_SECONDS = 180.0
# These only make the examples run faster: the jobs are tiny, and one core each is plenty.
QUICK = {
    "LETHE_DISPATCH_INTERVAL_SECONDS": "0.1",
    "LETHE_REQUEUE_AFTER_SECONDS": "120",
    "OMP_NUM_THREADS": "1",
}
PAGE_SECONDS = 1200.0  # enough for a busy machine
DATA_DIR = "LETHE_TEST_DATA_DIR"


@contextmanager
def service(folder: Path) -> Iterator[dict[str, str]]:
    """Start `lethe up` as the guides say, and return the variables that a reader sets from its output."""
    out, err = folder / "out", folder / "err"
    outside = {name: value for name, value in os.environ.items() if not name.startswith("LETHE_")}
    with out.open("w") as printed, err.open("w") as logged:
        running = subprocess.Popen(
            [Path(SCRIPTS, "lethe"), "up", "--data-dir", folder / "data", "--port", "0"],
            env=outside | QUICK | {"LETHE_IMPORT_ROOTS": f"*=file://{folder}/"},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=logged,
        )

    def answers() -> str:
        assert running.poll() is None, out.read_text() + err.read_text()
        address = re.search(r"http://127\.0\.0\.1:\d+", out.read_text())
        return address[0] if address else ""

    try:
        address = eventually(answers, within=START_SECONDS)
        key = re.search(r"lethe_[\w-]{20,}", out.read_text())
        assert key is not None
        yield {"LETHE_URL": address, "LETHE_API_KEY": key[0], DATA_DIR: str(folder / "data")}
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(300)


def run(page: Page, folder: Path, service: dict[str, str]) -> None:
    """Run every block of a page and check its output.

    Shell blocks are sourced, so that variables stay set. Each Python block is a program of its own.
    """
    blocks = [block for block in page.blocks if runs(block)]
    scripts = folder.with_name(f"{folder.name}-blocks")
    scripts.mkdir()
    # A reader's shell is in the clone, where `lethe up` has its data and where the examples are.
    (folder / "lethe-data").symlink_to(service[DATA_DIR])
    (folder / "examples").symlink_to(ROOT / "examples")
    lines = ["set -eu -o pipefail"]
    for block in blocks:
        script = scripts / f"{block.line}.{block.language}"
        script.write_text(block.text)
        output = f"{scripts}/{block.line}.out"
        lines += [f"echo {block.place} > {scripts}/reached"]
        if block.language == "sh":
            lines += [f"exec 3>&1 > {output}; source {script}; exec >&3"]
        else:
            lines += [f"python {script} > {output}"]
    (scripts / "page").write_text("\n".join(lines) + "\n")
    _execute(scripts, folder, service)
    for example, expected in zip(page.blocks, page.blocks[1:], strict=False):
        if "output" in expected.tags:
            check_output(expected, (scripts / f"{example.line}.out").read_text())


def runs(block: Block) -> bool:
    """Say whether a block is an example that can be run."""
    return block.language in ("sh", "python") and "no-run" not in block.tags


def check_output(expected: Block, printed: str) -> None:
    """Check that an example printed what the page says."""
    assert printed == expected.text, f"{expected.place}: the example above prints\n{printed}"


def _execute(scripts: Path, folder: Path, service: dict[str, str]) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LETHE_")}
    path = os.pathsep.join((SCRIPTS, str(Path(sys.executable).parent), environment["PATH"]))
    local = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [shutil.which("bash") or "bash", scripts / "page"],
        cwd=folder,
        env=environment | service | local | {"PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PAGE_SECONDS,
        check=False,
    )
    reached = (scripts / "reached").read_text().strip() if (scripts / "reached").exists() else "the start"
    outputs = sorted(scripts.glob("*.out"), key=lambda file: file.stat().st_mtime_ns)
    last = outputs[-1].read_text()[-3000:] if outputs else ""
    assert ended.returncode == 0, f"{reached} ended with {ended.returncode}:\n{last}\n{ended.stdout[-3000:]}"
