"""What a rank is started with: its place among the others, and nothing that it does not need."""

import pytest

from app import process
from worker.distributed import launch
from worker.distributed.meeting import Meeting


def test_a_follower_gets_its_place_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, str] = {}
    monkeypatch.setattr(process, "spawn", lambda _, env: given.update(env))
    for name in ("LETHE_DATABASE_URL", "LETHE_REDIS_URL", "LETHE_SIGNING_KEY"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("LETHE_STORAGE_ENDPOINT", "http://127.0.0.1:9000")
    launch._start(Meeting(1, 2, 1, 2, file="here"))
    assert "secret" not in given.values()
    assert given["LETHE_STORAGE_ENDPOINT"] == "http://127.0.0.1:9000"
    assert (given["RANK"], given["WORLD_SIZE"]) == ("1", "2")
