"""How ranks find rank 0, the network to it, and its end."""

import os
import socket
import threading

import pytest

from tests import eventually
from worker.distributed import reaching


def _environment(server: socket.socket) -> dict[str, str]:
    host, port = server.getsockname()
    return {"MASTER_ADDR": host, "MASTER_PORT": str(port), reaching.AGENT_STORE: "True"}


def test_whoever_waits_for_rank_0_goes_on_when_it_listens() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # not listening: a connection is refused
        waiting = threading.Thread(target=reaching.wait_for, args=server.getsockname(), daemon=True)
        waiting.start()
        waiting.join(2 * reaching.LOOK_SECONDS)
        assert waiting.is_alive()
        server.listen()
        waiting.join(30)
        assert not waiting.is_alive()


def test_gloo_stays_on_the_loopback_device_when_rank_0_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(reaching.INTERFACE, "taken from whoever set it")
    reaching.stay_in_the_network_of("127.0.0.1", 1)
    assert os.environ[reaching.INTERFACE] == "taken from whoever set it"
    monkeypatch.delenv(reaching.INTERFACE)
    reaching.stay_in_the_network_of("127.0.0.1", 1)
    assert os.environ[reaching.INTERFACE] == "lo"
    monkeypatch.delenv(reaching.INTERFACE)
    reaching.stay_in_the_network_of("no such host.invalid", 1)
    assert reaching.INTERFACE not in os.environ


def test_the_end_of_torchrun_is_told_and_not_before() -> None:
    gone = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        reaching.tell_when_gone(_environment(server), 60.0, gone.set)
        connection, _ = server.accept()
        assert not gone.is_set()
        connection.close()
        eventually(gone.is_set)


def test_a_torchrun_that_ended_before_anyone_asked_is_told_too() -> None:
    gone = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        environ = _environment(server)
    reaching.tell_when_gone(environ, 60.0, gone.set)
    eventually(gone.is_set)


def test_processes_that_torchrun_did_not_start_are_told_nothing() -> None:
    gone, before = threading.Event(), threading.active_count()
    reaching.tell_when_gone({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, 60.0, gone.set)
    assert threading.active_count() == before
    assert not gone.is_set()
