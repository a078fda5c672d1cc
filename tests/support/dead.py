"""The dead sets of three policies, and letters for them as a worker dead-letters them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kombu import Connection

from app.broker.dead_letters import shards
from app.broker.dead_letters.audit import Audit
from app.broker.dead_letters.sets import DeadSets
from app.broker.delivery import Delivery
from app.broker.failure import Failure
from app.broker.policies.base import Dead, Policy, RetryPolicies, replacement_of
from app.broker.policies.delay_queues import DelayQueues
from app.broker.policies.fixed_ttl import FixedTtl
from app.broker.policies.x_death import XDeath
from app.broker.publishing import Publisher
from app.broker.worker.failures import Disposition, carry_out
from app.messages.dead_sets import StoredReplayJournal
from app.storage.open import create_store
from tests.support.deliveries import FAILURE

#: One policy of each kind, by its work queue. There are no retries: the first failure is dead-lettered.
OF_QUEUE: dict[str, Policy] = {
    "mail": DelayQueues("post", retry_max=0, queue_type="classic"),
    "art.index": FixedTtl("art", {"art.index": "index"}, retry_max=0, postpone_type="classic"),
    "orders": XDeath("orders", retry_max=0, queue_type="classic"),
}
POLICIES = RetryPolicies(OF_QUEUE, OF_QUEUE["mail"])

#: The dead set of each work queue.
DEAD_OF = {"mail": "post.dead", "art.index": "art.failed", "orders": "orders.error"}

TRACE = 'Traceback (most recent call last):\n  File "/a/b/shop/{name}.py", line {line}, in sell\n    x\nKeyError: 1\n'


def declare(broker: str) -> None:
    """Declare the dead sets and the work queues with their exchanges."""
    with Connection(broker) as connection, connection.channel() as channel:
        for queue in (*POLICIES.queues(), *POLICIES.work_queues()):
            queue(channel).declare()


def dead_sets(broker: str, publisher: Publisher, audit: Path | None = None, **options: Any) -> DeadSets:
    """Return the dead sets of these policies."""
    return DeadSets(POLICIES, broker, publisher, audit=Audit(audit), **options)


def journal_in(folder: Path) -> StoredReplayJournal:
    """Return the journal of replays in a folder store, which processes share that are killed."""
    return StoredReplayJournal(create_store(folder.as_uri())[0])


def small_shards() -> None:
    """Let shards have four letters, and be filled from seven letters on, in steps of two."""
    shards.SHARD_LETTERS, shards.MOVE_ABOVE, shards._BATCH = 4, 6, 2


def failure(line: int = 7, *, at: float = 1_000.0, **fields: Any) -> Failure:
    """Return a failure with a traceback that ends in a line of `shop/till.py`."""
    return replace(FAILURE, at=at, traceback=TRACE.format(name="till", line=line), **fields)


def failed_delivery(body: Any, queue: str = "mail", **headers: Any) -> Delivery:
    """Return a delivery of a message whose run failed."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Delivery(
        body=text,
        headers=headers,
        properties={"correlation_id": "c-1"},
        content_type="application/json",
        content_encoding="utf-8",
        queue=queue,
        routing_key={"art.index": "index"}.get(queue, queue),
    )


def dead_letter(publisher: Publisher, deliveries: Sequence[Delivery], why: Failure = FAILURE) -> list[str]:
    """Dead-letter messages as a worker does; return their dead ids."""
    decisions = [POLICIES.policy_for(each.queue).decide(each, why) for each in deliveries]
    replacements = [replacement_of(decision, each) for decision, each in zip(decisions, deliveries, strict=True)]
    outcomes = carry_out(list(zip(decisions, replacements, strict=True)), publisher=publisher)
    assert set(outcomes) == {Disposition.ACKNOWLEDGE}
    return [str(decision.headers["perennial-dead-id"]) for decision in decisions if isinstance(decision, Dead)]
