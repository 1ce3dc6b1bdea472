"""Callers seen a moment ago, so that a stream of requests does not ask the database each time.

A revoked key is refused at once by the gateway that revoked it, and by the others after `LIFE` seconds.
"""

import hashlib
import time
from dataclasses import dataclass
from uuid import UUID

LIFE = 2.0
MOST = 10_000


@dataclass(frozen=True)
class Caller:
    tenant_id: UUID
    key_id: UUID
    scopes: frozenset[str]

    def may(self, scope: str) -> bool:
        return scope in self.scopes or "admin" in self.scopes


class CallerCache:
    """Keyed by a digest: the secret itself is not kept in memory longer than its request."""

    def __init__(self) -> None:
        self._seen: dict[bytes, tuple[float, Caller]] = {}

    def get(self, credentials: str) -> Caller | None:
        entry = self._seen.get(_digest(credentials))
        return entry[1] if entry is not None and entry[0] > time.monotonic() else None

    def put(self, credentials: str, caller: Caller) -> None:
        if len(self._seen) >= MOST:
            self._seen.clear()
        self._seen[_digest(credentials)] = (time.monotonic() + LIFE, caller)

    def forget(self, key_id: UUID) -> None:
        for digest in [d for d, (_, caller) in list(self._seen.items()) if caller.key_id == key_id]:
            self._seen.pop(digest, None)


def _digest(credentials: str) -> bytes:
    return hashlib.sha256(credentials.encode()).digest()
