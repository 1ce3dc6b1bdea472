"""Private working folders on this machine. They hold rows, so none outlives its attempt."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from app.settings import Settings


@contextmanager
def working_folder(settings: Settings, token: UUID) -> Iterator[Path]:
    folder = _root(settings) / str(token)
    folder.mkdir(parents=True, mode=0o700)
    try:
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held by the living; the kernel lets go for the dead
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(settings: Settings) -> None:
    """Remove what a killed attempt left behind."""
    for folder in _root(settings).glob("*"):
        if not _in_use(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _in_use(folder: Path) -> bool:
    try:
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _root(settings: Settings) -> Path:
    return settings.data_dir / "scratch"
