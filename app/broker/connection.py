"""How every connection to a broker is made: nothing waits for ever, and TLS only with the host that was asked for."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from kombu import Connection

#: `ssl` of a kombu Connection, and Celery's `broker_use_ssl`.
Tls = dict[str, str | None] | bool


def connection_to(url: str, *, timeout: float, heartbeat: float = 0.0, **options: Any) -> Connection:
    """Return a connection to the broker at `url`, which is not made yet.

    Making it takes at most `timeout` seconds, and so does each read and write: a broker that answers nothing must not
    stop whoever waits. `options` are further ones of kombu's transport.
    """
    bounds = {"read_timeout": timeout, "write_timeout": timeout}
    return Connection(
        url, ssl=tls(url), connect_timeout=timeout, heartbeat=heartbeat, transport_options={**bounds, **options}
    )


def tls(url: str) -> Tls:
    """Return what kombu is to be told of TLS for a broker's URL.

    Of `amqps` the certificate must name the host (RFC 9525); left to itself, kombu takes that of any host which an
    authority vouches for. The authorities are the system's, or those in the file SSL_CERT_FILE. Of several hosts, with
    semicolons between them, kombu would look for one name in the certificates of all: there it is left to itself.
    """
    if not url.startswith("amqps:"):
        return False
    return True if ";" in url else {"server_hostname": urlsplit(url).hostname}
