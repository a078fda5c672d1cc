"""Answers that hurt a careless crawler: drips, floods, bombs, lies and broken framing."""

from __future__ import annotations

import gzip
import socket
import struct
import zlib

from tests.servers.site import HTML, Answer, Request, Wire, head

_OPEN_ENDED = (("Content-Type", HTML), ("Connection", "close"))


def drip(data: bytes = b"<p>drip</p>" * 1000, *, seconds: float) -> Answer:
    """Send one byte every `seconds`: each read succeeds, the whole never ends in time."""

    def answer(_: Request, wire: Wire) -> None:
        wire.send(head(200, [("Content-Type", HTML), ("Content-Length", str(len(data)))]))
        for byte in data:
            wire.send(bytes([byte]))
            wire.pause(seconds)

    return answer


def drip_headers(*, seconds: float) -> Answer:
    """Send one header line every `seconds` and no body."""

    def answer(_: Request, wire: Wire) -> None:
        wire.send(b"HTTP/1.1 200 OK\r\n")
        for number in range(90):
            wire.send(f"X-Slow-{number}: {number}\r\n".encode())
            wire.pause(seconds)
        wire.send(b"Content-Length: 0\r\n\r\n")

    return answer


def silence() -> Answer:
    """Accept the request and say nothing for a minute."""

    def answer(_: Request, wire: Wire) -> None:
        wire.pause(60)
        wire.close()

    return answer


def endless() -> Answer:
    """Send a body without end, until the client hangs up."""

    def answer(_: Request, wire: Wire) -> None:
        wire.close()
        wire.send(head(200, _OPEN_ENDED))
        while True:
            wire.send(b"<p>more and more text</p>\n" * 2_500)
            wire.pause(0)

    return answer


def bomb(size: int, *, block: bytes = bytes(1024 * 1024), status: int = 200) -> Answer:
    """Send about `size` bytes gzipped to a small part of that: `block` again and again, zeros by default."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = b"".join(packer.compress(block) for _ in range(size // len(block))) + packer.flush()

    def answer(_: Request, wire: Wire) -> None:
        fields = [("Content-Type", HTML), ("Content-Encoding", "gzip"), ("Content-Length", str(len(packed)))]
        wire.send(head(status, fields) + packed)

    return answer


def zipped(data: bytes, *, content_type: str = HTML) -> Answer:
    """Send a well-formed gzip body."""
    return _encoded(gzip.compress(data), content_type)


def bad_gzip() -> Answer:
    """Send a gzip body whose second half is garbage."""
    packed = gzip.compress(b"<title>Half</title>" * 5_000, compresslevel=1)
    return _encoded(packed[: len(packed) // 2] + b"\xff" * (len(packed) // 2), HTML)


def short_gzip() -> Answer:
    """Send a gzip stream cut off in the middle, framed as if it were whole."""
    packed = gzip.compress(b"<title>Half</title>" + bytes(range(256)) * 400)
    return _encoded(packed[: len(packed) // 2], HTML)


def _encoded(packed: bytes, content_type: str) -> Answer:
    def answer(_: Request, wire: Wire) -> None:
        fields = [("Content-Type", content_type), ("Content-Encoding", "gzip"), ("Content-Length", str(len(packed)))]
        wire.send(head(200, fields) + packed)

    return answer


def bad_chunking() -> Answer:
    """Send one good chunk, then a chunk size that is no number."""
    return _raw(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"1c\r\n<title>Half a page</title>  \r\nzz\r\nmore\r\n0\r\n\r\n"
    )


def short_body() -> Answer:
    """Promise more bytes than are sent, then close."""
    return _raw(head(200, [("Content-Type", HTML), ("Content-Length", "10000")]) + b"<title>Half a page</title>")


def not_http() -> Answer:
    """Answer with something that is not HTTP."""
    return _raw(b"SSH-2.0-OpenSSH_9.2\r\n" + b"\x00\x01" * 40 + b"\r\n")


def huge_headers() -> Answer:
    """Send far more header lines than any server needs."""
    lines = b"".join(b"X-Filler-%d: %s\r\n" % (number, b"x" * 200) for number in range(5_000))
    return _raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n" + lines + b"Content-Length: 2\r\n\r\nok")


def long_header() -> Answer:
    """Send one header line of 200,000 characters."""
    return _raw(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 200_000 + b"\r\nContent-Length: 2\r\n\r\nok")


def reset() -> Answer:
    """Reset the connection in place of an answer."""

    def answer(_: Request, wire: Wire) -> None:
        # With a linger time of zero, closing sends RST in place of FIN.
        wire.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.connection.close()
        wire.close()

    return answer


def _raw(data: bytes) -> Answer:
    def answer(_: Request, wire: Wire) -> None:
        wire.close()
        wire.send(data)

    return answer
