"""`Lethe` and `AsyncLethe`: the same nouns, on a blocking and on an awaiting driver."""

import os
from typing import Any, Generic, Self

import httpx

from client.certificates import Certificates, Log
from client.drivers import Awaiting, Blocking
from client.erasures import Batches, Erasures
from client.flow import D
from client.models import Models, Versions
from client.reports import Audits, Evaluations, Keys
from client.requests import Retry

DEFAULT_URL = "http://127.0.0.1:8420"
TIMEOUT = 60.0  # of silence, not of the whole


class Nouns(Generic[D]):
    def __init__(self, driver: D, retry: Retry) -> None:
        self.models = Models(driver, retry)
        self.versions = Versions(driver, retry)
        self.erasures = Erasures(driver, retry)
        self.batches = Batches(driver, retry)
        self.certificates = Certificates(driver, retry)
        self.log = Log(driver, retry)
        self.evaluations = Evaluations(driver, retry)
        self.audits = Audits(driver, retry)
        self.keys = Keys(driver, retry)


class Lethe(Nouns[Blocking]):
    """`with Lethe(url, api_key) as lethe: …`; without arguments LETHE_URL and LETHE_API_KEY are used."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        retry: Retry | None = None,
        timeout: float = TIMEOUT,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.http = httpx.Client(transport=transport, **_settings(url, api_key, timeout))
        super().__init__(Blocking(self.http), retry or Retry())

    def close(self) -> None:
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncLethe(Nouns[Awaiting]):
    """`async with AsyncLethe(url, api_key) as lethe: …`; every method is awaited, every list iterated."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        retry: Retry | None = None,
        timeout: float = TIMEOUT,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.http = httpx.AsyncClient(transport=transport, **_settings(url, api_key, timeout))
        super().__init__(Awaiting(self.http), retry or Retry())

    async def close(self) -> None:
        await self.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _settings(url: str | None, api_key: str | None, timeout: float) -> dict[str, Any]:
    base = httpx.URL(url or os.environ.get("LETHE_URL") or DEFAULT_URL)
    key = api_key or os.environ.get("LETHE_API_KEY")
    return {
        "base_url": base,
        "timeout": timeout,
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        # A proxy of the surroundings does not reach this machine's own loopback.
        "trust_env": base.host not in ("127.0.0.1", "localhost", "::1"),
    }
