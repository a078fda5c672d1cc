"""The only module that relies on internals of py-amqp and kombu. `install` changes how both read and write a message.

RabbitMQ lets values through for which py-amqp's decoder raises. Examples are a timestamp after the year 9999, a text
that is not UTF-8, and tables nested by the thousand. The decoder raises in its event loop, where neither
Celery nor this package can catch it, and the redelivered message stops the next worker. After `install` these values
are readable and are written again as they came. RabbitMQ itself refuses all other malformed values (an unknown type, a
field cut short, NaN).

kombu decompresses a body without a limit: a message of 1 MB can take 1 GB of memory. `install` adds the limit. py-amqp
decodes a body by any charset that Python knows, and two of them are slow. `install` leaves these bodies undecoded.

tests/unit/test_amqp_internals.py fails when one of the internals named here changes.
"""

from __future__ import annotations

import bz2
import codecs
import lzma
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from struct import pack, unpack_from
from types import MappingProxyType
from typing import Any

from amqp import abstract_channel, serialization
from amqp.exceptions import AccessRefused
from amqp.spec import Basic
from kombu import compression
from kombu.messaging import Consumer

#: Nested tables deeper than this stay encoded: pickling, writing and printing a value recurse, too.
MAX_DEPTH = 50

#: Bytes of a body after decompression. RabbitMQ 4 refuses larger messages (`max_message_size`), and RabbitMQ 3 those of
#: 128 MiB: a larger body could be received, but neither retried nor dead-lettered.
MAX_BODY = 16 * 1024 * 1024

#: Charsets of host names. Python's decoders take quadratic time: ten minutes for a body of 1 MB.
_SLOW_CHARSETS = ("punycode", "idna")

_TABLE, _ARRAY, _TIMESTAMP = b"FAT"

_original_read_item: Callable[..., Any] = serialization._read_item
_original_write_item: Callable[..., None] = serialization._write_item
_original_loads: Callable[..., Any] = serialization.loads
_original_read_properties: Callable[..., Any] = serialization.decode_properties_basic

#: How many tables and arrays this thread is reading within each other.
_nesting = threading.local()


class UndecodableText(str):
    """A text that is not UTF-8: it reads with `\\xff` for the invalid bytes, and is sent as it came."""

    raw: bytes

    def __new__(cls, raw: bytes, reading: str | None = None) -> UndecodableText:
        """Create the text from its bytes; `reading` is what to read instead of them."""
        text = super().__new__(cls, raw.decode(errors="backslashreplace") if reading is None else reading)
        text.raw = bytes(raw)
        return text

    def __reduce__(self) -> tuple[type[UndecodableText], tuple[bytes, str]]:
        """Pickle the bytes and how they read, for a pool process."""
        return UndecodableText, (self.raw, str(self))

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        """Return the bytes, for every encoding: py-amqp encodes what it sends."""
        del encoding, errors
        return self.raw


class LateTimestamp(int):
    """A timestamp after the year 9999, in its sender's unit: mostly milliseconds since the epoch."""


class NestedTooDeep(bytes):
    """A header's value, type letter included, that is nested deeper than MAX_DEPTH."""


class BodyTooLong(ValueError):
    """Raised for a compressed body that is longer than MAX_BODY or not one complete stream. It stays compressed."""


def install() -> None:
    """Replace py-amqp's decoder and kombu's decompression for every connection of the process."""
    serialization._read_item = read_item
    serialization._write_item = write_item
    serialization.PROPERTY_CLASSES[Basic.CLASS_ID] = read_properties
    abstract_channel.loads = read_arguments
    decompressors: dict[str, Callable[[], Any]] = {
        "gzip": zlib.decompressobj,
        "bzip2": bz2.BZ2Decompressor,
        "lzma": lzma.LZMADecompressor,
    }
    for alias, decompressor in decompressors.items():
        encoder, name = compression.get_encoder(alias)
        compression.register(encoder, _bounded(decompressor), name)
    # kombu offers these two only where certain packages are installed, and nothing bounds them.
    for name, aliases in (("application/x-brotli", ["brotli"]), ("application/zstd", ["zstd", "zstandard"])):
        compression.register(_refuse_compression, _refuse_compression, name, aliases)


def close_after_fork(pools: Iterable[Any]) -> None:
    """Mark kombu pools as closed in a forked child, without touching the sockets that belong to the parent.

    kombu's own clean-up shuts the sockets down, and the parent then finds them dead. It skips a closed pool.
    """
    for pool in pools:
        pool._closed = True


class PrefetchingConsumer(Consumer):  # type: ignore[misc]
    """A kombu consumer whose tags are the names of its queues, and which prefetches more messages from some of them.

    A message names its tag, and otherwise not its queue. RabbitMQ notes the prefetch count with each consumer; kombu
    and Celery set one for all queues of a channel.
    """

    #: The prefetch count of all other queues, and of these by name.
    usual_prefetch = 0
    prefetch: Mapping[str, int] = MappingProxyType({})
    #: Called with a queue from which the broker refuses to let this consumer read, and the error that is raised then.
    on_refused: Callable[[Any, AccessRefused], None] = staticmethod(lambda *_: None)

    def _basic_consume(self, queue: Any, **options: Any) -> Any:
        count = None if self.consuming_from(queue) else self.prefetch.get(queue.name)
        if count is not None:
            self.channel.basic_qos(0, count, False)
        try:
            # kombu waits for the last answer only, so that a refusal would not belong to a queue.
            tag = super()._basic_consume(queue, queue.name, **{**options, "nowait": False})
        except AccessRefused as error:
            self.on_refused(queue, error)
            raise
        if count is not None:
            self.channel.basic_qos(0, self.usual_prefetch, False)
        return tag


