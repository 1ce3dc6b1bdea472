"""Private scratch folders on this machine. They contain people's rows, so none outlives its attempt."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import UUID

from app.core.settings import Settings


@contextmanager
def working_folder(settings: Settings, token: UUID) -> Iterator[Path]:
    """Create a scratch folder and lock it, and delete it at the end."""
    folder = _root(settings) / str(token)
    with ExitStack() as stack:
        with _exclusive(settings):
            folder.mkdir(mode=0o700)
            lock = stack.enter_context((folder / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel releases it when this process dies
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sweep(settings: Settings) -> None:
    """Delete the folders of killed attempts. Folders that a live process has locked stay."""
    with _exclusive(settings):
        for folder in _root(settings).glob("*/"):
            if not _in_use(folder):
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _exclusive(settings: Settings) -> Iterator[None]:
    """Keep a sweep from deleting a folder that was created but is not locked yet."""
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
