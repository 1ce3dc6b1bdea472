"""`lethe up` on a folder of its own, and the few calls the demonstration makes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

WAIT_SECONDS = 180.0
console = Console()


class DemoFailed(Exception):
    pass


class Api:
    """The public API, with every answer checked."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def call(self, method: str, path: str, **body: Any) -> Any:
        return json.loads(self._take(method, path, **body))

    def download(self, path: str) -> bytes:
        return self._take("GET", path)

    def _take(self, method: str, path: str, **body: Any) -> bytes:
        answer = self._client.request(method, path, **body)
        if answer.is_error:
            raise DemoFailed(f"{method} {path}: {answer.text}")
        return answer.content

    def wait(self, path: str, *, good: str, bad: tuple[str, ...]) -> Any:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            found = self.call("GET", path)
            if found["state"] == good:
                return found
            if found["state"] in bad:
                raise DemoFailed(f"{path} is {found['state']}: {found.get('reasons') or found.get('error')}")
            time.sleep(0.2)
        raise DemoFailed(f"{path} did not end within {WAIT_SECONDS:.0f} s")

    def report(self, path: str) -> Any:
        """Ask for an evaluation or audit and wait for its result."""
        asked = self.call("POST", path)
        return self.wait(f"{path}/{asked['id']}", good="completed", bad=("failed",))["result"]

    def events(self, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Server-sent events until the stream ends."""
        kind = ""
        with self._client.stream("GET", path, timeout=WAIT_SECONDS) as stream:
            for line in stream.iter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    yield kind, json.loads(value)


@contextmanager
def service(folder: Path) -> Iterator[Api]:
    """Started as a user starts it, stopped as by Ctrl-C."""
    command = [sys.executable, "-m", "client.cli", "up", "--data-dir", str(folder / "data"), "--port", "0"]
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=_environment())
    try:
        address, key = _until_ready(running)
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=address, headers=headers, timeout=60, trust_env=False) as client:
            yield Api(client)
    except DemoFailed:
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