def forget_decoded_body(message: Any) -> None:
    """Let a kombu Message decode its body again, after the body was replaced."""
    message._decoded_cache = None


def encode_properties(message: Any) -> int:
    """Encode the properties and headers of a py-amqp message once, and return their size; raises as py-amqp does."""
    encoded: bytes = message._serialize_properties()
    message._serialize_properties = lambda: encoded
    return len(encoded)


def read_item(buffer: bytes, offset: int) -> tuple[Any, int]:
    """Return one value of a table, and the offset behind it (AMQP 0-9-1, 4.2.5.5, with RabbitMQ's errata)."""
    kind = buffer[offset]
    if kind not in (_TABLE, _ARRAY):
        try:
            return _original_read_item(buffer, offset)  # type: ignore[no-any-return]
        except (ValueError, OverflowError, OSError):
            if kind != _TIMESTAMP:
                raise
            return LateTimestamp(unpack_from(">Q", buffer, offset + 1)[0]), offset + 9
    depth = getattr(_nesting, "depth", 0)
    if depth >= MAX_DEPTH:
        end = offset + 5 + unpack_from(">I", buffer, offset + 1)[0]
        return NestedTooDeep(buffer[offset:end]), end
    _nesting.depth = depth + 1
    try:
        # py-amqp reads each value of the table or array by this function again.
        value, end = _original_read_item(buffer, offset)
    finally:
        _nesting.depth = depth
    return (_with_readable_names(value) if isinstance(value, dict) else value), end


def write_item(value: Any, write: Callable[[bytes], Any], bits: Any) -> None:
    """Write one value of a table; what could not be decoded goes out as it came.

    py-amqp writes integers of 64 bits with the type `L`. RabbitMQ passes it on, and amqplib ends its connection on it.
    Raises struct.error for an integer of more than 64 bits with its sign.
    """
    if isinstance(value, NestedTooDeep):
        write(value)
    elif isinstance(value, LateTimestamp):
        write(b"T" + value.to_bytes(8))
    elif isinstance(value, int) and abs(value) >= 2**31:
        # The type of a signed integer of 64 bits in RabbitMQ's errata to AMQP 0-9-1.
        write(pack(">cq", b"l", value))
    else:
        _original_write_item(value, write, bits)


def read_properties(buffer: bytes, offset: int) -> tuple[dict[str, Any], int]:
    """Return the properties of a message, and the offset behind them (AMQP 0-9-1, 4.2.6.1)."""
    try:
        properties, end = _original_read_properties(buffer, offset)
        _require_whole_characters(properties.values())
    except UnicodeError:
        properties, end = _original_read_properties(_TolerantBuffer(buffer), offset)
    charset = properties.get("content_encoding") or "utf-8"
    # py-amqp decodes each body by its charset. A text that names none is in place of a slow one.
    with suppress(LookupError, ValueError):
        if charset != "utf-8" and codecs.lookup(charset).name in _SLOW_CHARSETS:
            properties["content_encoding"] = UndecodableText(charset.encode(), f"{charset}, which is not decoded")
    if "application_headers" in properties:
        properties["application_headers"] = _with_readable_names(properties["application_headers"])
    return properties, end


def read_arguments(pattern: Any, buffer: bytes, offset: int) -> tuple[list[Any], int]:
    """Return the arguments of a method. A routing key may not be UTF-8, nor an error text that quotes it."""
    try:
        arguments, end = _original_loads(pattern, buffer, offset)
        _require_whole_characters(arguments)
    except UnicodeError:
        return _original_loads(pattern, _TolerantBuffer(buffer), offset)  # type: ignore[no-any-return]
    return arguments, end


class _TolerantBuffer(bytes):
    """A buffer whose slices decode to a text even where they are not UTF-8."""

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        return _TolerantBuffer(part) if isinstance(part, bytes) else part

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        del encoding, errors
        return _text(bytes(self))


def _refuse_compression(_body: bytes) -> bytes:
    """Raise BodyTooLong, for sending and for receiving."""
    raise BodyTooLong("no limit can be set to this compression; use gzip, bzip2 or lzma")


def _bounded(decompressor: Callable[[], Any]) -> Callable[[bytes], bytes]:
    """Return a decompression function that raises BodyTooLong instead of returning more than MAX_BODY bytes."""

    def decompress(body: bytes) -> bytes:
        stream = decompressor()
        decompressed: bytes = stream.decompress(body, MAX_BODY + 1)
        if len(decompressed) > MAX_BODY:
            raise BodyTooLong(f"more than {MAX_BODY} bytes after decompression")
        if not stream.eof or stream.unused_data:
            raise BodyTooLong("the body is not one complete compressed stream")
        return decompressed

    return decompress


#: Return the content of a gzip body; raises BodyTooLong, and zlib.error for anything else than gzip.
gunzip = _bounded(lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS))


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return UndecodableText(raw)


def _require_whole_characters(values: Iterable[Any]) -> None:
    """Raise UnicodeError for half a surrogate pair, which passes py-amqp, but can be neither printed nor stored."""
    "".join(each for each in values if isinstance(each, str)).encode()


def _with_readable_names(table: dict[Any, Any]) -> dict[str, Any]:
    """Return a table with texts as names: py-amqp leaves bytes that are not UTF-8, and halves of surrogate pairs."""
    try:
        "".join(table).encode()
    except (TypeError, UnicodeError):
        raw = (name if isinstance(name, bytes) else name.encode("utf-8", "surrogatepass") for name in table)
        return dict(zip(map(_text, raw), table.values(), strict=True))
    return table
