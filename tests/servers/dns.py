"""Names that are this machine: those below `test.` by a DNS server, which can answer late, and others in a process."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Any

import pytest

#: The record types and the class of the answers (RFC 1035).
_A, _IN = 1, 1

_HEADER = struct.Struct(">6H")


class DnsServer:
    """Answers queries for `*.test` with 127.0.0.1, each after `delay` seconds. Port 53 needs root."""

    ADDRESS = "127.0.53.1"

    def __init__(self) -> None:
        self.delay = 0.0
        self.queries = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((self.ADDRESS, 53))
        self._thread = threading.Thread(target=self._serve, name="dns", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop: a query that comes later gets no answer."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", (self.ADDRESS, 53))
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            query, client = self._socket.recvfrom(512)
            if not query:
                return
            self.queries += 1
            timer = threading.Timer(self.delay, self._reply, (answer_to(query), client))
            timer.daemon = True
            timer.start()

    def _reply(self, answer: bytes, client: tuple[str, int]) -> None:
        try:
            self._socket.sendto(answer, client)
        except OSError:
            return


def answer_to(query: bytes) -> bytes:
    """Return the answer to a query: one address for an A query of a name below `test.`, else none."""
    number, flags, *_ = _HEADER.unpack_from(query)
    labels, offset = [], _HEADER.size
    while length := query[offset]:
        labels.append(query[offset + 1 : offset + 1 + length])
        offset += 1 + length
    question = query[_HEADER.size : offset + 5]
    kind, _ = struct.unpack_from(">2H", query, offset + 1)
    is_ours = labels[-1:] == [b"test"]
    # A response with authority and recursion; NXDOMAIN (3) for other names. The answer points to the question's name.
    code = 0x8580 | (flags & 0x0100) | (0 if is_ours else 3)
    address = struct.pack(">3HIH4B", 0xC00C, _A, _IN, 0, 4, 127, 0, 0, 1) if is_ours and kind == _A else b""
    return _HEADER.pack(number, code, 1, bool(address), 0, 0) + question + address


def resolved_here(monkeypatch: pytest.MonkeyPatch, domain: str) -> None:
    """Let each name below a domain be this machine, for this process."""
    resolve = socket.getaddrinfo

    def resolve_here(host: str, *rest: Any, **options: Any) -> Any:
        return resolve("127.0.0.1" if str(host).endswith(f".{domain}") else host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_here)
