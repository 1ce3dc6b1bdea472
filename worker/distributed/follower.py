"""The process of a following rank: it reads its shard of the rows and carries out rank 0's orders.

    python -m worker.distributed.follower

It has no database, no queue and no signing key. It draws no noise, decides nothing, and leaves no files. Like
attempts, followers are forked by a fork server, `python -m worker.distributed.follower --serve`.
"""

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from app.core import logging
from app.core.clock import new_id
from app.core.settings import Settings, load_settings
from app.core.storage import Storage
from app.db.manifest import Manifest
from app.services import Services
from worker import devices, fork_server, preload
from worker.data.scratch import working_folder
from worker.distributed.protocol import GroupConnection, Order, join
from worker.distributed.rendezvous import Rendezvous
from worker.distributed.shard import Shard
from worker.errors import RankLost

log = logging.get_logger("rank")
LOST = 76  # exit code: the other ranks are gone
PROCESS_NAME = "lethe-rank"  # in the process list


class Follower:
    """Carries out rank 0's orders on this rank's shard of the rows."""

    def __init__(
        self, connection: GroupConnection, storage: Storage, scratch: Path, device: torch.device
    ) -> None:
        self._connection, self._storage, self._scratch, self._device = connection, storage, scratch, device
        self._shard: Shard | None = None

    def serve(self) -> None:
        """Carry out orders until rank 0 sends `end`. Raises `RankLost` if rank 0 is gone."""
        while (order := self._connection.next()).do != "end":
            if order.do == "forget":
                self._forget()
                continue
            self._carry_out(order)

    def _carry_out(self, order: Order) -> None:
        try:
            self._connection.together(lambda: self.execute(order))
        except RankLost:
            raise
        except Exception as problem:  # all ranks know of it by now, and rank 0 decides what to do
            where = logging.where(problem.__traceback__)
            log.warning("order failed", order=order.do, kind=type(problem).__name__, where=where)
        finally:
            if order.vector is not None:
                order.vector.zero_()

    def execute(self, order: Order) -> None:
        """Compute what one order asks for. The results leave this rank as sums over all ranks."""
        if order.do == "open":
            self._open(order)
            return
        assert self._shard is not None
        shard, vector, args = self._shard, order.vector, order.args
        operations: dict[str, Callable[..., object]] = {
            "evaluate": shard.evaluate,
            "linearise": lambda w, **how: shard.linearise(w=w, **how),
            "product": shard.product,
            "measured_rounding": shard.measured_rounding,
            "input_norms": shard.input_norms,
            "derivative_sums": shard.derivative_sums,
            "rows": lambda indices: shard.rows_at(indices.long()),
            "halve": shard.halve_chunks,
        }
        operations[order.do](*(() if vector is None else (vector,)), **args)

    def _open(self, order: Order) -> None:
        self._forget()
        manifest, _, paths = order.text.partition("\n")
        self._shard = Shard.open(
            self._storage,
            Manifest.model_validate_json(manifest),
            paths.split(" "),
            order.vector,
            self._scratch / "rows",
            connection=self._connection,
            device=self._device,
        )

    def _forget(self) -> None:
        if self._shard is not None:
            self._shard.forget()
        self._shard = None


def main(settings: Settings, place: Rendezvous) -> int:
    """Join the other ranks, serve one attempt, and return the exit code."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would contain weights without noise
    devices.use_deterministic_algorithms()
    devices.share_cores(place.local_ranks)
    device = devices.choose(settings.device, local_rank=place.local_rank)
    try:
        connection = join(place, device, settings.rank_timeout_seconds)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a stop lets the attempt finish, see `launch.follow`
        with working_folder(settings, new_id()) as scratch:
            Follower(connection, Services(settings).storage, scratch, device).serve()
        connection.close()
    except RankLost as problem:
        log.warning("lost the other ranks", because=str(problem))
        return LOST
    return 0


def run() -> None:
    """Serve the attempt that the environment names, and end this process."""
    # A fork server ignores stop signals. A rank that waits for an attempt ends when asked to.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.umask(0o077)
    settings = load_settings()
    logging.configure(settings)
    sys.exit(main(settings, Rendezvous.from_environment(os.environ)))


def serve(commands: int, replies: int) -> None:
    """Import what every follower needs, then fork one for each attempt."""
    preload.import_libraries()
    fork_server.serve(run, commands, replies, name=lambda: PROCESS_NAME)


if __name__ == "__main__":
    if sys.argv[1:2] == [fork_server.SERVE]:
        serve(int(sys.argv[2]), int(sys.argv[3]))
    else:
        run()
