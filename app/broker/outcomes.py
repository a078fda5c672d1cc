"""Outcomes of replayed messages: workers report them, and an operator's canary receives them."""

from __future__ import annotations

import json

from kombu import Exchange

from .delivery import Delivery
from .failure import MAX_MESSAGE
from .headers import OUTCOME_TO, REPLAY, replay_history
from .outgoing import Outgoing

#: Outcomes by the name of the queue that a replay named. With an exchange of its own, the account of a worker needs no
#: permission for the default exchange. A message can make a worker publish to no other queue.
outcomes_exchange = Exchange("perennial.outcomes", type="direct", durable=True)


def outcome_message(delivery: Delivery, outcome: str, text: str = "") -> Outgoing | None:
    """Return the report of how a run of a replayed message ended; None if its replay does not ask for one.

    It is not mandatory: the operator may have gone. A client's own message gets no report, whatever its headers say.
    """
    queue, history = delivery.headers.get(OUTCOME_TO), replay_history(delivery.headers)
    if not isinstance(queue, str) or REPLAY not in delivery.headers or not history:
        return None
    body = json.dumps({"outcome": outcome, "text": text[:MAX_MESSAGE], "of": history[0]}).encode()
    return Outgoing(exchange=outcomes_exchange.name, routing_key=queue, body=body, mandatory=False)
