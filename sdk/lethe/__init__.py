"""The Python client, `Lethe` and `AsyncLethe`, and the `lethe` command.

Names are fetched when they are asked for: `lethe --help` shall not wait for an HTTP library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from client.api import AsyncLethe, Lethe
    from client.errors import (
        ApiError,
        BadAnswer,
        BatchHeld,
        Conflict,
        DownloadCorrupt,
        Forbidden,
        Gone,
        Invalid,
        LetheError,
        ModelRejected,
        NotFound,
        RateLimited,
        ServerError,
        TimedOut,
        Unauthorised,
        Unreachable,
    )
    from client.requests import Retry

__all__ = [
    "ApiError",
    "AsyncLethe",
    "BadAnswer",
    "BatchHeld",
    "Conflict",
    "DownloadCorrupt",
    "Forbidden",
    "Gone",
    "Invalid",
    "Lethe",
    "LetheError",
    "ModelRejected",
    "NotFound",
    "RateLimited",
    "Retry",
    "ServerError",
    "TimedOut",
    "Unauthorised",
    "Unreachable",
]
_ELSEWHERE = {"Lethe": "client.api", "AsyncLethe": "client.api", "Retry": "client.requests"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ELSEWHERE.get(name, "client.errors")), name)
