"""Private working folders on this machine. They hold rows, so none outlives its attempt."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import UUID

from app.settings import Settings


@contextmanager
def working_folder(settings: Settings, token: UUID) -> Iterator[Path]:
    folder = _root(settings) / str(token)
    with ExitStack() as held:
        with _alone(settings):
            folder.mkdir(mode=0o700)
            lock = held.enter_context((folder / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # held by the living; the kernel lets go for the dead
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sweep(settings: Settings) -> None:
    """Remove what a killed attempt left behind; other workers of this machine may have living ones."""
    with _alone(settings):
        for folder in _root(settings).glob("*/"):
            if not _in_use(folder):
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _alone(settings: Settings) -> Iterator[None]:
    """Keeps a sweep from seeing a folder that is made but not locked yet."""
    root = _root(settings)
    root.mkdir(parents=True, mode=0o700, exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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
