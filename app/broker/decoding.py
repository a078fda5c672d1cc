"""Decoding that raises for nothing a broker lets through: in py-amqp such a message stops whoever receives it.

Anybody may post a timestamp of the year 55840 (milliseconds where AMQP has seconds), a text that is no UTF-8, or tables
nested by the thousand. RabbitMQ takes them; py-amqp raises in its event loop, where neither Celery nor we can catch it,
and the message comes back to stop the next worker. With `install` they arrive as values that can be read, and that are
written again as they came. What else is garbage (an unknown type, a field cut short, NaN), RabbitMQ itself refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import unpack_from
from typing import Any

from amqp import abstract_channel, serialization
from amqp.spec import Basic

from . import decompressing

#: Tables within tables above which a header's value stays as it came: pickling, writing and printing recurse, too.
MAX_DEPTH = 50

_TABLE, _ARRAY, _TIMESTAMP = b"FAT"

_pristine_read: Callable[..., Any] = serialization._read_item
_pristine_write: Callable[..., None] = serialization._write_item
_pristine_loads: Callable[..., Any] = serialization.loads


class Garbled(str):
    """A text that is no UTF-8: reads with `\\xff` where it could not be decoded, and is sent as it came."""

    raw: bytes

    def __new__(cls, raw: bytes) -> Garbled:
        """Make it of the bytes."""
        text = super().__new__(cls, raw.decode(errors="backslashreplace"))
        text.raw = bytes(raw)
        return text

    def __reduce__(self) -> tuple[type[Garbled], tuple[bytes]]:
        """Travel to a pool process as the bytes."""
        return Garbled, (self.raw,)

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        """Return the bytes, whatever encoding is asked for: py-amqp encodes what it sends."""
        del encoding, errors
        return self.raw


class Timestamp(int):
    """A timestamp beyond the year 9999, in the unit its sender had: mostly milliseconds since the epoch."""


class Undecoded(bytes):
    """A header's value, type letter included, that is nested too deep to be decoded."""


def install() -> None:
    """Let py-amqp decode and encode by this module, and decompress little, for every connection of the process."""
    decompressing.install()
    serialization._read_item = read_item
    serialization._write_item = write_item
    serialization.PROPERTY_CLASSES[Basic.CLASS_ID] = read_properties
    abstract_channel.loads = read_arguments


def read_item(buffer: bytes, offset: int, depth: int = 0) -> tuple[Any, int]:
    """Return one value of a table, and the offset behind it (AMQP 0-9-1, 4.2.5.5, with RabbitMQ's errata)."""
    kind = buffer[offset]
    if kind in (_TABLE, _ARRAY):
        if depth >= MAX_DEPTH:
            end = offset + 5 + _size(buffer, offset + 1)
            return Undecoded(buffer[offset:end]), end
        return (_read_table if kind == _TABLE else _read_array)(buffer, offset + 1, depth + 1)
    if kind == _TIMESTAMP:
        try:
            return _pristine_read(buffer, offset)  # type: ignore[no-any-return]
        except (ValueError, OverflowError, OSError):
            return Timestamp(unpack_from(">Q", buffer, offset + 1)[0]), offset + 9
    return _pristine_read(buffer, offset)  # type: ignore[no-any-return]


def write_item(value: Any, write: Callable[[bytes], Any], bits: Any) -> None:
    """Write one value of a table; what could not be decoded goes out as it came."""
    if isinstance(value, Undecoded):
        write(value)
    elif isinstance(value, Timestamp):
        write(b"T" + value.to_bytes(8))
    else:
        _pristine_write(value, write, bits)


def read_properties(buffer: bytes, offset: int) -> tuple[dict[str, Any], int]:
    """Return the properties of a message, and the offset behind them (AMQP 0-9-1, 4.2.6.1)."""
    properties: dict[str, Any] = {}
    (flags,) = unpack_from(">H", buffer, offset)
    offset += 2
    for position, (name, read) in enumerate(_PROPERTIES):
        if flags & 0x8000 >> position:
            properties[name], offset = read(buffer, offset)
    return properties, offset


def read_arguments(pattern: Any, buffer: bytes, offset: int) -> tuple[list[Any], int]:
    """Return the arguments of a method: a routing key may be no UTF-8, and so may what an error says of it."""
    try:
        arguments, end = _pristine_loads(pattern, buffer, offset)
        # Half a surrogate pair passes py-amqp, but can neither be printed nor stored.
        "".join(each for each in arguments if isinstance(each, str)).encode()
    except UnicodeError:
        return _pristine_loads(pattern, _Lenient(buffer), offset)  # type: ignore[no-any-return]
    return arguments, end


class _Lenient(bytes):
    """A buffer whose parts are decoded whatever they are."""

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        return _Lenient(part) if isinstance(part, bytes) else part

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        del encoding, errors
        return _text(bytes(self))


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return Garbled(raw)


def _size(buffer: bytes, offset: int) -> int:
    size: int = unpack_from(">I", buffer, offset)[0]
    return size


def _read_short(buffer: bytes, offset: int) -> tuple[str, int]:
    end = offset + 1 + buffer[offset]
    return _text(buffer[offset + 1 : end]), end


def _read_table(buffer: bytes, offset: int, depth: int = 0) -> tuple[dict[str, Any], int]:
    end = offset + 4 + _size(buffer, offset)
    offset += 4
    table = {}
    while offset < end:
        name, offset = _read_short(buffer, offset)
        table[name], offset = read_item(buffer, offset, depth)
    return table, offset


def _read_array(buffer: bytes, offset: int, depth: int) -> tuple[list[Any], int]:
    end = offset + 4 + _size(buffer, offset)
    offset += 4
    array = []
    while offset < end:
        value, offset = read_item(buffer, offset, depth)
        array.append(value)
    return array, offset


def _read_octet(buffer: bytes, offset: int) -> tuple[int, int]:
    return buffer[offset], offset + 1


def _read_long_long(buffer: bytes, offset: int) -> tuple[int, int]:
    return unpack_from(">Q", buffer, offset)[0], offset + 8


#: The properties of class `basic`, in the order of their flags.
_PROPERTIES: tuple[tuple[str, Callable[[bytes, int], tuple[Any, int]]], ...] = (
    ("content_type", _read_short),
    ("content_encoding", _read_short),
    ("application_headers", _read_table),
    ("delivery_mode", _read_octet),
    ("priority", _read_octet),
    ("correlation_id", _read_short),
    ("reply_to", _read_short),
    ("expiration", _read_short),
    ("message_id", _read_short),
    ("timestamp", _read_long_long),
    ("type", _read_short),
    ("user_id", _read_short),
    ("app_id", _read_short),
    ("cluster_id", _read_short),
)
