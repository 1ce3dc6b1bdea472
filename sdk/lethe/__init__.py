"""Python client and offline certificate verifier for Lethe, the certified unlearning service.

`Lethe` and `AsyncLethe` talk to the service. `verify` checks a certificate offline. Names are imported when
they are first used, so that `import lethe` and `lethe --help` stay fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lethe.certificate.errors import UnusableInput
    from lethe.certificate.verify import VerificationReport, verify
    from lethe.client.api import AsyncLethe, Lethe
    from lethe.client.errors import (
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
        NotVerified,
        RateLimited,
        ReleaseUnavailable,
        ServerError,
        TimedOut,
        Unauthorised,
        Unreachable,
    )
    from lethe.client.transport import Retry

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
    "NotVerified",
    "RateLimited",
    "ReleaseUnavailable",
    "Retry",
    "ServerError",
    "TimedOut",
    "Unauthorised",
    "Unreachable",
    "UnusableInput",
    "VerificationReport",
    "verify",
]
# The modules of names that are not in `lethe.client.errors`.
_MODULES = {
    "AsyncLethe": "lethe.client.api",
    "Lethe": "lethe.client.api",
    "Retry": "lethe.client.transport",
    "UnusableInput": "lethe.certificate.errors",
    "VerificationReport": "lethe.certificate.verify",
    "verify": "lethe.certificate.verify",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "lethe.client.errors")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
