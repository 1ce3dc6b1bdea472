"""A switch in a namespace of its own, hosts plugged into it, and one cable to this process.

Nothing of the machine's own network changes but for that one cable, which goes when the switch goes.
"""

import os
import re
import secrets
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

BLOCK = "198.18"  # set aside for tests of network devices (RFC 2544): nobody routes it


class Problem(Exception):
    """A command of `ip` that failed; the message is what it said."""


def ip(*arguments: str) -> str:
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=60, check=False)
    except OSError as problem:
        raise Problem(str(problem)) from None
    if done.returncode != 0:
        raise Problem(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def missing() -> str:
    """Why hosts cannot be made here, or nothing."""
    if os.geteuid() != 0:
        return "not root"
    for tool in ("ip", "unshare", "setpriv"):
        if shutil.which(tool) is None:
            return f"no `{tool}` (packages iproute2, util-linux)"
    try:
        with Network() as network:
            network.plug_in("probe", 2)
    except Problem as problem:
        return f"namespaces are not permitted ({problem})"
    return ""


def _sweep() -> None:
    """Namespaces of runs that were killed: their processes died with them, and these did not."""
    for line in ip("netns", "list").splitlines():
        named = re.match(r"lethe-(\d+)-[0-9a-f]{4}-\w+", line)
        if named and not Path("/proc", named[1]).exists():
            with suppress(Problem):
                ip("netns", "delete", named[0])


def _free_subnet() -> str:
    """None that another run on this machine uses."""
    known = ip("-4", "address") if shutil.which("ip") else ""
    return next(
        subnet for _ in range(1000) if f" {(subnet := f'{BLOCK}.{secrets.randbelow(256)}')}." not in known
    )


class Network:
    def __init__(self) -> None:
        self.tag = f"{os.getpid()}-{secrets.token_hex(2)}"
        self.subnet = _free_subnet()
        self.switch = self.namespace("switch")
        self._made: list[str] = []
        self._cables: list[str] = []

    def __enter__(self) -> "Network":
        _sweep()
        try:
            ip("netns", "add", self.switch)
            self._made.append(self.switch)
            ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
            ip("-n", self.switch, "link", "set", "bridge", "up")
            self._reach_it_from_here()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for namespace in reversed(self._made):
            with suppress(Problem):
                ip("netns", "delete", namespace)
        for cable in self._cables:  # the kernel takes its time over a namespace
            with suppress(Problem):
                ip("link", "delete", cable)
        self._made.clear()
        self._cables.clear()

    def namespace(self, name: str) -> str:
        return f"lethe-{self.tag}-{name}"

    def address(self, number: int) -> str:
        return f"{self.subnet}.{number}"

    def plug_in(self, name: str, number: int) -> None:
        """A new host; one that was there before keeps its address and hardware address, and nothing else."""
        namespace, port = self.namespace(name), f"port{number}"
        ip("netns", "add", namespace)
        self._made.append(namespace)
        self._cable(port, "eth0", namespace, number)
        for device, *change in (("eth0", "up"), ("lo", "up")):
            ip("-n", namespace, "link", "set", device, *change)
        ip("-n", namespace, "address", "add", f"{self.address(number)}/24", "dev", "eth0")

    def throw_away(self, name: str) -> None:
        """Whoever talked to it never hears of it again: not even that its connections are closed."""
        namespace = self.namespace(name)
        ip("netns", "delete", namespace)
        self._made.remove(namespace)

    def cut(self, number: int) -> None:
        """Pull the cable out of the switch; both ends keep what they believe."""
        ip("-n", self.switch, "link", "set", f"port{number}", "down")

    def mend(self, number: int) -> None:
        ip("-n", self.switch, "link", "set", f"port{number}", "up")

    def processes(self, name: str) -> list[int]:
        return [int(pid) for pid in ip("netns", "pids", self.namespace(name)).split()]

    def _cable(self, port: str, device: str, where: str, number: int) -> None:
        with suppress(Problem):  # of a host that was thrown away a moment ago
            ip("-n", self.switch, "link", "delete", port)
        hardware = f"02:00:c6:12:00:{number:02x}"  # the same after a restart: nobody's ARP table is wrong
        peer = ["peer", "name", device, "address", hardware, "netns", where]
        ip("-n", self.switch, "link", "add", port, "type", "veth", *peer)
        ip("-n", self.switch, "link", "set", port, "master", "bridge", "up")

    def _reach_it_from_here(self) -> None:
        cable = f"lethe-{secrets.token_hex(3)}"
        self._cable("port1", cable, str(os.getpid()), 1)
        self._cables.append(cable)
        ip("address", "add", f"{self.address(1)}/24", "dev", cable)
        ip("link", "set", cable, "up")
