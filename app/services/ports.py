"""Free ports on the loopback address."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

from app.errors import ServicesError

#: Below the kernel's range for outgoing connections (32768 and up), above the ports of packages.
CHOICE = range(20_000, 30_000)
#: The distribution ports of a default RabbitMQ node, which may start later.
RESERVED = frozenset({25_672, 25_673})


def is_free(port: int) -> bool:
    """Return whether `port` can be listened on at 127.0.0.1."""
    with socket.socket() as probe:
        # As servers do: connections in TIME_WAIT must not make a port look used.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def choose(names: Collection[str], *, avoid: Collection[int] = ()) -> dict[str, int]:
    """Return a free port for each of `names`, none of them in `avoid`."""
    chosen: dict[str, int] = {}
    for name in names:
        chosen[name] = _one(RESERVED.union(avoid, chosen.values()))
    return chosen


def _one(avoid: Collection[int]) -> int:
    for _ in range(200):
        port = random.choice(CHOICE)  # noqa: S311 - not a secret.
        if port not in avoid and is_free(port):
            return port
    raise ServicesError(f"no free port of 127.0.0.1 in {CHOICE.start}-{CHOICE.stop}")
