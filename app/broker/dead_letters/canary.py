"""One goes first: the outcome of a replayed message decides whether the others follow."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .working import Stopped

#: Messages whose outcome is awaited at the same time, once the first one lived.
WINDOW = 10

_ENDS = {"died": "died again", "failed": "failed again, and waits in the broker for the next retry of its fresh budget"}


class Canary:
    """Hears how replayed messages ended; `wait` is the seconds that each of them has."""

    def __init__(self, connection: Any, *, wait: float) -> None:
        self._connection = connection
        self._wait = wait
        self._heard: deque[bytes] = deque()
        self._awaited: dict[str, float] = {}
        self.lived: list[str] = []
        channel = connection.channel()
        #: The queue that the worker tells; the broker takes it away with this connection.
        self.queue = channel.queue_declare("", exclusive=True).queue
        channel.basic_consume(self.queue, no_ack=True, callback=lambda message: self._heard.append(message.body))

    def sent(self, ids: Sequence[str]) -> None:
        """Await the outcome of these."""
        deadline = time.monotonic() + self._wait
        self._awaited |= dict.fromkeys(ids, deadline)

    def ready(self, within: float) -> bool:
        """Wait at most so many seconds for room for another one; raises Stopped at the first that did not live."""
        return self._listen(WINDOW - 1 if self.lived else 0, within)

    def finish(self) -> None:
        """Wait for all; raises Stopped at the first that did not live."""
        self._listen(0, float("inf"))

    def _listen(self, most: int, within: float) -> bool:
        until = time.monotonic() + within
        while True:
            self._drain(0.001 if len(self._awaited) <= most else min(1.0, max(0.001, until - time.monotonic())))
            self._settle()
            if len(self._awaited) <= most:
                return True
            self._give_up()
            if time.monotonic() >= until:
                return False

    def _drain(self, timeout: float) -> None:
        """Hear all that was told so far, waiting at most `timeout` seconds for the first."""
        with suppress(TimeoutError):
            while True:
                self._connection.drain_events(timeout=timeout)
                timeout = 0.001

    def _settle(self) -> None:
        while self._heard:
            told = _told(self._heard.popleft())
            ident, outcome = str(told.get("of")), told.get("outcome")
            if self._awaited.pop(ident, None) is None:
                continue
            if outcome != "lived":
                end = _ENDS.get(str(outcome), f"ended as {outcome!r}")
                raise Stopped(f"{ident} {end}: {told.get('text')}{self._others()}")
            self.lived.append(ident)

    def _give_up(self) -> None:
        for ident, deadline in self._awaited.items():
            if time.monotonic() > deadline:
                raise Stopped(f"{ident}: no outcome within {self._wait:g} s; is a worker there?{self._others(ident)}")

    def _others(self, besides: str = "") -> str:
        others = [ident for ident in self._awaited if ident != besides]
        return f" ({len(others)} more were sent, and have not ended yet)" if others else ""


def _told(body: bytes) -> dict[str, Any]:
    """Return what the worker told; anybody may write to a queue whose name they know."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}
