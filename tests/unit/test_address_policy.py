"""The address policy: which addresses may be connected to."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from app.errors import ForbiddenAddress
from app.http.addresses import AddressPolicy, is_public

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
        "64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:7f00:1::", "192.0.2.1",
    ],
)  # fmt: skip
def test_private_and_reserved_addresses_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.215.14", "2606:2800:21f::1", "::ffff:8.8.8.8", "64:ff9b::808:808"]
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
