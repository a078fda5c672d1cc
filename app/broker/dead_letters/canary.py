"""The outcomes of replayed letters, reported by workers: a canary's outcome decides whether others follow."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..nesting import read_json
from ..outcomes import outcomes_exchange
from .acts import ActStopped

#: Letters whose outcome is awaited at the same time, once the first one succeeded.
WINDOW = 10

#: Seconds to read events when there is nothing to wait for.
_NO_WAIT = 0.001

_FAILURES = {
    "dead-lettered": "died again",
    "dropped": "failed again, and was dropped",
    "retried": "failed again, and waits in the broker for the next retry of its fresh budget",
}


class Canary:
    """Waits for the outcomes of replayed letters, at most `wait` seconds for each.

    Its methods raise ActStopped at the first letter that failed or has no outcome in time.
    """

    def __init__(self, connection: Any, *, wait: float) -> None:
        self._connection = connection
        self._wait = wait
        self._reports: deque[bytes] = deque()
        self._deadlines: dict[str, float] = {}
        self._succeeded = False
        channel = connection.channel()
        outcomes_exchange(channel).declare()
        #: The queue that receives the outcomes; the broker deletes it with the connection.
        self.queue = channel.queue_declare("", exclusive=True).queue
        channel.queue_bind(self.queue, outcomes_exchange.name, routing_key=self.queue)
        channel.basic_consume(self.queue, no_ack=True, callback=lambda message: self._reports.append(message.body))

    def expect(self, ids: Sequence[str]) -> None:
        """Await the outcomes of letters that were just published."""
        self._deadlines |= dict.fromkeys(ids, time.monotonic() + self._wait)

    def wait_ready(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until another letter may be published; return whether it may."""
        return self._wait_until_at_most(WINDOW - 1 if self._succeeded else 0, timeout)

    def wait_all(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for all outstanding outcomes; return whether all are known."""
        return self._wait_until_at_most(0, timeout)

    def _wait_until_at_most(self, outstanding: int, timeout: float) -> bool:
        until = time.monotonic() + timeout
        while True:
            enough = len(self._deadlines) <= outstanding
            seconds = _NO_WAIT if enough else min(1.0, max(_NO_WAIT, until - time.monotonic()))
            with suppress(TimeoutError):
                while True:
                    self._connection.drain_events(timeout=seconds)
                    seconds = _NO_WAIT
            while self._reports:
                self._evaluate(self._reports.popleft())
            if len(self._deadlines) <= outstanding:
                return True
            for letter_id, deadline in self._deadlines.items():
                if time.monotonic() > deadline:
                    others = self._others(letter_id)
                    raise ActStopped(f"{letter_id}: no outcome within {self._wait:g} s; is a worker there?{others}")
            if time.monotonic() >= until:
                return False

    def _evaluate(self, body: bytes) -> None:
        """Note the outcome in a worker's report. Invalid ones are ignored: accounts may be shared."""
        try:
            report = read_json(body)
        except ValueError:
            return
        letter_id = str(report.get("of")) if isinstance(report, dict) else ""
        if self._deadlines.pop(letter_id, None) is None:
            return
        outcome = report.get("outcome")
        if outcome != "succeeded":
            failure = _FAILURES.get(str(outcome), f"ended as {outcome!r}")
            raise ActStopped(f"{letter_id} {failure}: {report.get('text')}{self._others()}")
        self._succeeded = True

    def _others(self, besides: str = "") -> str:
        count = sum(letter_id != besides for letter_id in self._deadlines)
        return f" ({count} more were published and have no outcome yet)" if count else ""
