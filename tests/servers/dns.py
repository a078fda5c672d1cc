"""Names that are this machine, without a server of names."""

from __future__ import annotations

import socket
from typing import Any

import pytest


def resolved_here(monkeypatch: pytest.MonkeyPatch, domain: str) -> None:
    """Let each name below a domain be this machine, for this process."""
    resolve = socket.getaddrinfo

    def resolve_here(host: str, *rest: Any, **options: Any) -> Any:
        return resolve("127.0.0.1" if str(host).endswith(f".{domain}") else host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_here)
