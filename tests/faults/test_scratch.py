"""Scratch folders contain rows. Those of dead attempts are swept, those of running ones never are."""

import subprocess
import sys
import threading
from pathlib import Path

from app.core.clock import new_id
from app.core.settings import Settings
from tests import eventually
from worker.data.scratch import sweep, working_folder
from worker.main import scratch_sweeper

HOLD_AND_DIE = """
import os, signal, sys
from pathlib import Path
from uuid import UUID
from app.core.settings import Settings
from worker.data.scratch import working_folder
with working_folder(Settings(data_dir=Path(sys.argv[1])), UUID(sys.argv[2])) as folder:
    (folder / "rows").write_text("somebody's")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_folder_of_a_killed_attempt_is_swept_and_that_of_a_running_one_stays(tmp_path: Path) -> None:
    settings, token = Settings(data_dir=tmp_path), new_id()
    ended = subprocess.run([sys.executable, "-c", HOLD_AND_DIE, str(tmp_path), str(token)], check=False)
    assert ended.returncode == -9
    left = tmp_path / "scratch" / str(token)
    assert (left / "rows").exists()
    with working_folder(settings, new_id()) as living:
        sweep(settings)
        assert not left.exists()
        assert living.exists()
    assert not living.exists()


def test_a_running_worker_sweeps_folders_that_were_still_locked_when_it_looked(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, heartbeat_seconds=0.01)
    left = tmp_path / "scratch" / str(new_id())
    with scratch_sweeper(settings):
        left.mkdir(parents=True)
        eventually(lambda: not left.exists())


def test_a_folder_that_is_being_created_is_not_swept(tmp_path: Path) -> None:
    settings, stop = Settings(data_dir=tmp_path), threading.Event()

    def sweep_all_the_time() -> None:
        while not stop.is_set():
            sweep(settings)

    other = threading.Thread(target=sweep_all_the_time)
    other.start()
    try:
        for _ in range(200):
            with working_folder(settings, new_id()) as folder:
                (folder / "rows").write_text("somebody's")
                assert (folder / "rows").exists()
    finally:
        stop.set()
        other.join()
