"""One decision, carried out as a worker does."""

from __future__ import annotations

from app.broker.delivery import Delivery
from app.broker.policies.base import Decision, replacement_of
from app.broker.publishing import Publisher
from app.broker.worker.carry_out import Disposition, carry_out


def carry_out_one(decision: Decision, delivery: Delivery, *, publisher: Publisher) -> Disposition:
    """Publish the replacement, if there is one, and return what to do with the original; raises what failed."""
    [outcome] = carry_out([(decision, replacement_of(decision, delivery))], publisher=publisher)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
