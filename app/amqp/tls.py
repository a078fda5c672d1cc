"""Whom a connection over TLS believes: a broker whose certificate names the host that was asked for."""

from __future__ import annotations

from urllib.parse import urlsplit

#: `ssl` of a kombu Connection, and Celery's `broker_use_ssl`.
Tls = dict[str, str | None] | bool


def tls(url: str) -> Tls:
    """Return what kombu is to be told of TLS for a broker's URL.

    Of `amqps` the certificate must name the host (RFC 9525); left to itself, kombu takes that of any host which an
    authority vouches for. The authorities are the system's, or those in the file SSL_CERT_FILE. Of several hosts, with
    semicolons between them, kombu would look for one name in the certificates of all: there it is left to itself.
    """
    if not url.startswith("amqps:"):
        return False
    return True if ";" in url else {"server_hostname": urlsplit(url).hostname}
