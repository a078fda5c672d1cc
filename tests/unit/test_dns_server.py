"""The DNS server of the harness, by queries of its own."""

from __future__ import annotations

import socket
import struct
import time
from contextlib import closing

import pytest

from tests.servers.dns import DnsServer, answer_to

pytestmark = pytest.mark.unit

A, AAAA = 1, 28


def query(name: str, kind: int) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", kind, 1)


def test_a_name_below_test_has_one_address_and_another_name_does_not_exist() -> None:
    found = answer_to(query("site1.test", A))
    assert struct.unpack_from(">6H", found) == (7, 0x8580, 1, 1, 0, 0)
    assert found.endswith(socket.inet_aton("127.0.0.1"))
    assert struct.unpack_from(">6H", answer_to(query("site1.test", AAAA)))[3] == 0
    assert struct.unpack_from(">6H", answer_to(query("site1.example", A)))[1] & 0xF == 3


def test_an_answer_comes_after_the_delay() -> None:
    with closing(DnsServer(port=0)) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(10)
        server.delay = 0.1
        began = time.monotonic()
        client.sendto(query("a.test", A), server.address)
        assert client.recv(512) == answer_to(query("a.test", A))
        assert time.monotonic() - began >= 0.1
