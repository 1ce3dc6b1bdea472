"""The HTTP request of a webhook: to a checked address, without redirects or proxies, within a deadline.

The body of the answer is not read.
"""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from pathlib import Path

import certifi
import httpx

from app.core.version import VERSION
from app.core.webhooks.targets import Address, Resolve, Target, TargetRefused, addresses, parse

CONNECT_SECONDS = 5.0
DEADLINE_SECONDS = 15.0  # for everything after the name lookup, however slowly the receiver answers


class Failure(StrEnum):
    """Why an attempt to send a webhook failed."""

    TARGET_REFUSED = "target_refused"
    CONNECTION_FAILED = "connection_failed"
    TLS_FAILED = "tls_failed"
    TIMED_OUT = "timed_out"
    BAD_STATUS = "bad_status"


@dataclass(frozen=True)
class Answer:
    """The status that a receiver answered with, and why the attempt failed, if it did."""

    status: int | None = None
    failure: Failure | None = None
    retry_after: timedelta | None = None
    """How long the receiver asked to wait, if it did (RFC 9110, 10.2.3). It is not bounded here."""


class Sender:
    """Sends webhooks."""

    def __init__(
        self,
        *,
        intranet: bool,
        resolve: Resolve,
        ca_file: Path | None = None,
        deadline: float = DEADLINE_SECONDS,
    ) -> None:
        """Prepare to send. `intranet` allows private addresses; `ca_file` replaces the public authorities."""
        self._intranet, self._resolve, self._deadline = intranet, resolve, deadline
        self._trust = ssl.create_default_context(cafile=str(ca_file or certifi.where()))

    def send(self, url: str, *, body: bytes, headers: dict[str, str]) -> Answer:
        """Send a message and return the answer. This blocks for about the deadline at most."""
        try:
            target = parse(url, intranet=self._intranet)
            resolved = addresses(target, intranet=self._intranet, resolve=self._resolve)
        except TargetRefused:
            return Answer(failure=Failure.TARGET_REFUSED)
        return asyncio.run(self._within_deadline(target, resolved, body, headers))

    async def _within_deadline(
        self, target: Target, resolved: Sequence[Address], body: bytes, headers: dict[str, str]
    ) -> Answer:
        try:
            async with asyncio.timeout(self._deadline):
                return await self._post(target, resolved, body, headers)
        except (TimeoutError, httpx.TimeoutException):
            return Answer(failure=Failure.TIMED_OUT)
        except httpx.HTTPError as problem:
            return Answer(failure=Failure.TLS_FAILED if _is_tls(problem) else Failure.CONNECTION_FAILED)

    async def _post(
        self, target: Target, resolved: Sequence[Address], body: bytes, headers: dict[str, str]
    ) -> Answer:
        """Try the next address only if no connection could be made, so that nothing is sent twice."""
        async with httpx.AsyncClient(
            verify=self._trust,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(self._deadline, connect=CONNECT_SECONDS),
        ) as client:
            for address in resolved[:-1]:
                try:
                    return await self._post_to(client, target, address, body, headers)
                except (httpx.ConnectError, httpx.ConnectTimeout):
                    continue
            return await self._post_to(client, target, resolved[-1], body, headers)

    async def _post_to(
        self,
        client: httpx.AsyncClient,
        target: Target,
        address: Address,
        body: bytes,
        headers: dict[str, str],
    ) -> Answer:
        """Connect to this address. `Host`, SNI and the certificate check still use the host's name."""
        all_headers = (
            {"content-type": "application/json"}
            | headers
            | {
                "host": target.url.netloc.decode("ascii"),
                "user-agent": f"Lethe/{VERSION}",
                "accept-encoding": "identity",
            }
        )
        request = client.stream(
            "POST",
            target.at(address),
            content=body,
            headers=all_headers,
            extensions={"sni_hostname": target.host},
        )
        async with request as response:
            status, asked = response.status_code, response.headers.get("retry-after", "")
        if 200 <= status < 300:
            return Answer(status)
        return Answer(status, Failure.BAD_STATUS, parse_retry_after(asked, datetime.now(UTC)))


def parse_retry_after(text: str, moment: datetime) -> timedelta | None:
    """Return the wait that a `Retry-After` header asks for: seconds or a date. None if it asks for none.

    >>> parse_retry_after("120", datetime(2026, 1, 1, tzinfo=UTC))
    datetime.timedelta(seconds=120)
    >>> parse_retry_after("Thu, 01 Jan 2026 00:00:30 GMT", datetime(2026, 1, 1, tzinfo=UTC))
    datetime.timedelta(seconds=30)
    """
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return timedelta(seconds=int(text[:9]))
    try:
        wanted = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if wanted.tzinfo is None:
        return None
    return max(wanted - moment, timedelta(0))


def _is_tls(problem: BaseException | None) -> bool:
    while problem is not None:
        if isinstance(problem, ssl.SSLError):
            return True
        problem = problem.__cause__ or problem.__context__
    return False
