"""The address policy: which addresses may be connected to."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network

import pytest

from app.errors import ForbiddenAddress
from app.http.addresses import AddressPolicy, is_public

pytestmark = pytest.mark.unit

#: The blocks of https://www.iana.org/assignments/iana-ipv4-special-registry and of iana-ipv6-special-registry,
#: multicast, and what is no global unicast address: IPv4-compatible, SIIT and site-local ones.
SPECIAL_PURPOSE = [
    "0.0.0.0/8", "0.0.0.0/32", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.0.0.0/29", "192.0.0.8/32", "192.0.0.9/32", "192.0.0.10/32", "192.0.0.170/32",
    "192.0.0.171/32", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16",
    "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4", "255.255.255.255/32",
    "224.0.0.0/4",
    "::1/128", "::/128", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2001::/32", "2001:1::1/128",
    "2001:1::2/128", "2001:1::3/128", "2001:2::/48", "2001:3::/32", "2001:4:112::/48", "2001:10::/28", "2001:20::/28",
    "2001:30::/28", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20", "5f00::/16", "fc00::/7",
    "fe80::/10", "fec0::/10", "ff00::/8", "::/96", "::ffff:0:0:0/96",
]  # fmt: skip


@pytest.mark.parametrize("block", SPECIAL_PURPOSE)
def test_no_address_of_a_special_purpose_block_is_public(block: str) -> None:
    network = ip_network(block)
    assert not any(is_public(each) for each in (network[0], network[network.num_addresses // 2], network[-1]))


@pytest.mark.parametrize("block", [each for each in SPECIAL_PURPOSE if ":" not in each])
def test_a_special_purpose_ipv4_address_is_not_public_within_ipv6(block: str) -> None:
    inner = int(ip_network(block)[-1])
    mapped, nat64 = IPv6Address((0xFFFF << 32) | inner), IPv6Address((0x64FF9B << 96) | inner)
    assert not is_public(mapped)
    assert not is_public(nat64)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "2606:2800:21f::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2001:200::1", "223.255.255.254"],
)
def test_public_addresses_are_recognised(address: str) -> None:
    assert is_public(ip_address(address))


def test_a_range_holds_the_address_that_an_ipv6_one_carries() -> None:
    policy = AddressPolicy(["127.0.0.0/8", "fd00::/8", "[fe80::1]:81"])
    policy.check("x.gov", 80, "::ffff:127.0.0.1")
    policy.check("x.gov", 80, "fd00::2")
    policy.check("fe80::1", 81, "fe80::1%eth0")
    with pytest.raises(ForbiddenAddress, match=r"x\.gov:80 has the address 10\.0\.0\.1"):
        policy.check("x.gov", 80, "10.0.0.1")
