"""Helpers for tests of ranks: rows in a storage, objectives on one rank and on two, and ranks that die.

    python -m tests.integration.ranks --serve COMMANDS REPLIES

is a fork server of followers that kill themselves.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.core.settings import Settings
from app.core.storage import Storage
from app.db.manifest import Manifest
from tests.integration.harness import MANIFEST, dataset, environment
from worker import devices
from worker.distributed import follower, launch
from worker.distributed.protocol import GroupConnection, Order, join
from worker.distributed.rank0 import Team
from worker.distributed.rendezvous import Rendezvous

PATHS = ("a.parquet", "b.parquet")
NETWORK: dict[str, Any] = {
    "family": "mlp",
    "network": {"hidden": [5], "activation": "tanh"},
    "lambda": 0.5,
    "origins": MANIFEST["origins"] | {"anchor": "a public draw"},
}


class Pair:
    """A team of one rank and a team of two on the same rows."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.storage, self.folder = Storage(settings.storage), folder
        for path, seed in zip(PATHS, (7, 8), strict=True):
            self.storage.write(path, [dataset(rows=61, seed=seed)])
        self.settings = settings
        self.connection: Any = None
        self.alone = Team(devices.choose("cpu"))

    @contextmanager
    def open(self) -> Iterator["Pair"]:
        with (
            closing(launch.Followers()) as followers,
            launch.open_rendezvous(self.settings, followers) as place,
        ):
            assert place is not None
            self.two = Team(devices.choose("cpu"), 2, lambda: self._join(place))
            try:
                yield self
            finally:
                self.two.close()

    def _join(self, place: Rendezvous) -> GroupConnection:
        connection = self.connection = join(place, devices.choose("cpu"), self.settings.rank_timeout_seconds)
        return connection

    def objective(self, team: Team, manifest: dict[str, Any], anchor: Any = None) -> Any:
        """Return the objective of a manifest on all rows, computed by a team."""
        return team.objective(
            self.storage, Manifest.model_validate(manifest), PATHS, anchor, self.folder / "rows"
        )


@contextmanager
def pair(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Open a pair of teams during the block."""
    settings = Settings(data_dir=folder / "data", nproc=2, device="cpu", rank_timeout_seconds=120)
    for name, value in environment(settings).items():
        monkeypatch.setenv(name, value)
    with Pair(settings, folder).open() as opened:
        yield opened


def dying_follower(at: str) -> None:
    """Make a follower kill itself at the third order of this kind, in the middle of a solve."""
    seen: list[str] = []
    original = follower.Follower.execute

    def do(self: follower.Follower, order: Order) -> None:
        seen.append(order.do)
        if seen.count(at) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, order)

    follower.Follower.execute = do  # type: ignore[method-assign]


if __name__ == "__main__":
    dying_follower("evaluate")
    follower.serve(int(sys.argv[2]), int(sys.argv[3]))
