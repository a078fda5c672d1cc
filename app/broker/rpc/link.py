"""An open connection of py-amqp, read without ever waiting in the middle of a frame."""

from __future__ import annotations

import select
import ssl
from dataclasses import dataclass
from typing import Any

#: Bytes that are taken from the socket at a time: all frames of a usual message, or all that a record of TLS holds.
_CHUNK = 64 * 1024
#: Octets of a frame before its payload and in all besides it, and where the payload's size stands (AMQP 0-9-1, 4.2.3).
_FRAME_HEAD, _FRAME_REST, _FRAME_SIZE = 7, 8, slice(3, 7)


@dataclass(frozen=True, slots=True)
class Link:
    """An open connection of py-amqp, its socket and its only channel."""

    connection: Any
    transport: Any
    socket: Any
    channel: Any
    outward: Any
    timeout: float

    @classmethod
    def of(cls, connection: Any, channel: Any, *, timeout: float) -> Link:
        """Return the link of an open connection, where whatever waits for the socket does so `timeout` seconds."""
        outward = select.poll()
        outward.register(connection.sock, select.POLLOUT)
        # Else py-amqp sets it, and takes it back, for each frame.
        connection.sock.settimeout(timeout)
        return cls(connection, connection.transport, connection.sock, channel, outward, timeout)

    @property
    def is_encrypted(self) -> bool:
        """Whether it is of TLS: OpenSSL does not allow that one thread reads from a connection and another writes."""
        return isinstance(self.socket, ssl.SSLSocket)

    def receive(self) -> None:
        """Put what a socket that is ready has where py-amqp looks first, be it half a frame; waits for no more.

        py-amqp itself would ask the kernel for the parts of a frame one by one, nine times for a message, and wait each
        time for its turn among Python's threads. Raises OSError where the broker closed the connection.
        """
        try:
            data = self._received()
        except ssl.SSLWantReadError:  # There is but a part of a record.
            return
        if not data:
            raise ConnectionResetError("the broker closed the connection")
        self.transport._read_buffer += data

    def _received(self) -> bytes:
        if not self.is_encrypted:
            return bytes(self.socket.recv(_CHUNK))
        self.socket.settimeout(0)
        try:
            return bytes(self.socket.recv(_CHUNK))
        finally:
            self.socket.settimeout(self.timeout)

    def has_frame(self) -> bool:
        """Return whether a frame was received to its end."""
        buffer = self.transport._read_buffer
        return len(buffer) >= _FRAME_HEAD and len(buffer) >= _FRAME_REST + int.from_bytes(buffer[_FRAME_SIZE], "big")

    def has_decrypted(self) -> bool:
        """Return whether there is something to receive that the socket says nothing of."""
        return self.is_encrypted and bool(self.socket.pending())

    def has_room(self) -> bool:
        """Return whether the socket takes more at once."""
        return bool(self.outward.poll(0))
