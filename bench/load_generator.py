"""A small HTTP/1.1 load generator: many keep-alive connections in one process, for a fixed time.

It uses raw sockets, because on two cores a full HTTP client would dominate the measurement.
"""

import asyncio
import json
import re
import sys
import time
from dataclasses import asdict, dataclass

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_ID = re.compile(rb'"id":"([0-9a-f-]{36})"')


@dataclass
class Load:
    """Result of one load run."""

    requests: int
    failures: int
    seconds: float
    p50_ms: float
    p99_ms: float
    ids: list[str]

    @property
    def rate(self) -> float:
        """Acknowledged requests per second."""
        return self.requests / self.seconds


async def load(*, host: str, port: int, key: str, connections: int, seconds: float) -> Load:
    """Send erasure requests over `connections` connections for `seconds` seconds."""
    latencies: list[float] = []
    ids: list[str] = []
    failures = 0
    end = time.perf_counter() + seconds

    async def send_requests(number: int) -> None:
        nonlocal failures
        try:
            reader, writer = await asyncio.open_connection(host, port)
        except OSError:
            failures += 1
            return
        count = 0
        while time.perf_counter() < end:
            count += 1
            started = time.perf_counter()
            try:
                writer.write(_request(host, key, f"person-{number}-{count}"))
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
            except (OSError, asyncio.IncompleteReadError):
                failures += 1
                break
            matched = _ID.search(body)
            if head.startswith(b"HTTP/1.1 202") and matched:
                latencies.append(time.perf_counter() - started)
                ids.append(matched[1].decode())
            else:
                failures += 1
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(send_requests(number) for number in range(connections)))
    elapsed = time.perf_counter() - started
    latencies.sort()
    return Load(
        requests=len(latencies),
        failures=failures,
        seconds=elapsed,
        p50_ms=_quantile(latencies, 0.5),
        p99_ms=_quantile(latencies, 0.99),
        ids=ids,
    )


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1e3 if ordered else float("nan")


def _request(host: str, key: str, subject: str) -> bytes:
    body = json.dumps({"subjects": [subject], "reference": "load"}).encode()
    return (
        f"POST /v1/erasures HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def main() -> None:
    """Read host, port, key, connections and seconds from the command line and print one line of JSON."""
    host, port, key, connections, seconds = sys.argv[1:]
    result = asyncio.run(
        load(host=host, port=int(port), key=key, connections=int(connections), seconds=float(seconds))
    )
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
