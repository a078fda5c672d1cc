"""A proxy before a broker that loses publisher confirms, and forwards everything else."""

from __future__ import annotations

import struct
from collections.abc import Callable

from tests.support.proxy import Proxy

#: In an AMQP 0-9-1 frame: its type, a method, and the start of the payload, class and method of `basic.ack`.
_METHOD, _BASIC_ACK = 1, struct.pack(">HH", 60, 80)
#: Bytes of a frame's header, and of its header and end.
_HEADER, _AROUND = 7, 8


class ConfirmLosingProxy(Proxy):
    """Loses the confirms of the first connections that get one. Heartbeats and other answers reach the client."""

    def __init__(self, url: str, *, connections: int) -> None:
        """Lose the confirms of this number of connections. Those without a confirm do not count."""
        #: Confirms that were lost.
        self.lost = 0
        self._connections = connections
        #: The buffers of connections that lost one.
        self._losing: list[bytearray] = []
        super().__init__(url)

    def _filter(self) -> Callable[[bytes], bytes]:
        buffer = bytearray()

        def forwarded(data: bytes) -> bytes:
            buffer.extend(data)
            kept = bytearray()
            while len(buffer) >= _HEADER and len(buffer) >= (end := _AROUND + int.from_bytes(buffer[3:_HEADER])):
                frame, buffer[:end] = bytes(buffer[:end]), b""
                if frame[0] == _METHOD and frame[_HEADER:].startswith(_BASIC_ACK) and self._loses(buffer):
                    self.lost += 1
                else:
                    kept += frame
            return bytes(kept)

        return forwarded

    def _loses(self, buffer: bytearray) -> bool:
        is_losing = any(each is buffer for each in self._losing)
        if not is_losing and len(self._losing) < self._connections:
            self._losing.append(buffer)
            return True
        return is_losing
