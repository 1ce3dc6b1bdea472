"""`lethe up` on a folder of its own, and a client for it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from client import Lethe, LetheError

console = Console()


class DemoFailed(Exception):
    pass


@contextmanager
def service(folder: Path) -> Iterator[Lethe]:
    """Started as a user starts it, stopped as by Ctrl-C."""
    command = [sys.executable, "-m", "client.cli", "up", "--data-dir", str(folder / "data"), "--port", "0"]
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=_environment())
    try:
        address, key = _until_ready(running)
        with Lethe(address, key) as lethe:
            yield lethe
    except (DemoFailed, LetheError):
        console.print((folder / "log").read_text()[-3000:], markup=False)
        raise
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(60)


def _until_ready(running: "subprocess.Popen[str]") -> tuple[str, str]:
    assert running.stdout is not None
    key = ""
    for line in running.stdout:
        if found := re.search(r"API key\s+(lethe_\S+)", line):
            key = found[1]
        if found := re.search(r"answers at (http://\S+)", line):
            return found[1], key
    raise DemoFailed("the service did not start")


def _environment() -> dict[str, str]:
    """No setting of the surroundings shall change the demonstration."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LETHE_")}
