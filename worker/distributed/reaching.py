"""How the ranks of a process group reach rank 0, by which network, and how they learn that it is gone.

Known before torch is, like a meeting.
"""

import fcntl
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

LOOK_SECONDS = 0.2
CONNECT_SECONDS = 5.0
INTERFACE = "GLOO_SOCKET_IFNAME"
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface
_LONGEST_KEEPALIVE = 32767  # seconds; the kernel takes no more


def wait_for(host: str, port: int) -> None:
    """Until someone listens there. Torch by itself looks less and less often, twice a minute in the end."""
    while True:
        with suppress(OSError), socket.create_connection((host, port), CONNECT_SECONDS):
            return
        time.sleep(LOOK_SECONDS)


def stay_in_the_network_of(host: str, port: int) -> None:
    """Gloo would take what this machine's name stands for: the loopback device, or a network of others."""
    if INTERFACE not in os.environ and (name := _interface_to(host, port)):
        os.environ[INTERFACE] = name


def _interface_to(host: str, port: int) -> str:
    """The one that packets to this host leave by, or nothing where that cannot be told."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # a datagram's: nothing is sent
        mine = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # one without an address
                found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(found[20:24]) == mine:
                    return name
    return ""


def tell_when_gone(environ: Mapping[str, str], silence: float, tell: Callable[[], None]) -> None:
    """Calls `tell` when rank 0's torchrun has ended, or its host was silent for so many seconds.

    Torchrun listens at its address as long as it lives. It does not look after the others of its kind: one
    that comes after it would wait for processes that still wait for the last one.
    """
    if environ.get(AGENT_STORE) != "True":
        return
    where = (environ["MASTER_ADDR"], int(environ["MASTER_PORT"]))

    def hold() -> None:
        with suppress(OSError), socket.create_connection(where, silence) as held:
            _keep_alive(held, silence)
            while held.recv(4096):
                pass
        tell()

    threading.Thread(target=hold, name="rank 0", daemon=True).start()


def _keep_alive(held: socket.socket, silence: float) -> None:
    """The kernel asks the other host's, which answers however busy its processes are."""
    held.settimeout(None)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    whole = min(silence, _LONGEST_KEEPALIVE)
    for name, value in {"TCP_KEEPIDLE": whole / 2, "TCP_KEEPINTVL": whole / 8, "TCP_KEEPCNT": 4}.items():
        if number := getattr(socket, name, None):  # not every system has all three
            held.setsockopt(socket.IPPROTO_TCP, number, max(1, int(value)))
