"""Messages whose properties are bytes of one's own: what no client library would let one send."""

from __future__ import annotations

from struct import pack
from typing import Any

from amqp import Message


class Raw(Message):  # type: ignore[misc]
    """A message with encoded properties: flags and fields, as they go over the wire."""

    def __init__(self, body: bytes, properties: bytes) -> None:
        super().__init__(body)
        self._encoded = properties

    def _serialize_properties(self) -> bytes:
        return self._encoded


class Key(str):
    """A routing key of any bytes."""

    raw: bytes

    def __new__(cls, raw: bytes) -> Key:
        key = super().__new__(cls, "key")
        key.raw = raw
        return key

    def encode(self, *_: Any) -> bytes:
        return self.raw


def headers(*fields: bytes) -> bytes:
    """Return properties with nothing but headers, each a `field`."""
    return pack(">H", 0x2000) + _long(b"".join(fields))


def text_property(flag: int, raw: bytes) -> bytes:
    """Return properties with nothing but one short text, the one of that flag."""
    return pack(">H", flag) + _short(raw)


def field(name: bytes, value: bytes) -> bytes:
    """Return a header; its value begins with the letter of its type."""
    return _short(name) + value


def timestamp(value: int) -> bytes:
    """Return a value of type timestamp, which has seconds where its sender kept to AMQP."""
    return b"T" + pack(">Q", value)


def text(raw: bytes) -> bytes:
    """Return a value of type long string."""
    return b"S" + _long(raw)


def integer(value: int) -> bytes:
    """Return a value of type long integer, or of type long long integer where 32 bits do not hold it."""
    return b"I" + pack(">i", value) if abs(value) < 2**31 else b"l" + pack(">q", value)


def table(*fields: bytes) -> bytes:
    """Return a value of type table, made of `field`s."""
    return b"F" + _long(b"".join(fields))


def array(*values: bytes) -> bytes:
    """Return a value of type array."""
    return b"A" + _long(b"".join(values))


def nested(depth: int) -> bytes:
    """Return tables in tables."""
    value = b"t\x01"
    for _ in range(depth):
        value = b"F" + _long(field(b"", value))
    return value


def _short(raw: bytes) -> bytes:
    return bytes([len(raw)]) + raw


def _long(raw: bytes) -> bytes:
    return pack(">I", len(raw)) + raw
