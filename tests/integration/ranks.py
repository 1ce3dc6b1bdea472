"""What tests of ranks share: rows in a storage, an objective on one rank and on two, and ranks that die."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from app.db.manifest import Manifest
from app.settings import Settings
from app.storage import Storage
from tests.integration.harness import MANIFEST, dataset, environment
from worker import attempt, devices
from worker.distributed import following, launch
from worker.distributed.leading import Team
from worker.distributed.meeting import Meeting
from worker.distributed.wire import GroupWire, Order, join

PATHS = ("a.parquet", "b.parquet")
NETWORK: dict[str, Any] = {
    "family": "mlp",
    "network": {"hidden": [5], "activation": "tanh"},
    "lambda": 0.5,
    "origins": MANIFEST["origins"] | {"anchor": "a public draw"},
}


class Pair:
    """Rows, a team of one and a team of two on the same rows."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.storage, self.folder = Storage(settings.storage), folder
        for path, seed in zip(PATHS, (7, 8), strict=True):
            self.storage.write(path, [dataset(rows=61, seed=seed)])
        self.settings = settings
        self.wire: Any = None
        self.alone = Team(devices.choose("cpu"))

    @contextmanager
    def open(self) -> Iterator["Pair"]:
        with launch.meeting(self.settings) as meeting:
            assert meeting is not None
            self.two = Team(devices.choose("cpu"), 2, lambda: self._join(meeting))
            try:
                yield self
            finally:
                self.two.close()

    def _join(self, meeting: Meeting) -> GroupWire:
        self.wire = join(meeting, devices.choose("cpu"), self.settings.rank_timeout_seconds)
        return self.wire

    def objective(self, team: Team, manifest: dict[str, Any], anchor: Any = None) -> Any:
        found = Manifest.model_validate(manifest)
        return team.objective(self.storage, found, PATHS, anchor, self.folder / "rows")


@contextmanager
def pair(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    settings = Settings(data_dir=folder / "data", nproc=2, device="cpu", rank_timeout_seconds=120)
    for name, value in environment(settings).items():
        monkeypatch.setenv(name, value)
    with Pair(settings, folder).open() as opened:
        yield opened


def dying_follower(at: str) -> None:
    """A rank that is killed at the third order of a kind, in the middle of a solve."""
    seen: list[str] = []
    original = following.Follower._do

    def do(self: following.Follower, order: Order) -> None:
        seen.append(order.do)
        if seen.count(at) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, order)

    following.Follower._do = do  # type: ignore[method-assign]


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "rank":
        from app.settings import load_settings

        dying_follower("evaluate")
        sys.exit(following.main(load_settings(), Meeting.from_environment(os.environ)))
    launch.COMMAND = ["-m", "tests.integration.ranks", "rank"]
    attempt.main(UUID(rest[0]), UUID(rest[1]))
