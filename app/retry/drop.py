"""No retry and no dead set: for a message that a clock sends again anyway."""

from __future__ import annotations

from app.amqp.delivery import Delivery
from app.retry.policy import Decision, Drop, Failure


class DropPolicy:
    """Every failure is forgotten."""

    def decide(self, _delivery: Delivery, _failure: Failure) -> Decision:
        """Return Drop."""
        return Drop()
