"""A proxy before Redis that loses the reply to a command, or refuses the command as a full Redis does."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress
from io import BufferedReader
from typing import Literal

from tests.support.proxy import Proxy

#: Commands with which redis-py prepares a connection.
_PREPARING = frozenset({b"HELLO", b"AUTH", b"SELECT", b"CLIENT", b"PING"})
#: Commands that a full Redis refuses. A script counts as one whose first write takes memory, but for those of a lease.
_WRITES = frozenset({b"EVAL", b"EVALSHA", b"SET", b"HSET", b"SADD", b"RPUSH"})
_FULL = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"

#: What happens to a command: Redis carries it out and its reply is lost with the connection, or it is refused.
Trouble = Literal["", "lost", "refused"]


class RedisProxy(Proxy):
    """Forwards commands between clients at `url` and Redis, and gives `trouble` to one of `every` of them, by chance.

    The chance is the same in each run. A fixed period could meet the same command of a loop again and again.
    """

    def __init__(self, url: str) -> None:
        self._lock = threading.Lock()
        self._chance = random.Random(0)
        self.trouble: Trouble = ""
        self.every = 1
        #: Replies lost and commands refused so far.
        self.troubles = 0
        super().__init__(url)

    def _serve(self, client: socket.socket, broker: socket.socket) -> None:
        threading.Thread(target=self._forward, args=(client, broker), daemon=True).start()

    def _forward(self, client: socket.socket, redis: socket.socket) -> None:
        with suppress(OSError, EOFError), client, redis:
            for each in (client, redis):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            commands, replies = client.makefile("rb"), redis.makefile("rb")
            while True:
                command = _read(commands)
                trouble = self._trouble_of(command)
                if trouble == "refused":
                    client.sendall(_FULL)
                    continue
                redis.sendall(command)
                reply = _read(replies)
                if trouble == "lost":
                    return
                client.sendall(reply)

    def _trouble_of(self, command: bytes) -> Trouble:
        name = command.split(b"\r\n", 3)[2].upper()
        takes_memory = name in _WRITES and b"perennial:lease:" not in command
        if not self.trouble or (name in _PREPARING if self.trouble == "lost" else not takes_memory):
            return ""
        with self._lock:
            if self._chance.random() * self.every >= 1:
                return ""
            self.troubles += 1
            return self.trouble


def _read(stream: BufferedReader) -> bytes:
    """Return the bytes of one command or reply; raises EOFError at the end of the stream."""
    line = stream.readline()
    if not line:
        raise EOFError
    kind, number = line[:1], line[1:-2]
    if kind in b"$=!":
        return line + (stream.read(int(number) + 2) if int(number) >= 0 else b"")
    if kind in b"*~>":
        return line + b"".join(_read(stream) for _ in range(max(0, int(number))))
    if kind == b"%":
        return line + b"".join(_read(stream) for _ in range(2 * int(number)))
    return line
