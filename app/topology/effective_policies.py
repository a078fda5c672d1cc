"""Policies and operator policies of the broker that delete, expire or move messages of our queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.topology.model import QueueDefinition

#: Keys of which RabbitMQ applies the lower value, of the policy or of the queue's argument.
_LIMITS = ("message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit")

REMEDY = "exclude the queue from its pattern, or: rabbitmqctl {clear} {name}"


def harmful_settings(queue: QueueDefinition) -> Iterator[tuple[str, str, str]]:
    """Yield key, consequence and remedy of each setting of a policy that deletes, expires or moves messages.

    A limit counts where it is lower than the queue's own argument. Source: RabbitMQ, Policies and Operator Policies.
    """
    for key, value in queue.broker_policy.items():
        if consequence := _consequence(queue, key, value):
            label = queue.policy_names.get(key, "policy")
            clear = "clear_operator_policy" if label.startswith("operator policy ") else "clear_policy"
            name = label.removeprefix("operator ").removeprefix("policy ")
            yield f"{label} sets {key} = {value}:", consequence, REMEDY.format(clear=clear, name=name)


def _consequence(queue: QueueDefinition, key: str, value: Any) -> str:
    """Return what a setting does to messages of a queue; empty if it does no harm."""
    own = queue.arguments.get(f"x-{key}")
    if key in _LIMITS and own is not None and own <= value:
        return ""
    target = queue.dead_letter_exchange
    # The default exchange has an empty name.
    moved = "deletes {}" if target is None else f"moves {{}} to {target or 'the default exchange'}"
    is_quorum = queue.type == "quorum"
    match key:
        case "expires":
            return f"deletes the queue with its messages after {value} ms without a consumer"
        case "message-ttl" if own is not None:
            return f"ends the wait after {value} ms instead of {own} ms"
        case "message-ttl":
            return moved.format(f"messages that waited {value} ms")
        case "max-length" | "max-length-bytes" if queue.overflow.startswith("reject-publish"):
            return "refuses messages when the queue is full: failed messages stay in their workers"
        case "max-length" | "max-length-bytes":
            return moved.format("the oldest messages when the queue is full")
        # Without a limit of its own, a queue with a dead-letter exchange is safer with that of a policy.
        case "delivery-limit" if is_quorum and value >= 0 and (own is not None or target is None):
            return moved.format(f"messages after {value} deliveries" + (f" instead of {own}" if own else ""))
        case "overflow" if is_quorum and value != own and own is not None:
            return "turns dead-lettering from at-least-once to at-most-once: a message is lost with its node"
    return ""
