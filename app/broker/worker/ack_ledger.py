"""The delivery tags of one channel: which are completed, and which of those are acknowledged together."""

from __future__ import annotations

from dataclasses import dataclass

#: Seconds for which a completed tag waits for the tags before it. It is then acknowledged singly: it counts against
#: the prefetch count as long as the broker does not know of it.
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

    def __init__(self) -> None:
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
        """Return what to send now: one for all completed tags before the first open one, and one for each late tag.

        Tags behind an open one are late after PATIENCE, and at once with `everything`.
        """
        first_open = next(iter(self._open), self._highest + 1)
        run = [tag for tag in self._completed if tag < first_open]
        late = [
            tag
            for tag, since in self._completed.items()
            if tag > first_open and (everything or now - since >= PATIENCE)
        ]
        for tag in (*run, *late):
            del self._completed[tag]
        together = [Acknowledgement(max(run), multiple=len(run) > 1)] if run else []
        return together + [Acknowledgement(tag, multiple=False) for tag in late]
