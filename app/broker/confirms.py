"""The broker's answers to published messages: confirms, refusals and returns, each for its message."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import takewhile
from typing import Any, Final

from .delivery import raw_body
from .outgoing import Outgoing

#: Seconds after which a confirm counts as lost, on a connection that works. A cluster that lost a node, and a disk that
#: is slow, confirm within half of it. Sending again too early makes a duplicate of each message.
CONFIRM_LIMIT: Final = 60.0


class Answer(Enum):
    """What the broker has answered to a message by now."""

    NONE = "none"
    CONFIRMED = "confirmed"
    REFUSED = "refused"
    RETURNED = "returned"


@dataclass(eq=False, slots=True)
class Transfer:
    """One message to publish, and the broker's answer to it."""

    message: Outgoing
    answer: Answer = Answer.NONE
    #: Where it was sent last: the channel and its delivery tag.
    channel: Any = None
    tag: int = 0
    #: Monotonic seconds at which it was sent last.
    sent_at: float = 0.0
    #: Times that its confirm counted as lost.
    lost: int = 0
    #: Why it cannot be sent at all.
    error: Exception | None = None

    @property
    def was_sent(self) -> bool:
        """Whether it was sent at least once."""
        return self.channel is not None

    @property
    def is_open(self) -> bool:
        """Whether it can be sent and has no answer."""
        return self.answer is Answer.NONE and self.error is None


class Confirms:
    """The broker's answers on one channel, which is put into confirm mode."""

    def __init__(self, channel: Any) -> None:
        #: By delivery tag, in the order of publishing.
        self.unanswered: dict[int, Transfer] = {}
        self.has_refused = False
        self._channel = channel
        self._last_tag = 0
        channel.confirm_select()
        channel.events["basic_ack"].add(partial(self._on_answer, Answer.CONFIRMED))
        channel.events["basic_nack"].add(partial(self._on_answer, Answer.REFUSED))
        channel.events["basic_return"].add(self._on_return)

    def expect(self, transfer: Transfer) -> None:
        """Note that a message was published: the broker counts them from 1."""
        self._last_tag += 1
        transfer.channel, transfer.tag, transfer.sent_at = self._channel, self._last_tag, time.monotonic()
        self.unanswered[self._last_tag] = transfer

    def count_late_as_lost(self, limit: float) -> bool:
        """Return whether a message lacks its confirm for `limit` seconds, doubled for each time before.

        Then the confirms that are missing count as lost.
        """
        now = time.monotonic()
        if not any(now - each.sent_at > limit * 2**each.lost for each in self.unanswered.values()):
            return False
        for transfer in self.unanswered.values():
            transfer.lost += 1
        return True

    def restart_wait(self) -> None:
        """Count the time from now: the broker held the messages back."""
        for transfer in self.unanswered.values():
            transfer.sent_at = time.monotonic()

    def _on_answer(self, answer: Answer, tag: int, multiple: bool) -> None:
        """Note what messages are confirmed or refused; a returned one is confirmed, too, and stays returned."""
        self.has_refused |= answer is Answer.REFUSED
        for each in list(takewhile(tag.__ge__, self.unanswered)) if multiple else [tag]:
            transfer = self.unanswered.pop(each, None)
            if transfer and (transfer.answer is Answer.NONE or answer is Answer.REFUSED):
                transfer.answer = answer

    def _on_return(self, _error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        """Note a returned message; its confirm follows. A return has no delivery tag."""
        body = raw_body(message.body, message.properties.get("content_encoding"))
        unanswered = (each for each in self.unanswered.values() if each.answer is Answer.NONE)
        address = exchange, routing_key
        possible = [each for each in unanswered if (each.message.exchange, each.message.routing_key) == address]
        if possible:
            transfer = next((each for each in possible if each.message.body == body), possible[0])
            transfer.answer = Answer.RETURNED
