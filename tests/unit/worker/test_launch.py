"""What a follower is started with: its rank, and no secret that it does not need."""

from collections.abc import Mapping
from typing import ClassVar

import pytest

from worker.distributed import launch
from worker.distributed.rendezvous import Rendezvous


class _Server:
    """Records the environments that a fork server and its children are given."""

    given: ClassVar[list[Mapping[str, str]]] = []

    def __init__(self, _: str, *, env: Mapping[str, str]) -> None:
        self.given.append(env)

    def start(self) -> None:
        pass

    def run(self, *, env: Mapping[str, str]) -> None:
        self.given.append(env)


def test_followers_and_their_server_get_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "ForkServer", _Server)
    monkeypatch.setattr(_Server, "given", [])
    for name in ("LETHE_DATABASE_URL", "LETHE_REDIS_URL", "LETHE_SIGNING_KEY"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("LETHE_STORAGE_ENDPOINT", "http://127.0.0.1:9000")
    launch.Followers().run(Rendezvous(1, 2, 1, 2, file="here"))
    server, follower = _Server.given
    assert "secret" not in {*server.values(), *follower.values()}
    assert follower["LETHE_STORAGE_ENDPOINT"] == "http://127.0.0.1:9000"
    assert (follower["RANK"], follower["WORLD_SIZE"]) == ("1", "2")
