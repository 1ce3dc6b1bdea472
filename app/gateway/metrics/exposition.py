"""What `/metrics` answers, and to whom.

The token gives access to the metrics of all tenants. No API key does, because a key belongs to one tenant.
Without a token file the page is public and shows only how this process answered its requests.
"""

import hmac
import threading
import time

from prometheus_client import CollectorRegistry, generate_latest

from app.core.settings import Settings, SettingsError
from app.gateway.errors import Unauthenticated
from app.gateway.metrics.collector import ServiceCollector
from app.gateway.middleware import Metrics
from app.services import Services

CACHE_SECONDS = 5.0  # SQL is queried at most once in this time, however many scrapers there are
CACHE_FACTOR = 20.0  # and takes at most one twentieth of the time, however much there is to count
MIN_TOKEN_LENGTH = 16


class MetricsPage:
    """Renders the metrics in Prometheus' text format and caches those that come from SQL."""

    def __init__(self, services: Services, requests: Metrics) -> None:
        self._token = _read_token(services.settings)
        self._requests = requests.registry
        self._service = CollectorRegistry()
        self._service.register(ServiceCollector(services))
        self._lock, self._valid_until, self._text = threading.Lock(), 0.0, b""

    def render(self, authorization: str) -> bytes:
        """Return the metrics that the Authorization header gives access to."""
        if self._token is None:
            return generate_latest(self._requests)
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.encode(), self._token):
            raise Unauthenticated("Send the metrics token as `Authorization: Bearer …`.")
        return generate_latest(self._requests) + self._service_text()

    def _service_text(self) -> bytes:
        with self._lock:
            started = time.monotonic()
            if not self._text or started >= self._valid_until:
                self._text = generate_latest(self._service)
                finished = time.monotonic()
                self._valid_until = finished + max(CACHE_SECONDS, CACHE_FACTOR * (finished - started))
            return self._text


def _read_token(settings: Settings) -> bytes | None:
    if settings.metrics_token_file is None:
        return None
    try:
        token = settings.metrics_token_file.read_bytes().strip()
    except OSError as problem:
        raise SettingsError(f"LETHE_METRICS_TOKEN_FILE: {problem.strerror}") from None
    if len(token) < MIN_TOKEN_LENGTH:
        raise SettingsError(f"LETHE_METRICS_TOKEN_FILE: shorter than {MIN_TOKEN_LENGTH} characters")
    return token
