"""Exchanges, queues and bindings as plain values, the same for the code's topology and a broker's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import kombu


@dataclass(frozen=True, slots=True)
class ExchangeDefinition:
    """An exchange; `broker_policy` is what a policy of the broker adds to its arguments.

    `flags` are those of `auto_delete` and `internal` that are set.
    """

    name: str
    type: str
    durable: bool = True
    arguments: Mapping[str, Any] = field(default_factory=dict)
    broker_policy: Mapping[str, Any] = field(default_factory=dict)
    flags: frozenset[str] = frozenset()

    @property
    def alternate(self) -> str | None:
        """The exchange that gets the messages which this one cannot route."""
        return _text(self.arguments.get("alternate-exchange", self.broker_policy.get("alternate-exchange")))


@dataclass(frozen=True, slots=True)
class Replicas:
    """The nodes that have a queue, and those of them that run."""

    members: tuple[str, ...] = ()
    online: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """The members that do not run."""
        return tuple(node for node in self.members if node not in self.online)


@dataclass(frozen=True, slots=True)
class QueueDefinition:
    """A queue; `broker_policy` is what policies of the broker add to its arguments.

    `policy_names` has, for each key of `broker_policy`, the policy or operator policy that sets it. `flags` are those
    of `auto_delete` and `exclusive` that are set.
    """

    name: str
    durable: bool = True
    arguments: Mapping[str, Any] = field(default_factory=dict)
    broker_policy: Mapping[str, Any] = field(default_factory=dict)
    policy_names: Mapping[str, str] = field(default_factory=dict)
    replicas: Replicas = Replicas()
    flags: frozenset[str] = frozenset()

    def option(self, name: str) -> Any:
        """Return the argument `x-<name>`, else the policy's value, else None."""
        return self.arguments.get(f"x-{name}", self.broker_policy.get(name))

    @property
    def type(self) -> str:
        """`classic`, `quorum` or `stream`."""
        return str(self.arguments.get("x-queue-type", "classic"))

    @property
    def overflow(self) -> str:
        """What a full queue does. On a quorum queue a policy comes before the argument, on a classic one after it."""
        policy = self.broker_policy.get("overflow") if self.type == "quorum" else None
        return str(policy or self.option("overflow") or "drop-head")

    @property
    def dead_letter_exchange(self) -> str | None:
        """The exchange that gets rejected, expired and surplus messages; an empty text is the default exchange."""
        return _text(self.option("dead-letter-exchange"))

    @property
    def dead_letter_key(self) -> str | None:
        """The routing key of dead-lettered messages; None where each keeps its own."""
        return _text(self.option("dead-letter-routing-key"))

    @property
    def expires_messages(self) -> bool:
        """Whether messages have a TTL here, by argument or policy."""
        return self.option("message-ttl") is not None


@dataclass(frozen=True, slots=True, order=True)
class Binding:
    """A binding of an exchange to a queue, or to another exchange."""

    source: str
    destination: str
    key: str
    to_exchange: bool = False


@dataclass(frozen=True)
class Topology:
    """Everything that a vhost has, or that our code declares; by name.

    `default_queue_type` is the type of a queue that is declared without one.
    """

    exchanges: Mapping[str, ExchangeDefinition]
    queues: Mapping[str, QueueDefinition]
    bindings: frozenset[Binding]
    default_queue_type: str = "classic"

    @cached_property
    def by_source(self) -> Mapping[str, Sequence[Binding]]:
        """The bindings of each exchange that has any."""
        return _grouped((each.source, each) for each in self.bindings)

    @cached_property
    def by_destination(self) -> Mapping[str, Sequence[Binding]]:
        """The bindings to each queue or exchange that has any."""
        return _grouped((each.destination, each) for each in self.bindings)


def declared_topology(queues: Iterable[kombu.Queue], exchanges: Iterable[kombu.Exchange] = ()) -> Topology:
    """Return what kombu declares for these queues and for exchanges without queues."""
    queues = list(queues)
    bound = (exchange for queue in queues for exchange in exchanges_of(queue))
    return Topology(
        exchanges={
            exchange.name: ExchangeDefinition(
                exchange.name, exchange.type, exchange.durable, dict(exchange.arguments or {})
            )
            for exchange in (*exchanges, *bound)
        },
        queues={
            queue.name: QueueDefinition(queue.name, queue.durable, dict(queue.queue_arguments or {}))
            for queue in queues
        },
        bindings=frozenset(Binding(source, queue.name, key) for queue in queues for source, key in bindings_of(queue)),
    )


def bindings_of(queue: kombu.Queue) -> list[tuple[str, str]]:
    """Return exchange and key of each binding that is declared with a queue."""
    listed = [(each.exchange.name, each.routing_key or "") for each in queue.bindings or ()]
    own = [(queue.exchange.name, queue.routing_key or "")] if queue.exchange and queue.exchange.name else []
    return own + listed


def exchanges_of(queue: kombu.Queue) -> list[kombu.Exchange]:
    """Return the exchanges that are declared with a queue, in the order of its bindings."""
    own = [queue.exchange] if queue.exchange and queue.exchange.name else []
    return own + [each.exchange for each in queue.bindings or ()]


def _grouped(named: Iterable[tuple[str, Binding]]) -> Mapping[str, Sequence[Binding]]:
    groups: dict[str, list[Binding]] = {}
    for name, binding in named:
        groups.setdefault(name, []).append(binding)
    return groups


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
