"""Where a webhook may go. A tenant names the target, and the request leaves from inside our network: so the
name is resolved once, every address it has must be allowed, and the connection is made to one of just these.
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
WELL_KNOWN_PORTS = (80, 443)  # below 1024 nothing else speaks HTTP: mail, shells, name servers do not

# Never, even where private addresses are allowed: the metadata services of clouds hand out credentials.
_METADATA = frozenset(
    map(
        ip_address,
        ("169.254.169.254", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16"),
    )
)
# IPv6 that carries an IPv4 address inside, or that is no place on the internet, within 2000::/3.
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_ODD_V6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
# What Python's tables of some releases call global.
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
    """The message may be shown to whoever registered the URL."""


@dataclass(frozen=True)
class Target:
    url: httpx.URL
    host: str
    port: int

    def at(self, address: Address) -> httpx.URL:
        """The same request, to this address and no other."""
        return self.url.copy_with(host=str(address))


def parse(url: str, *, intranet: bool) -> Target:
    """What can be said without asking a name server; by the parser that will also send."""
    try:
        parsed = httpx.URL(url)
        host = parsed.raw_host.decode("ascii")
    except (httpx.InvalidURL, UnicodeError):
        raise TargetRefused("This is not a URL.") from None
    if parsed.scheme != "https" and not (intranet and parsed.scheme == "http"):
        raise TargetRefused("The URL must begin with https://.")
    literal = _literal(host)
    if literal is None and not _NAME.fullmatch(host):
        raise TargetRefused("The URL names no host.")
    if parsed.userinfo:
        raise TargetRefused("The URL must not hold credentials; messages are signed.")
    if parsed.fragment:
        raise TargetRefused("The URL must not have a fragment.")
    port = parsed.port if parsed.port is not None else 443 if parsed.scheme == "https" else 80
    if not (port in WELL_KNOWN_PORTS or 1024 <= port <= 65535):
        raise TargetRefused("The port must be 80, 443, or 1024 and above.")
    if literal is not None and not is_allowed(literal, intranet=intranet):
        raise TargetRefused("The address is not one that webhooks may be sent to.")
    return Target(parsed, host, port)


def addresses(target: Target, *, intranet: bool, resolve: Resolve) -> list[Address]:
    """Resolved here, once. One address that is not allowed refuses the name.

    Whether a name is unknown or leads inside is not told apart: that would map our network for a stranger.
    """
    try:
        found = [ip_address(text) for text in resolve(target.host, target.port)]
    except (OSError, ValueError, UnicodeError):
        found = []
    if not found or not all(is_allowed(address, intranet=intranet) for address in found):
        raise TargetRefused("The host has no address that webhooks may be sent to.")
    return list(dict.fromkeys(found))[:MOST_ADDRESSES]


def is_allowed(address: Address, *, intranet: bool) -> bool:
    """Public addresses; with `intranet` also private ones, this machine's, and those of carriers."""
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
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [str(entry[4][0]) for entry in found]


def _literal(host: str) -> Address | None:
    """An address written as one. Spellings that only a resolver understands are found when it is asked."""
    try:
        return ip_address(host)
    except ValueError:
        return None
