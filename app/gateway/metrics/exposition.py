"""Who may read the numbers, and how often they are looked up.

Whoever has the token sees the figures of all tenants; no API key does, for a key belongs to one of them.
Without a token file the page is open, and shows nothing but how this process answered its requests.
"""

import hmac
import threading
import time

from prometheus_client import CollectorRegistry, generate_latest

from app.bootstrap import Services
from app.errors import Unauthenticated
from app.metrics.figures import Figures
from app.middleware import Metrics
from app.settings import Settings, SettingsError

FRESH_SECONDS = 5.0  # however many scrape, SQL is asked once in this time
SHORTEST_TOKEN = 16


class Page:
    def __init__(self, services: Services, requests: Metrics) -> None:
        self._token = _token(services.settings)
        self._requests = requests.registry
        self._figures = CollectorRegistry()
        self._figures.register(Figures(services))
        self._lock, self._looked_at, self._found = threading.Lock(), 0.0, b""

    def render(self, authorization: str) -> bytes:
        if self._token is None:
            return generate_latest(self._requests)
        kind, _, given = authorization.partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.encode(), self._token):
            raise Unauthenticated("Send the token of the metrics as `Authorization: Bearer …`.")
        return generate_latest(self._requests) + self._recent()

    def _recent(self) -> bytes:
        with self._lock:
            if not self._found or time.monotonic() - self._looked_at >= FRESH_SECONDS:
                self._found, self._looked_at = generate_latest(self._figures), time.monotonic()
            return self._found


def _token(settings: Settings) -> bytes | None:
    if settings.metrics_token_file is None:
        return None
    try:
        token = settings.metrics_token_file.read_bytes().strip()
    except OSError as problem:
        raise SettingsError(f"LETHE_METRICS_TOKEN_FILE: {problem.strerror}") from None
    if len(token) < SHORTEST_TOKEN:
        raise SettingsError(f"LETHE_METRICS_TOKEN_FILE: shorter than {SHORTEST_TOKEN} characters")
    return token
