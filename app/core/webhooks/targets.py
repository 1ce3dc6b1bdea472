"""The check that a webhook may be sent to a URL.

A tenant chooses the URL, and the request is sent from inside the operator's network. So the host name is
resolved once, each of its addresses must be allowed, and the connection is made to one of exactly these.
"""

import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

import httpx

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Sequence[str]]

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,253}")
MOST_ADDRESSES = 4
WELL_KNOWN_PORTS = (80, 443)  # all other ports below 1024 belong to services that do not speak HTTP

# Never allowed, even if private addresses are: metadata services of clouds hand out credentials.
_METADATA = frozenset(
    map(
        ip_address,
        ("169.254.169.254", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16"),
    )
)
# Within 2000::/3: IPv6 networks that embed an IPv4 address or are not part of the internet.
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_ODD_V6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
# Networks that some Python releases wrongly call global.
_ODD_V4 = tuple(map(ip_network, ("100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15")))
_INTRANET = tuple(
    map(
        ip_network,
        (
            *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8"),
            *("fc00::/7", "::1/128"),
        ),
    )
)


class TargetRefused(Exception):
    """Raised when a webhook may not be sent to a URL. The message may be shown to the tenant."""


@dataclass(frozen=True)
class Target:
    """A URL that has passed the checks that need no name lookup."""

    url: httpx.URL
    host: str
    port: int

    def at(self, address: Address) -> httpx.URL:
        """Return the URL with the host replaced by this address."""
        return self.url.copy_with(host=str(address))


def parse(url: str, *, intranet: bool) -> Target:
    """Check everything about a URL that needs no name lookup. Raise `TargetRefused` if it is not allowed.

    The URL is parsed by the library that also sends, so that both read it in the same way.
    """
    try:
        parsed = httpx.URL(url)
        host = parsed.raw_host.decode("ascii")
    except (httpx.InvalidURL, UnicodeError):
        raise TargetRefused("This is not a URL.") from None
    if parsed.scheme != "https" and not (intranet and parsed.scheme == "http"):
        raise TargetRefused("The URL must begin with https://.")
    literal = _literal(host)
    if literal is None and not _NAME.fullmatch(host):
        raise TargetRefused("The URL has no valid host name.")
    if parsed.userinfo:
        raise TargetRefused(
            "The URL must not contain credentials. Verify the signature of each message instead."
        )
    if parsed.fragment:
        raise TargetRefused("The URL must not have a fragment.")
    port = parsed.port if parsed.port is not None else 443 if parsed.scheme == "https" else 80
    if not (port in WELL_KNOWN_PORTS or 1024 <= port <= 65535):
        raise TargetRefused("The port must be 80, 443, or 1024 and above.")
    if literal is not None and not is_allowed(literal, intranet=intranet):
        raise TargetRefused("Webhooks may not be sent to this address.")
    return Target(parsed, host, port)


def addresses(target: Target, *, intranet: bool, resolve: Resolve) -> list[Address]:
    """Resolve the host once and return its addresses. Raise `TargetRefused` if one of them is not allowed.

    An unknown name and one with a private address get the same message. Otherwise a stranger could use it to
    map the operator's network.
    """
    try:
        resolved = [ip_address(text) for text in resolve(target.host, target.port)]
    except (OSError, ValueError, UnicodeError):
        resolved = []
    if not resolved or not all(is_allowed(address, intranet=intranet) for address in resolved):
        raise TargetRefused("The host has no address that webhooks may be sent to.")
    return list(dict.fromkeys(resolved))[:MOST_ADDRESSES]


def is_allowed(address: Address, *, intranet: bool) -> bool:
    """Return whether webhooks may be sent to an address.

    Public addresses are allowed. With `intranet`, private, loopback and carrier-grade NAT addresses are too.
    An IPv6 address with a scope id (`%eth0`) is never allowed: it names an interface of this machine, and
    differs from the same address without one.
    """
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return False
    if address in _METADATA:
        return False
    if intranet and any(address in network for network in _INTRANET):
        return True
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _ODD_V4)
    return address in _GLOBAL_UNICAST and not any(address in network for network in _ODD_V6)


def system_resolver(host: str, port: int) -> list[str]:
    """Resolve a host name with the system's resolver."""
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [str(entry[4][0]) for entry in entries]


def _literal(host: str) -> Address | None:
    """Return the address if the host is a literal one. Odd spellings are left to the resolver."""
    try:
        return ip_address(host)
    except ValueError:
        return None
