"""Which URLs webhooks may be sent to."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.webhooks import targets
from app.core.webhooks.targets import TargetRefused

INSIDE = [
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "100.127.255.254",
    "127.0.0.1",
    "127.8.9.10",
    "169.254.1.1",
    "169.254.169.254",
    "168.63.129.16",
    "fd20:ce::254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",  # IPv4-compatible
    "::ffff:127.0.0.1",  # IPv4-mapped
    "::ffff:8.8.8.8",
    "64:ff9b::7f00:1",  # NAT64
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",  # Teredo
    "2001:db8::1",
    "2002:7f00:1::1",  # 6to4
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]
PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700::1111", "2a00:1450:4001:81b::200e"]
INTRANET = ["10.0.0.1", "172.16.0.1", "192.168.1.1", "127.0.0.1", "100.64.0.1", "::1", "fd12::1"]


@pytest.mark.parametrize("address", INSIDE)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not targets.is_allowed(ip_address(address), intranet=False)
    shown = f"[{address}]" if ":" in address else address
    with pytest.raises(TargetRefused):
        targets.parse(f"https://{shown}/hook", intranet=False)
    target = targets.parse("https://hooks.example.com/", intranet=False)
    with pytest.raises(TargetRefused):
        targets.addresses(target, intranet=False, resolve=lambda *_: [address])
    with pytest.raises(TargetRefused):  # after an allowed address as well
        targets.addresses(target, intranet=False, resolve=lambda *_: ["8.8.8.8", address])


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address: str) -> None:
    target = targets.parse("https://hooks.example.com:8443/a?b=c", intranet=False)
    (found,) = targets.addresses(target, intranet=False, resolve=lambda *_: [address, address])
    assert str(target.at(found).host) == str(ip_address(address))
    assert target.at(found).raw_path == b"/a?b=c"
    assert target.url.netloc == b"hooks.example.com:8443"


@pytest.mark.parametrize("address", INTRANET)
def test_an_intranet_is_reached_where_the_operator_says_so(address: str) -> None:
    assert targets.is_allowed(ip_address(address), intranet=True)


@pytest.mark.parametrize("address", sorted(set(INSIDE) - set(INTRANET) - {"127.8.9.10", "fc00::1"}))
def test_even_then_there_are_places_no_webhook_goes_to(address: str) -> None:
    inside = {"100.127.255.254", "172.31.255.255"}
    assert targets.is_allowed(ip_address(address), intranet=True) == (address in inside)


@given(st.ip_addresses())
def test_an_address_inside_another_protocol_never_passes(address: targets.Address) -> None:
    if address.version == 4:
        for mapped in (f"::ffff:{address}", f"64:ff9b::{address}", f"::{address}"):
            assert not targets.is_allowed(ip_address(mapped), intranet=False)
            assert not targets.is_allowed(ip_address(mapped), intranet=True) or mapped == "::0.0.0.1"


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/",
        "ftp://hooks.example.com/",
        "file:///etc/passwd",
        "//hooks.example.com/",
        "hooks.example.com",
        "https://",
        "https:///path",
        "https://user:secret@hooks.example.com/",
        "https://user@hooks.example.com/",
        "https://good.example\\@evil.example/",
        "https://hooks.example.com/#part",
        "https://hooks.example.com:0/",
        "https://hooks.example.com:22/",
        "https://hooks.example.com:25/",
        "https://hooks.example.com:99999/",
        "https://hooks.example.com:x/",
        "https://ho%6fks.example.com/",
        "https://hooks example.com/",
        "https://[::1]/",
        "https://[::1%25lo]/",
        "https://[nonsense]/",
        "https://hooks.example.com/\x00",
    ],
)
def test_a_url_that_is_not_plain_is_refused(url: str) -> None:
    with pytest.raises(TargetRefused):
        targets.parse(url, intranet=False)


@pytest.mark.parametrize("host", ["127.1", "0x7f.1", "2130706433", "0177.0.0.1", "localhost", "localhost."])
def test_other_spellings_of_this_machine_are_refused_when_they_are_resolved(host: str) -> None:
    with pytest.raises(TargetRefused):
        _resolved(f"https://{host}/")


def test_an_unknown_name_reads_like_one_that_leads_inside() -> None:
    target = targets.parse("https://hooks.example.com/", intranet=False)

    def unknown(*_: object) -> list[str]:
        raise OSError

    said = set()
    for resolve in (unknown, lambda *_: [], lambda *_: ["10.0.0.1"], lambda *_: ["nonsense"]):
        with pytest.raises(TargetRefused) as refused:
            targets.addresses(target, intranet=False, resolve=resolve)
        said.add(str(refused.value))
    assert len(said) == 1


def _resolved(url: str) -> list[targets.Address]:
    target = targets.parse(url, intranet=False)
    return targets.addresses(target, intranet=False, resolve=targets.system_resolver)


@pytest.mark.parametrize("address", [*(f"{a}%eth0" for a in PUBLIC if ":" in a), "fd00:ec2::254%1", "::1%lo"])
@pytest.mark.parametrize("intranet", [False, True])
def test_an_address_with_a_scope_id_is_not_allowed(address: str, intranet: bool) -> None:
    assert not targets.is_allowed(ip_address(address), intranet=intranet)
