"""The caller of a request, and a short-lived cache of callers.

The cache saves a database query for each request of a busy client. The gateway that revokes a key refuses
it at once. Other gateways refuse it after `CACHE_SECONDS`.
"""

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

from lethe.certificate.audit_log import Actor

CACHE_SECONDS = 2.0
MAX_ENTRIES = 10_000
LOOK_UP_THREADS = 8


@dataclass(frozen=True)
class Caller:
    """The tenant behind a request, and the API key or the person that acts for it."""

    tenant_id: UUID
    key_id: UUID | None
    """The API key. None for a person who signed in through the identity provider."""
    scopes: frozenset[str]
    actor: Actor
    """Who the audit log says it was."""

    def may(self, scope: str) -> bool:
        """Return whether the caller has `scope`. The scope `admin` allows everything."""
        return scope in self.scopes or "admin" in self.scopes


class CallerCache:
    """Callers by the digest of their credentials. The secret itself is not kept longer than its request."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(LOOK_UP_THREADS, thread_name_prefix="key")
        """The threads that look up callers who are not in the cache. They start when they are needed."""
        self._entries: dict[bytes, tuple[float, Caller]] = {}

    def get(self, credentials: str) -> Caller | None:
        """Return the cached caller, or None if there is none or it has expired."""
        entry = self._entries.get(_digest(credentials))
        return entry[1] if entry is not None and entry[0] > time.monotonic() else None

    def put(self, credentials: str, caller: Caller) -> None:
        """Cache a caller for `CACHE_SECONDS`."""
        if len(self._entries) >= MAX_ENTRIES:
            self._entries.clear()
        self._entries[_digest(credentials)] = (time.monotonic() + CACHE_SECONDS, caller)

    def close(self) -> None:
        """End the threads once their look-ups have ended."""
        self.threads.shutdown(wait=False, cancel_futures=True)

    def forget(self, key_id: UUID) -> None:
        """Drop every entry of a key, for example because it was revoked."""
        for digest in [d for d, (_, caller) in list(self._entries.items()) if caller.key_id == key_id]:
            self._entries.pop(digest, None)


def _digest(credentials: str) -> bytes:
    return hashlib.sha256(credentials.encode()).digest()
