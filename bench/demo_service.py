"""Start `lethe up` in a temporary folder, with a client for it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from app.core.settings import PREFIX
from lethe import Lethe, LetheError

console = Console()


class DemoFailed(Exception):
    """The demo cannot continue. The message says why."""


@contextmanager
def service(folder: Path, **settings: str) -> Iterator[Lethe]:
    """Start the service as a user would, with these settings, and stop it like Ctrl-C."""
    command = [sys.executable, "-m", "lethe.cli", "up", "--data-dir", str(folder / "data"), "--port", "0"]
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=_environment(settings)
        )
    try:
        address, key = _until_ready(running)
        with Lethe(address, key) as lethe:
            yield lethe
    except (DemoFailed, LetheError):
        console.print((folder / "log").read_text()[-3000:], markup=False)
        raise
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(300)


def _until_ready(running: "subprocess.Popen[str]") -> tuple[str, str]:
    assert running.stdout is not None
    key = ""
    for line in running.stdout:
        if secret := re.search(r"lethe_[\w-]{20,}", line):
            key = secret[0]
        if address := re.search(r"http://127\.0\.0\.1:\d+", line):
            return address[0], key
    raise DemoFailed("the service did not start")


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with these settings, and without those of another deployment."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return inherited | {PREFIX + name.upper(): value for name, value in settings.items()}
