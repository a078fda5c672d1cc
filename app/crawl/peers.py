"""Which addresses may be connected to: public ones, and those that ALLOW_PRIVATE_HOSTS names."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from app.errors import ForbiddenAddress

#: RFC 6052: a gateway behind this prefix connects to the IPv4 address in its last 32 bits.
_NAT64 = IPv6Network("64:ff9b::/96")


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Tell whether an address is globally reachable unicast, also the IPv4 address that an IPv6 one may carry."""
    inner = _carried(address) if isinstance(address, IPv6Address) else None
    return address.is_global and not address.is_multicast if inner is None else is_public(inner)


def _carried(address: IPv6Address) -> IPv4Address | None:
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


class AddressRule:
    """Who may be talked to: public addresses, and those that `allowed` names by `host`, `host:port` or CIDR range."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        entries = [entry.strip().lower() for entry in allowed]
        self._hosts = frozenset(entry for entry in entries if "/" not in entry)
        self._ranges: list[IPv4Network | IPv6Network] = [ip_network(e, strict=False) for e in entries if "/" in e]

    def check(self, host: str, port: int, peer: str) -> None:
        """Raise ForbiddenAddress unless `host` and `port`, found at the IP address `peer`, may be talked to."""
        address = ip_address(peer.partition("%")[0])
        if not (is_public(address) or self._names(host.strip("[]").lower(), port) or self._holds(address)):
            raise ForbiddenAddress(f"{host}:{port} is at {peer}, which is not public; ALLOW_PRIVATE_HOSTS may name it")

    def _names(self, host: str, port: int) -> bool:
        bracketed = f"[{host}]" if ":" in host else host
        return not self._hosts.isdisjoint((host, bracketed, f"{bracketed}:{port}"))

    def _holds(self, address: IPv4Address | IPv6Address) -> bool:
        inner = _carried(address) if isinstance(address, IPv6Address) else None
        return any(candidate in network for network in self._ranges for candidate in (address, inner) if candidate)
