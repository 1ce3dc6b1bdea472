"""The two clients: `Lethe` for blocking code and `AsyncLethe` for asyncio. Both offer the same endpoints."""

from typing import Any, Generic, Self

import httpx

from lethe.client.api_keys import ApiKeys
from lethe.client.audit_log import AuditLog
from lethe.client.certificates import Audits, CertificateLog, Certificates
from lethe.client.changes import StreamSlots
from lethe.client.erasures import Batches, Erasures
from lethe.client.models import Evaluations, Models, Versions
from lethe.client.operations import AsyncDriver, BlockingDriver, D
from lethe.client.representations import Representations
from lethe.client.stored_login import find_access
from lethe.client.transport import Retry
from lethe.client.webhooks import Webhooks

DEFAULT_URL = "http://127.0.0.1:8420"
# A gateway closes connections that are idle for five seconds. A request sent at that moment would be lost.
KEEP_SECONDS = 3.0
TIMEOUT = 60.0  # seconds without any data, not seconds for a whole transfer


class Endpoints(Generic[D]):
    """All groups of endpoints, on one driver."""

    def __init__(self, driver: D, retry: Retry) -> None:
        slots = StreamSlots()  # shared: the limit holds for the client as a whole
        self.models = Models(driver, retry, slots)
        self.representations = Representations(driver, retry, slots)
        self.versions = Versions(driver, retry, slots)
        self.erasures = Erasures(driver, retry, slots)
        self.batches = Batches(driver, retry, slots)
        self.certificates = Certificates(driver, retry, slots)
        self.log = CertificateLog(driver, retry, slots)
        self.evaluations = Evaluations(driver, retry, slots)
        self.audits = Audits(driver, retry, slots)
        self.webhooks = Webhooks(driver, retry, slots)
        self.keys = ApiKeys(driver, retry, slots)
        self.audit_log = AuditLog(driver, retry, slots)


class Lethe(Endpoints[BlockingDriver]):
    """A blocking client, used as `with Lethe(url, api_key) as lethe: …`.

    Without arguments, it reads the environment variables LETHE_URL and LETHE_API_KEY, and otherwise uses what
    `lethe login` stored.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        retry: Retry | None = None,
        timeout: float = TIMEOUT,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.http = httpx.Client(transport=transport, **_http_options(url, api_key, timeout))
        super().__init__(BlockingDriver(self.http), retry or Retry())

    def close(self) -> None:
        """Close the connections to the service."""
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncLethe(Endpoints[AsyncDriver]):
    """A client for asyncio, used as `async with AsyncLethe(url, api_key) as lethe: …`.

    It has the methods of `Lethe`. Await them, and read lists with `async for`.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        retry: Retry | None = None,
        timeout: float = TIMEOUT,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.http = httpx.AsyncClient(transport=transport, **_http_options(url, api_key, timeout))
        super().__init__(AsyncDriver(self.http), retry or Retry())

    async def close(self) -> None:
        """Close the connections to the service."""
        await self.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _http_options(url: str | None, api_key: str | None, timeout: float) -> dict[str, Any]:
    url, key = find_access(url, api_key)
    base = httpx.URL(url or DEFAULT_URL)
    return {
        "base_url": base,
        "timeout": timeout,
        "limits": httpx.Limits(
            max_connections=100, max_keepalive_connections=20, keepalive_expiry=KEEP_SECONDS
        ),
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        # A proxy from the environment cannot reach the loopback address of this machine.
        "trust_env": base.host not in ("127.0.0.1", "localhost", "::1"),
    }
