"""One host: its program, its data folder, and faults such as a power failure or a cut cable."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from app.core import process
from tests import eventually
from tests.hosts.network import Network, Problem

INIT = Path(__file__).with_name("init_process.py")


class Attempt(NamedTuple):
    """The process of an attempt, by its id on this machine, and the end of its job's id."""

    pid: int
    job: str


class Host:
    """Runs one program in its own process namespace. When the first process dies, all die."""

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
        """Say whether the host is running."""
        return self._init is not None

    def boot(self, environment: Mapping[str, str] | None = None) -> None:
        """Switch the host on, with a new environment or the previous one."""
        assert self._init is None
        if environment is not None:
            self.environment = dict(environment)
        self.network.plug_in(self.name, self.number)
        command = ["ip", "netns", "exec", self.network.namespace(self.name)]
        command += ["unshare", "--uts", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        command += [sys.executable, "-I", str(INIT), self.name, *map(str, self.program)]
        with self.log.open("ab") as log:
            self._init = process.spawn(command, env=self.environment, stdout=log, stderr=log)

    def power_off(self) -> None:
        """Cut the power: no process can clean up, and no further packet leaves."""
        self.network.cut(self.number)
        self._kill()
        self.network.throw_away(self.name)

    def close(self) -> None:
        """Kill the host if it is running."""
        if self._init is not None:
            self._kill()

    def _kill(self) -> None:
        assert self._init is not None
        process.kill(self._init)
        eventually(lambda: not self.network.processes(self.name))
        self._init = None

    def cut(self) -> None:
        """Disconnect the host from the network."""
        self.network.cut(self.number)

    def reconnect(self) -> None:
        """Connect the host to the network again."""
        self.network.reconnect(self.number)

    def attempts(self) -> list[Attempt]:
        """Return the attempts that run on this host."""
        attempts = []
        for pid in self.processes():
            program, _, job = _name_of(pid).partition(" ")
            if program == "lethe" and job:
                attempts.append(Attempt(pid, job))
        return attempts

    def processes(self) -> list[int]:
        """Return the ids of all processes of this host."""
        if not self.is_on:
            return []
        try:
            return self.network.processes(self.name)
        except Problem:
            return []

    def logged(self, *words: str) -> bool:
        """Say whether a line of the log contains all these words."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return any(all(word in line for word in words) for line in lines)


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # the process has ended
        return ""


def program(name: str) -> str:
    """Return the path of an installed program."""
    path = shutil.which(name)
    assert path, name
    return path
