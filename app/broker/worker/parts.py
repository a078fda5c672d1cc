"""A part of a message that failed beside others: it gets a message of its own, as its queue's policy decides."""

from __future__ import annotations

import traceback
from dataclasses import replace

from celery.utils.log import get_logger

from ..delivery import Delivery
from ..outgoing import Outgoing
from ..policies.base import Decision, RetryPolicies
from ..publishing import Publisher
from .failures import RUN_OUTCOMES, OnOutcome, carry_out_one, failure_of

logger = get_logger(__name__)


def fail_part(
    message: Outgoing,
    error: Exception,
    *,
    subject: str,
    queue: str,
    task: str,
    worker: str,
    policies: RetryPolicies,
    publisher: Publisher,
    on_outcome: OnOutcome,
) -> Decision:
    """Carry out what the policy of a queue decides on the first failed run of a part, and return it.

    `message` is the part as a message of its own, which nothing has published; `subject` names it in the log. Raises
    what a publish raises.
    """
    encoding, address = (message.content_type, message.content_encoding), (queue, message.routing_key, message.exchange)
    delivery = Delivery(message.body, message.headers, message.properties, *encoding, *address)
    trace = "".join(traceback.format_exception(error))
    failure = replace(failure_of(error, trace=trace, task=task), worker=worker)
    decision = policies.policy_for(queue).decide(delivery, failure)
    logger.warning("%s of %s, which failed beside others: %s", type(decision).__name__, subject, failure)
    carry_out_one(decision, delivery, publisher=publisher)
    on_outcome(task, queue, RUN_OUTCOMES[type(decision)], failure.reason)
    return decision
