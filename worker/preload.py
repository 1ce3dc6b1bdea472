"""What a fork server imports before it forks, and the check that forking is still safe afterwards.

CUDA cannot be used in a child if its parent has initialised it, and a child inherits neither the threads of a
pool nor the locks that they hold. A fork server therefore only imports. It opens no connection, starts no
thread and runs no kernel, and `check_fork_is_safe` ends it if an import has done so.
"""

import importlib
import sys
import threading

import torch

from worker import devices

# Imported by libraries on first use, which would otherwise be in every child.
LIBRARIES = (
    "cryptography.hazmat.backends.openssl.backend",
    "fsspec.implementations.local",
    "app.core.storage.folder",
    "numpy.ctypeslib",
)
# Only attempts use a database.
DATABASES = ("sqlite3", "psycopg", "psycopg_binary._uuid")


def import_libraries(*more: str) -> None:
    """Import what every child needs, and these modules."""
    import pyarrow

    devices.use_deterministic_algorithms()  # makes torch import its compiler, which takes half a second
    pyarrow.array([0])  # makes pyarrow import pandas, if that is installed
    for name in (*LIBRARIES, *more):
        importlib.import_module(name)
    check_fork_is_safe()


def check_fork_is_safe() -> None:
    """End this process if it must not fork, because CUDA is initialised or a second thread runs."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        sys.exit("a fork server has initialised CUDA: its children could not use it")
    if (threads := threading.active_count()) > 1:
        sys.exit(f"a fork server runs {threads} threads: its children could wait forever for a lock")
