"""Decompression with an end: a megabyte that anybody may post is a gigabyte in the memory of whoever receives it."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any

from kombu import compression

#: Bytes of a body after decompression. RabbitMQ 4 takes no message of more (`max_message_size`), RabbitMQ 3 none of
#: eight times as many: a longer one could be received, but never be retried nor buried.
MAX_BODY = 16 * 1024 * 1024


class TooLong(ValueError):
    """Raised for a body that is too long, or is not one whole stream. It is then kept as it came."""


def install() -> None:
    """Let kombu decompress by this module, for every connection of the process."""
    bounded: dict[str, Callable[[], Any]] = {
        "gzip": zlib.decompressobj,
        "bzip2": bz2.BZ2Decompressor,
        "lzma": lzma.LZMADecompressor,
    }
    for alias, make in bounded.items():
        encoder, name = compression.get_encoder(alias)
        compression.register(encoder, _decoder(make), name)
    # Those that are there only beside certain packages are taken away, so that they are an error at the call, too:
    # nothing bounds what they make of a body.
    for name in ("application/x-brotli", "application/zstd"):
        compression._decoders.pop(name, None)
        compression._encoders.pop(name, None)


def _decoder(make: Callable[[], Any]) -> Callable[[bytes], bytes]:
    def decompress(body: bytes) -> bytes:
        stream = make()
        out: bytes = stream.decompress(body, MAX_BODY + 1)
        if len(out) > MAX_BODY:
            raise TooLong(f"more than {MAX_BODY} bytes after decompression")
        if not stream.eof or stream.unused_data:
            raise TooLong("it is not one whole compressed stream")
        return out

    return decompress
