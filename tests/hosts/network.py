"""A virtual switch in its own namespace, the hosts connected to it, and one virtual cable to this process.

That cable is the only change to the machine's own network. It disappears with the switch.
"""

import os
import re
import secrets
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

BLOCK = "198.18"  # reserved for network tests (RFC 2544) and not routed


class Problem(Exception):
    """An `ip` command failed. The message is its error output."""


def ip(*arguments: str) -> str:
    """Run an `ip` command and return its output."""
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=60, check=False)
    except OSError as problem:
        raise Problem(str(problem)) from None
    if done.returncode != 0:
        raise Problem(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def missing() -> str:
    """Return why hosts cannot be created here, or an empty string."""
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
    """Delete namespaces left behind by test runs that were killed."""
    for line in ip("netns", "list").splitlines():
        named = re.match(r"lethe-(\d+)-[0-9a-f]{4}-\w+", line)
        if named and not Path("/proc", named[1]).exists():
            with suppress(Problem):
                ip("netns", "delete", named[0])


def _free_subnet() -> str:
    """Return a subnet that no other test run on this machine uses."""
    known = ip("-4", "address") if shutil.which("ip") else ""
    return next(
        subnet for _ in range(1000) if f" {(subnet := f'{BLOCK}.{secrets.randbelow(256)}')}." not in known
    )


class Network:
    """A switch with its hosts, usable as a context manager."""

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
            self._connect_this_machine()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for namespace in reversed(self._made):
            with suppress(Problem):
                ip("netns", "delete", namespace)
        for cable in self._cables:  # deleting a namespace takes the kernel a while
            with suppress(Problem):
                ip("link", "delete", cable)
        self._made.clear()
        self._cables.clear()

    def namespace(self, name: str) -> str:
        """Return the name of a host's namespace."""
        return f"lethe-{self.tag}-{name}"

    def address(self, number: int) -> str:
        """Return the IP address of a host."""
        return f"{self.subnet}.{number}"

    def plug_in(self, name: str, number: int) -> None:
        """Add a host. A host with the same number as an earlier one gets the same addresses."""
        namespace, port = self.namespace(name), f"port{number}"
        ip("netns", "add", namespace)
        self._made.append(namespace)
        self._cable(port, "eth0", namespace, number)
        for device, *change in (("eth0", "up"), ("lo", "up")):
            ip("-n", namespace, "link", "set", device, *change)
        ip("-n", namespace, "address", "add", f"{self.address(number)}/24", "dev", "eth0")

    def throw_away(self, name: str) -> None:
        """Remove a host without closing its connections: its peers hear nothing more."""
        namespace = self.namespace(name)
        ip("netns", "delete", namespace)
        self._made.remove(namespace)

    def cut(self, number: int) -> None:
        """Unplug a host from the switch. Connections stay open at both ends."""
        ip("-n", self.switch, "link", "set", f"port{number}", "down")

    def reconnect(self, number: int) -> None:
        """Plug a host in again."""
        ip("-n", self.switch, "link", "set", f"port{number}", "up")

    def processes(self, name: str) -> list[int]:
        """Return the ids of all processes in a host's namespace."""
        return [int(pid) for pid in ip("netns", "pids", self.namespace(name)).split()]

    def _cable(self, port: str, device: str, where: str, number: int) -> None:
        with suppress(Problem):  # left from a host that was just removed
            ip("-n", self.switch, "link", "delete", port)
        hardware = f"02:00:c6:12:00:{number:02x}"  # stable, so that ARP tables stay valid after a restart
        peer = ["peer", "name", device, "address", hardware, "netns", where]
        ip("-n", self.switch, "link", "add", port, "type", "veth", *peer)
        ip("-n", self.switch, "link", "set", port, "master", "bridge", "up")

    def _connect_this_machine(self) -> None:
        cable = f"lethe-{secrets.token_hex(3)}"
        self._cable("port1", cable, str(os.getpid()), 1)
        self._cables.append(cable)
        ip("address", "add", f"{self.address(1)}/24", "dev", cable)
        ip("link", "set", cable, "up")
