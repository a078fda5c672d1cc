"""Acknowledgements of one channel, sent in groups at the end of a turn of the worker's event loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from celery.utils.log import get_logger

from ..amqp_internals import replace_acknowledgements
from ..connection import CONNECTION_ERRORS
from .ack_ledger import PATIENCE, AckLedger

logger = get_logger(__name__)


class Acknowledgements:
    """Takes the place of a channel's `basic_ack` and `basic_reject`. It serves one thread.

    Delivery tags belong to a channel. A message of a former channel is answered on that one, which is closed: Celery
    logs it, and the broker delivers the message again.
    """

    def __init__(
        self, channel: Any, timer: Any, *, group: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Let fewer than `group` completed messages wait for others; see AckLedger."""
        self._channel = channel
        self._timer = timer
        self._clock = clock
        self._wakes_at = 0.0
        self._ledger = AckLedger(group)
        self._ack, self._reject = channel.basic_ack, channel.basic_reject
        replace_acknowledgements(channel, ack=self._complete, reject=self._reject_now)

    def end_turn(self) -> None:
        """Send what is due. What waits for others wakes the event loop later. Raises connection errors."""
        if not self._ledger:
            return
        now = self._clock()
        self._send(now)
        if self._ledger and now >= self._wakes_at:
            self._wakes_at = now + PATIENCE
            # A timer that fires begins a turn, which has an end.
            self._timer.call_after(PATIENCE, lambda: None)

    def send_all(self) -> None:
        """Send everything that is completed, before the connection is closed. Connection errors are logged."""
        try:
            self._send(self._clock(), everything=True)
        except CONNECTION_ERRORS as error:
            logger.warning("Not acknowledged, so that the broker delivers finished messages again: %r", error)

    def _send(self, now: float, *, everything: bool = False) -> None:
        for each in self._ledger.take(now, everything=everything):
            self._ack(each.tag, multiple=each.multiple)

    def _complete(self, delivery_tag: int, multiple: bool = False) -> None:
        del multiple  # Nothing in Celery asks for it.
        if self._channel.is_open:
            self._ledger.complete(delivery_tag, self._clock())
        else:
            # Raises what a closed channel raises.
            self._ack(delivery_tag)

    def _reject_now(self, delivery_tag: int, requeue: bool) -> None:
        self._reject(delivery_tag, requeue)
        self._ledger.settle(delivery_tag)
