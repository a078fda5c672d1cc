"""SSRF address policy: public addresses may be connected to, and those that ALLOW_PRIVATE_HOSTS names."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from app.errors import ForbiddenAddress

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


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is globally reachable unicast; of an IPv6 address also the IPv4 one inside it."""
    inner = _embedded_ipv4(address)
    return address.is_global and not address.is_multicast if inner is None else is_public(inner)


def _embedded_ipv4(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that a NAT64, IPv4-mapped or 6to4 address stands for, or None."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


#: For servers that the user's own settings name, such as the archive or the broker's management API.
ANY_ADDRESS = AddressPolicy(["0.0.0.0/0", "::/0"])
