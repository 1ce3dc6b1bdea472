"""A rank that follows: it reads its share of the rows, adds up what it is asked for, and knows nothing else.

    python -m worker.distributed.following

It has no database, no queue and no key, draws nothing, decides nothing, and writes nothing that stays.
"""

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from app import logs
from app.bootstrap import Services
from app.clock import new_id
from app.db.manifest import Manifest
from app.settings import Settings, load_settings
from app.storage import Storage
from worker import devices
from worker.distributed.meeting import Meeting
from worker.distributed.shares import Share
from worker.distributed.wire import GroupWire, Order, join
from worker.pipeline.scratch import working_folder
from worker.problems import RankLost

log = logs.get("rank")
LOST = 76


class Follower:
    def __init__(self, wire: GroupWire, storage: Storage, scratch: Path, device: torch.device) -> None:
        self._wire, self._storage, self._scratch, self._device = wire, storage, scratch, device
        self._share: Share | None = None

    def serve(self) -> None:
        """Until rank 0 says that it is the end, or is gone."""
        while (order := self._wire.next()).do != "end":
            if order.do == "forget":
                self._forget()
                continue
            self._carry_out(order)

    def _carry_out(self, order: Order) -> None:
        try:
            self._wire.together(lambda: self._do(order))
        except RankLost:
            raise
        except Exception as problem:  # every rank knows by now, and rank 0 decides what follows
            where = logs.where(problem.__traceback__)
            log.warning("order failed", order=order.do, kind=type(problem).__name__, where=where)
        finally:
            if order.vector is not None:
                order.vector.zero_()

    def _do(self, order: Order) -> None:
        if order.do == "open":
            self._open(order)
            return
        assert self._share is not None
        share, vector, args = self._share, order.vector, order.args
        known: dict[str, Callable[..., object]] = {
            "evaluate": share.evaluate,
            "linearise": lambda w, **how: share.linearise(w=w, **how),
            "product": share.product,
            "measured_rounding": share.measured_rounding,
            "input_norms": share.input_norms,
            "derivative_sums": share.derivative_sums,
            "rows": lambda indices: share.rows_at(indices.long()),
            "halve": share.halve,
        }
        known[order.do](*(() if vector is None else (vector,)), **args)

    def _open(self, order: Order) -> None:
        self._forget()
        manifest, _, paths = order.text.partition("\n")
        self._share = Share(
            self._storage,
            Manifest.model_validate_json(manifest),
            paths.split(" "),
            order.vector,
            self._scratch / "rows",
            wire=self._wire,
            device=self._device,
        )

    def _forget(self) -> None:
        if self._share is not None:
            self._share.forget()
        self._share = None


def main(settings: Settings, meeting: Meeting) -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would hold un-noised weights
    devices.be_deterministic()
    devices.share_cores(meeting.local_ranks)
    device = devices.choose(settings.device, local_rank=meeting.local_rank)
    try:
        wire = join(meeting, device, settings.rank_timeout_seconds)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a stop lets the attempt finish, see `launch.follow`
        with working_folder(settings, new_id()) as scratch:
            Follower(wire, Services(settings).storage, scratch, device).serve()
        wire.close()
    except RankLost as problem:
        log.warning("following ended", because=str(problem))
        return LOST
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    found = load_settings()
    logs.configure(found)
    sys.exit(main(found, Meeting.from_environment(os.environ)))
