"""One request to one checked address: no redirect, no proxy, a hard deadline, the answer's body unread."""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import certifi
import httpx

from app.version import VERSION
from app.webhooks.targets import Address, Resolve, Target, TargetRefused, addresses, parse

CONNECT_SECONDS = 5.0
DEADLINE_SECONDS = 15.0  # of everything after the name is resolved, however slowly the other side drips


class Failure(StrEnum):
    TARGET_REFUSED = "target_refused"
    CONNECTION_FAILED = "connection_failed"
    TLS_FAILED = "tls_failed"
    TIMED_OUT = "timed_out"
    BAD_STATUS = "bad_status"


@dataclass(frozen=True)
class Answer:
    status: int | None = None
    failure: Failure | None = None


class Sender:
    def __init__(
        self,
        *,
        intranet: bool,
        resolve: Resolve,
        ca_file: Path | None = None,
        deadline: float = DEADLINE_SECONDS,
    ) -> None:
        self._intranet, self._resolve, self._deadline = intranet, resolve, deadline
        self._trust = ssl.create_default_context(cafile=str(ca_file or certifi.where()))

    def send(self, url: str, *, body: bytes, headers: dict[str, str]) -> Answer:
        """Blocks, for about the deadline at most."""
        try:
            target = parse(url, intranet=self._intranet)
            found = addresses(target, intranet=self._intranet, resolve=self._resolve)
        except TargetRefused:
            return Answer(failure=Failure.TARGET_REFUSED)
        return asyncio.run(self._within_deadline(target, found, body, headers))

    async def _within_deadline(
        self, target: Target, found: Sequence[Address], body: bytes, headers: dict[str, str]
    ) -> Answer:
        try:
            async with asyncio.timeout(self._deadline):
                return await self._post(target, found, body, headers)
        except (TimeoutError, httpx.TimeoutException):
            return Answer(failure=Failure.TIMED_OUT)
        except httpx.HTTPError as problem:
            return Answer(failure=Failure.TLS_FAILED if _is_tls(problem) else Failure.CONNECTION_FAILED)

    async def _post(
        self, target: Target, found: Sequence[Address], body: bytes, headers: dict[str, str]
    ) -> Answer:
        """The next address only where the one before could not be connected to: nothing is sent twice."""
        async with httpx.AsyncClient(
            verify=self._trust,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(self._deadline, connect=CONNECT_SECONDS),
        ) as client:
            for address in found[:-1]:
                try:
                    return await self._post_to(client, target, address, body, headers)
                except (httpx.ConnectError, httpx.ConnectTimeout):
                    continue
            return await self._post_to(client, target, found[-1], body, headers)

    async def _post_to(
        self,
        client: httpx.AsyncClient,
        target: Target,
        address: Address,
        body: bytes,
        headers: dict[str, str],
    ) -> Answer:
        """The address is dialled; the name stays in `Host`, in SNI, and in the certificate."""
        sent = headers | {
            "host": target.url.netloc.decode("ascii"),
            "content-type": "application/json",
            "user-agent": f"Lethe/{VERSION}",
            "accept-encoding": "identity",
        }
        request = client.stream(
            "POST",
            target.at(address),
            content=body,
            headers=sent,
            extensions={"sni_hostname": target.host},
        )
        async with request as response:
            status = response.status_code
        return Answer(status, None if 200 <= status < 300 else Failure.BAD_STATUS)


def _is_tls(problem: BaseException | None) -> bool:
    while problem is not None:
        if isinstance(problem, ssl.SSLError):
            return True
        problem = problem.__cause__ or problem.__context__
    return False
