"""The tests of the project, and helpers that many of them use."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], *, within: float = 120.0, every: float = 0.05) -> T:
    """Call `look` until it returns something truthy, and return that. Fail after `within` seconds.

    Tests wait for a condition this way and never sleep for a fixed time.
    """
    deadline = time.monotonic() + within
    while not (result := look()):
        assert time.monotonic() < deadline, f"the condition did not become true within {within} s"
        time.sleep(every)
    return result


@contextmanager
def reserved_port(port: int = 0) -> Iterator[int]:
    """Reserve a free port on loopback for a server that is about to start, and return its number.

    Nobody else is given a port that is bound. The server can bind it too, because this socket does not
    listen and both set SO_REUSEADDR, which servers do.
    """
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", port))
        yield int(reservation.getsockname()[1])
