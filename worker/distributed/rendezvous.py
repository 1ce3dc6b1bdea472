"""How the ranks of an attempt find each other, and how they notice that rank 0 is gone.

Ranks on one machine meet in a private file, ranks on several machines at rank 0's address. Nothing here
imports torch, so ranks can be started before it is loaded.
"""

import fcntl
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

FILE = "RANKS_FILE"
POLL_SECONDS = 0.2
CONNECT_SECONDS = 5.0
INTERFACE = "GLOO_SOCKET_IFNAME"
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_SIOCGIFADDR = 0x8915  # Linux: get the IPv4 address of an interface
_LONGEST_KEEPALIVE = 32767  # seconds, the kernel's limit


@dataclass(frozen=True)
class Rendezvous:
    """A rank's place among the others, and where they meet: in `file`, or at `host`:`port`."""

    rank: int
    size: int
    local_rank: int
    local_ranks: int
    file: str = ""
    host: str = ""
    port: int = 0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Rendezvous":
        """Read the variables that torchrun sets.

        The ranks meet at the port after torchrun's own, because torchrun may be listening on that one.
        """
        return cls(
            rank=int(environ["RANK"]),
            size=int(environ["WORLD_SIZE"]),
            local_rank=int(environ.get("LOCAL_RANK", "0")),
            local_ranks=int(environ.get("LOCAL_WORLD_SIZE", "1")),
            file=environ.get(FILE, ""),
            host=environ.get("MASTER_ADDR", ""),
            port=int(environ.get("MASTER_PORT", "29500")) + 1,
        )

    def environment(self) -> dict[str, str]:
        """Return the variables from which a follower on this machine reads its place."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_ranks),
            FILE: self.file,
        }


def process_group(environ: Mapping[str, str]) -> Rendezvous | None:
    """Return this process's place in the group that torchrun started, or None outside such a group."""
    if "RANK" not in environ or int(environ.get("WORLD_SIZE", "1")) < 2:
        return None
    return Rendezvous.from_environment(environ)


def wait_until_listening(host: str, port: int) -> None:
    """Wait until something listens at this address.

    Torch's own wait backs off until it tries only twice a minute.
    """
    while True:
        with suppress(OSError), socket.create_connection((host, port), CONNECT_SECONDS):
            return
        time.sleep(POLL_SECONDS)


def use_interface_towards(host: str, port: int) -> None:
    """Make gloo use the network interface that leads to this host, unless one is configured.

    By default gloo takes the interface that this machine's name resolves to. That may be the loopback
    device, or a network that the other ranks are not in.
    """
    if INTERFACE not in os.environ and (name := _interface_towards(host, port)):
        os.environ[INTERFACE] = name


def _interface_towards(host: str, port: int) -> str:
    """Return the interface that packets to this host leave by, or "" if it cannot be determined."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # connecting a datagram socket sends nothing
        address = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""


def watch_rank_0(environ: Mapping[str, str], timeout: float, on_loss: Callable[[], None]) -> None:
    """Call `on_loss` when rank 0's torchrun ends, or when its host does not answer for `timeout` seconds.

    Torchrun listens at its address for as long as it lives, but does not watch torchruns on other hosts.
    Without this watch, a restarted torchrun would wait for ranks that still wait for the previous one.
    """
    if environ.get(AGENT_STORE) != "True":
        return
    address = (environ["MASTER_ADDR"], int(environ["MASTER_PORT"]))

    def watch() -> None:
        with suppress(OSError), socket.create_connection(address, timeout) as connection:
            _enable_keepalive(connection, timeout)
            while connection.recv(4096):
                pass
        on_loss()

    threading.Thread(target=watch, name="rank 0", daemon=True).start()


def _enable_keepalive(connection: socket.socket, timeout: float) -> None:
    """Let the kernel probe the other host, which answers however busy its processes are."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = min(timeout, _LONGEST_KEEPALIVE)
    options = {"TCP_KEEPIDLE": seconds / 2, "TCP_KEEPINTVL": seconds / 8, "TCP_KEEPCNT": 4}
    for name, value in options.items():
        if number := getattr(socket, name, None):  # not every system has all three
            connection.setsockopt(socket.IPPROTO_TCP, number, max(1, int(value)))
