"""How ranks find rank 0, which network leads to it, and how they notice its end."""

import os
import socket
import threading

import pytest

from tests import eventually
from worker.distributed import rendezvous


def _environment(server: socket.socket) -> dict[str, str]:
    host, port = server.getsockname()
    return {"MASTER_ADDR": host, "MASTER_PORT": str(port), rendezvous.AGENT_STORE: "True"}


def test_waiting_for_rank_0_ends_when_it_listens() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # not listening: a connection is refused
        waiting = threading.Thread(
            target=rendezvous.wait_until_listening, args=server.getsockname(), daemon=True
        )
        waiting.start()
        waiting.join(2 * rendezvous.POLL_SECONDS)
        assert waiting.is_alive()
        server.listen()
        waiting.join(120)
        assert not waiting.is_alive()


def test_gloo_uses_the_interface_that_leads_to_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rendezvous.INTERFACE, "set by the operator")
    rendezvous.use_interface_towards("127.0.0.1", 1)
    assert os.environ[rendezvous.INTERFACE] == "set by the operator"
    monkeypatch.delenv(rendezvous.INTERFACE)
    rendezvous.use_interface_towards("127.0.0.1", 1)
    assert os.environ[rendezvous.INTERFACE] == "lo"
    monkeypatch.delenv(rendezvous.INTERFACE)
    rendezvous.use_interface_towards("no such host.invalid", 1)
    assert rendezvous.INTERFACE not in os.environ


def test_the_loss_of_torchrun_is_reported_when_it_ends() -> None:
    gone = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        rendezvous.watch_rank_0(_environment(server), 60.0, gone.set)
        connection, _ = server.accept()
        assert not gone.is_set()
        connection.close()
        eventually(gone.is_set)


def test_a_torchrun_that_ended_before_the_watch_began_is_reported() -> None:
    gone = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        environ = _environment(server)
    rendezvous.watch_rank_0(environ, 60.0, gone.set)
    eventually(gone.is_set)


def test_outside_a_torchrun_group_nothing_is_watched() -> None:
    gone, before = threading.Event(), threading.active_count()
    rendezvous.watch_rank_0({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, 60.0, gone.set)
    assert threading.active_count() == before
    assert not gone.is_set()
