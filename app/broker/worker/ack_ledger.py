"""The delivery tags of one channel: which are completed, and which of those are acknowledged together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Seconds for which a completed message waits for others to be acknowledged with it.
PATIENCE = 0.05


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """One `basic.ack`; with `multiple` it is for every outstanding delivery up to this tag, as in AMQP 0-9-1."""

    tag: int
    multiple: bool


class AckLedger:
    """Groups the acknowledgements of one channel.

    The broker numbers a channel's deliveries 1, 2, 3 and so on. A tag that the ledger has not met is open once a later
    one is completed, so that an acknowledgement with `multiple` never covers it.
    """

    def __init__(self, group: int = 1) -> None:
        """Let fewer than `group` completed messages wait. Each of them counts against the consumer's prefetch count."""
        self._group = group
        self._highest = 0
        #: Tags up to the highest one that are neither completed nor settled, in order. At most the prefetched messages.
        self._open: dict[int, None] = {}
        #: Completed tags that are not acknowledged yet -> the time of their completion, in that order.
        self._completed: dict[int, float] = {}

    def __len__(self) -> int:
        """Return the number of completed tags that are not acknowledged yet."""
        return len(self._completed)

    def complete(self, tag: int, now: float) -> None:
        """Note a delivery as completed at this time, so that it will be acknowledged."""
        self.settle(tag)
        self._completed[tag] = now

    def settle(self, tag: int) -> None:
        """Note a delivery as answered in another way: it was rejected before any later acknowledgement is sent."""
        self._open.update(dict.fromkeys(range(self._highest + 1, tag + 1)))
        self._highest = max(self._highest, tag)
        self._open.pop(tag, None)

    def take(self, now: float, *, everything: bool = False) -> list[Acknowledgement]:
        """Return what to send now, or with `everything` all at once.

        One acknowledgement is for all completed tags before the first open one, when there are `group` of them or the
        oldest has waited for PATIENCE. Tags behind an open one are then sent singly, by the same rule.
        """
        waiting = self._completed
        if not (waiting and (everything or self._is_due(waiting, now))):
            return []
        first_open = next(iter(self._open), self._highest + 1)
        run = [tag for tag in waiting if tag < first_open]
        late = {tag: since for tag, since in waiting.items() if tag > first_open}
        if not everything and not self._is_due(late, now):
            self._completed, late = late, {}
        else:
            self._completed = {}
        together = [Acknowledgement(max(run), multiple=len(run) > 1)] if run else []
        return together + [Acknowledgement(tag, multiple=False) for tag in late]

    def _is_due(self, waiting: Mapping[int, float], now: float) -> bool:
        return len(waiting) >= self._group or any(now - since >= PATIENCE for since in waiting.values())
