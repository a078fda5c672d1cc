"""Ports of the loopback address: which are free, and which a server listens on."""

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
    try:
        # With SO_REUSEADDR, as servers have it: connections in TIME_WAIT must not make a port look used.
        socket.create_server(("127.0.0.1", port), backlog=1).close()
    except OSError:
        return False
    return True


def is_listening(port: int) -> bool:
    """Return whether a server listens on `port` at 127.0.0.1."""
    # By connecting: a bind to try the port could make the server's own bind fail.
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True


def choose(names: Collection[str], *, avoid: Collection[int] = ()) -> dict[str, int]:
    """Return a free port for each of `names`, none of them in `avoid`; raises ServicesError where too few are free."""
    candidates = [port for port in CHOICE if port not in RESERVED.union(avoid)]
    random.shuffle(candidates)
    free = (port for port in candidates if is_free(port))
    chosen = dict(zip(names, free, strict=False))
    if len(chosen) < len(names):
        raise ServicesError(f"no free port of 127.0.0.1 in {CHOICE.start}-{CHOICE.stop}")
    return chosen
