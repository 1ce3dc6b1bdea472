"""The examples of a page as a reader runs them: one after the other, in one shell and one folder."""

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
from tests.docs.pages import Block, Page

SCRIPTS = sysconfig.get_path("scripts")
START_SECONDS = 180.0
# Nothing a reader would notice, but for the time: jobs are tiny, and one core each is plenty.
QUICK = {
    "LETHE_DISPATCH_INTERVAL_SECONDS": "0.1",
    "LETHE_REQUEUE_AFTER_SECONDS": "120",
    "OMP_NUM_THREADS": "1",
}
PAGE_SECONDS = 1200.0  # patience for a machine that does ten other things


@contextmanager
def service(folder: Path) -> Iterator[dict[str, str]]:
    """`lethe up` as the guides have it; the two variables it prints, for a reader's environment."""
    out, err = folder / "out", folder / "err"
    outside = {name: value for name, value in os.environ.items() if not name.startswith("LETHE_")}
    with out.open("w") as said, err.open("w") as logged:
        running = subprocess.Popen(
            [Path(SCRIPTS, "lethe"), "up", "--data-dir", folder / "data", "--port", "0"],
            env=outside | QUICK | {"LETHE_IMPORT_ROOTS": f"file://{folder}/"},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=logged,
        )

    def answers() -> str:
        assert running.poll() is None, out.read_text() + err.read_text()
        found = re.search(r"Lethe answers at (http://\S+)", out.read_text())
        return found[1] if found else ""

    try:
        address = eventually(answers, within=START_SECONDS)
        key = re.search(r"API key\s+(lethe_\S+)", out.read_text())
        assert key is not None
        yield {"LETHE_URL": address, "LETHE_API_KEY": key[1]}
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(120)


def run(page: Page, folder: Path, service: dict[str, str]) -> None:
    """Shell blocks are sourced, so that variables last; Python blocks are programs of their own."""
    blocks = [block for block in page.blocks if runs(block)]
    scripts = folder.with_name(f"{folder.name}-blocks")
    scripts.mkdir()
    lines = ["set -eu -o pipefail"]
    for block in blocks:
        script = scripts / f"{block.line}.{block.language}"
        script.write_text(block.text)
        said = f"{scripts}/{block.line}.out"
        lines += [f"echo {block.place} > {scripts}/reached"]
        if block.language == "sh":
            lines += [f"exec 3>&1 > {said}; source {script}; exec >&3"]
        else:
            lines += [f"python {script} > {said}"]
    (scripts / "page").write_text("\n".join(lines) + "\n")
    _execute(scripts, folder, service)
    for before, shown in zip(page.blocks, page.blocks[1:], strict=False):
        if "output" in shown.tags:
            check_output(shown, (scripts / f"{before.line}.out").read_text())


def runs(block: Block) -> bool:
    return block.language in ("sh", "python") and "no-run" not in block.tags


def check_output(shown: Block, said: str) -> None:
    assert said == shown.text, f"{shown.place}: the example above prints\n{said}"


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
