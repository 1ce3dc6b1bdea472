"""One host: its programs, its own data folder, and what can happen to a machine."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from app import process
from tests import eventually
from tests.hosts.network import Network, Problem

KEEPER = Path(__file__).with_name("keeper.py")


class Attempt(NamedTuple):
    """A process at work, as this machine numbers it."""

    pid: int
    job: str


class Host:
    """Runs one program. Its processes are those of a process namespace: with the first, all die at once."""

    def __init__(
        self, network: Network, name: str, number: int, folder: Path, program: Sequence[str | Path]
    ) -> None:
        self.network, self.name, self.number = network, name, number
        self.folder, self.log = folder / name, folder / f"{name}.log"
        self.folder.mkdir()
        self.address = network.address(number)
        self.program, self.environment = program, dict[str, str]()
        self._init: subprocess.Popen[bytes] | None = None

    @property
    def is_on(self) -> bool:
        return self._init is not None

    def boot(self, environment: Mapping[str, str] | None = None) -> None:
        assert self._init is None
        if environment is not None:
            self.environment = dict(environment)
        self.network.plug_in(self.name, self.number)
        command = ["ip", "netns", "exec", self.network.namespace(self.name)]
        command += ["unshare", "--uts", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        command += [sys.executable, "-I", str(KEEPER), self.name, *map(str, self.program)]
        with self.log.open("ab") as log:
            self._init = process.spawn(command, env=self.environment, stdout=log, stderr=log)

    def power_off(self) -> None:
        """Nobody is told: no process can say goodbye, and no packet leaves any more."""
        self.network.cut(self.number)
        self._kill()
        self.network.throw_away(self.name)

    def close(self) -> None:
        if self._init is not None:
            self._kill()

    def _kill(self) -> None:
        assert self._init is not None
        process.kill(self._init)
        eventually(lambda: not self.network.processes(self.name))
        self._init = None

    def cut(self) -> None:
        self.network.cut(self.number)

    def mend(self) -> None:
        self.network.mend(self.number)

    def attempts(self) -> list[Attempt]:
        """Of a worker: what it is working on."""
        found = []
        for pid in self.processes():
            words = _command_of(pid)
            if "worker.attempt" in words:
                found.append(Attempt(pid, words[words.index("worker.attempt") + 1]))
        return found

    def processes(self) -> list[int]:
        if not self.is_on:
            return []
        try:
            return self.network.processes(self.name)
        except Problem:
            return []

    def said(self, *words: str) -> bool:
        """Whether one line of its log has all these words."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return any(all(word in line for word in words) for line in lines)


def _command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:  # it ended meanwhile
        return []


def program(name: str) -> str:
    found = shutil.which(name)
    assert found, name
    return found
