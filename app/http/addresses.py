"""SSRF address policy: public addresses may be connected to, and those that ALLOW_PRIVATE_HOSTS names."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from app.errors import ForbiddenAddress

#: https://www.iana.org/assignments/iana-ipv4-special-registry without its three small exceptions, and multicast. Those
#: exceptions (192.0.0.9, AMT relays, AS112) are global, but serve no pages.
_SPECIAL_IPV4 = [
    IPv4Network(each)
    for each in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
    )
]  # fmt: skip
#: The only IPv6 space that is assigned to sites (https://www.iana.org/assignments/ipv6-address-space). Outside of it
#: are IPv4-compatible, SIIT, local NAT64, unique local, link-local, site-local and multicast addresses.
_GLOBAL_IPV6 = IPv6Network("2000::/3")
#: https://www.iana.org/assignments/iana-ipv6-special-registry within that space: protocols (Teredo, ORCHID and others),
#: documentation, 6to4 (withdrawn by RFC 7526), AS112.
_SPECIAL_IPV6 = [
    IPv6Network(each) for each in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
]
#: RFC 6052: a gateway behind this prefix connects to the IPv4 address in its last 32 bits.
_NAT64 = IPv6Network("64:ff9b::/96")


class AddressPolicy:
    """Allow public addresses, and those that `allowed` names by `host`, `host:port` or CIDR range."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        entries = [entry.strip().lower() for entry in allowed]
        self._hosts = frozenset(entry for entry in entries if "/" not in entry)
        self._ranges: list[IPv4Network | IPv6Network] = [ip_network(e, strict=False) for e in entries if "/" in e]

    def check(self, host: str, port: int, peer: str) -> None:
        """Raise ForbiddenAddress unless the policy allows `host` and `port` at the connected IP address `peer`."""
        address = ip_address(peer.partition("%")[0])
        if is_public(address):
            return
        name = host.strip("[]").lower()
        bracketed = f"[{name}]" if ":" in name else name
        if not self._hosts.isdisjoint((name, bracketed, f"{bracketed}:{port}")):
            return
        candidates = (address, _embedded_ipv4(address))
        if not any(each in network for network in self._ranges for each in candidates if each):
            raise ForbiddenAddress(
                f"{host}:{port} has the address {peer}, which is not public; ALLOW_PRIVATE_HOSTS can allow it"
            )

    def check_literal(self, host: str, port: int) -> None:
        """Raise ForbiddenAddress for a host that is an IP address and that the policy forbids; names pass."""
        try:
            address = ip_address(host.strip("[]"))
        except ValueError:
            return
        self.check(host, port, str(address))


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is global unicast, in no special-purpose registry of IANA.

    An IPv4-mapped or a NAT64 address is as public as the IPv4 address inside it. A prefix that a network chose for its
    own NAT64 (RFC 6052 section 2.2) looks like any other address.
    """
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _SPECIAL_IPV4)
    if address in _NAT64 or address.ipv4_mapped:
        inner = _embedded_ipv4(address)
        return inner is not None and is_public(inner)
    return address in _GLOBAL_IPV6 and not any(address in network for network in _SPECIAL_IPV6)


def _embedded_ipv4(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address inside a NAT64, IPv4-mapped or 6to4 address, or None."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


#: For servers that the user's own settings name, such as the archive or the broker's management API.
ANY_ADDRESS = AddressPolicy(["0.0.0.0/0", "::/0"])
