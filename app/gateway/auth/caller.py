"""The caller of a request, and a short-lived cache of callers.

The cache saves a database query for each request of a busy client. The gateway that revokes a key refuses
it at once. Other gateways refuse it after `CACHE_SECONDS`.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable
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
        self._pending: dict[bytes, asyncio.Future[Caller | None]] = {}

    def get(self, credentials: str) -> Caller | None:
        """Return the cached caller, or None if there is none or it has expired."""
        entry = self._entries.get(_digest(credentials))
        return entry[1] if entry is not None and entry[0] > time.monotonic() else None

    def put(self, credentials: str, caller: Caller) -> None:
        """Cache a caller for `CACHE_SECONDS`."""
        if len(self._entries) >= MAX_ENTRIES:
            self._entries.clear()
        self._entries[_digest(credentials)] = (time.monotonic() + CACHE_SECONDS, caller)

    def look_up(
        self, credentials: str, authenticate: Callable[[str], Caller | None]
    ) -> "asyncio.Future[Caller | None]":
        """Look up a caller in a thread and cache it. Call this on the event loop.

        Requests with the same credentials wait for one look-up: when the entry of a busy client expires, all
        its connections need it at the same time.
        """
        digest = _digest(credentials)
        looking = self._pending.get(digest)
        if looking is None:
            loop = asyncio.get_running_loop()
            looking = self._pending[digest] = loop.run_in_executor(self.threads, authenticate, credentials)
            looking.add_done_callback(lambda ended: self._looked_up(credentials, ended))
        return asyncio.shield(looking)  # one request that gives up does not end it for the others

    def _looked_up(self, credentials: str, ended: "asyncio.Future[Caller | None]") -> None:
        digest = _digest(credentials)
        if self._pending.get(digest) is not ended:  # a key was revoked in the meantime
            return
        del self._pending[digest]
        if not ended.cancelled() and ended.exception() is None and (caller := ended.result()) is not None:
            self.put(credentials, caller)

    def close(self) -> None:
        """End the threads once their look-ups have ended."""
        self.threads.shutdown(wait=False, cancel_futures=True)

    def forget(self, key_id: UUID) -> None:
        """Drop every entry of a key, for example because it was revoked. Pending look-ups are not cached."""
        self._pending.clear()
        for digest in [d for d, (_, caller) in list(self._entries.items()) if caller.key_id == key_id]:
            self._entries.pop(digest, None)


def _digest(credentials: str) -> bytes:
    return hashlib.sha256(credentials.encode()).digest()
