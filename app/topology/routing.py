"""Compute where a broker routes a message: find unbound dead-letter targets and loops of expiring messages."""

from __future__ import annotations

import graphlib
import re
from functools import cache

from app.topology.model import Binding, QueueDefinition, Topology

#: A queue, and the routing key of a message in it; None if the key may be any.
QueuedKey = tuple[str, str | None]


def routed_queues(
    topology: Topology, exchange: str, key: str | None, visited: frozenset[str] = frozenset()
) -> set[QueuedKey]:
    """Return the queues to which an exchange routes a message, with the message's key.

    None as key means any key that is bound. Where the default exchange routes it is then unknown, and not returned.
    `visited` are exchanges that the message passed before: a message passes each of them once.
    """
    if not exchange:
        return {(key, key)} if key is not None and key in topology.queues else set()
    if exchange in visited or exchange not in topology.exchanges:
        return set()
    visited |= {exchange}
    exchange_type = topology.exchanges[exchange].type
    found: set[QueuedKey] = set()
    for binding in topology.by_source.get(exchange, ()):
        if not _matches(exchange_type, binding.key, key):
            continue
        key_after = key if key is not None else _known_key(topology, binding)
        if binding.to_exchange:
            found |= routed_queues(topology, binding.destination, key_after, visited)
        else:
            found.add((binding.destination, key_after))
    alternate = topology.exchanges[exchange].alternate
    return found or (routed_queues(topology, alternate, key, visited) if alternate else set())


def queued_keys(topology: Topology, queue: str) -> set[QueuedKey]:
    """Return the routing keys with which messages can arrive in a queue, by its bindings."""
    keys = {_known_key(topology, each) for each in topology.by_destination.get(queue, ())}
    return {(queue, key) for key in keys} or {(queue, queue)}


def lost_keys(topology: Topology, queue: QueueDefinition) -> list[str]:
    """Return the keys for which nothing is bound to a queue's dead-letter exchange; an unknown key reads `any key`."""
    target = queue.dead_letter_exchange
    if target is None:
        return []
    keys = {queue.dead_letter_key or key for _, key in queued_keys(topology, queue.name)}
    checked = {key for key in keys if key is not None or target}
    return sorted("any key" if key is None else key for key in checked if not routed_queues(topology, target, key))


def ttl_loops(topology: Topology) -> list[list[str]]:
    """Return the loops, as queue names, in which a message moves by expiry alone: RabbitMQ drops it there.

    Source: RabbitMQ, Dead Letter Exchanges: "messages will be dropped if there was no rejections in the entire cycle".
    """

    @cache  # Many queues have the same dead-letter exchange.
    def expiring_again(exchange: str, key: str | None) -> set[QueuedKey]:
        routed = routed_queues(topology, exchange, key)
        # A queue that was declared while the API was read has bindings only.
        queues = {queued: topology.queues[queued[0]] for queued in routed if queued[0] in topology.queues}
        return {queued for queued, queue in queues.items() if _expires_to_exchange(queue)}

    graph: dict[QueuedKey, set[QueuedKey]] = {}
    unvisited = [
        queued
        for queue in topology.queues.values()
        if _expires_to_exchange(queue)
        for queued in queued_keys(topology, queue.name)
    ]
    while unvisited:
        queued = unvisited.pop()
        if queued not in graph:
            queue = topology.queues[queued[0]]
            graph[queued] = expiring_again(queue.dead_letter_exchange or "", queue.dead_letter_key or queued[1])
            unvisited.extend(graph[queued])
    loops: list[list[str]] = []
    while True:
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            names = [queue for queue, _ in reversed(error.args[1])]
            loops.append(names)
            graph = {queued: targets for queued, targets in graph.items() if queued[0] not in names}
        else:
            return loops


def _expires_to_exchange(queue: QueueDefinition) -> bool:
    return queue.expires_messages and queue.dead_letter_exchange is not None


def _matches(exchange_type: str, binding_key: str, key: str | None) -> bool:
    """Return whether a binding matches a key; every binding matches None. In a topic, `#` is any number of words."""
    if key is None or exchange_type not in ("direct", "topic"):
        return True
    if exchange_type == "direct":
        return binding_key == key
    words = [r"[^.]*" if word == "*" else re.escape(word) for word in binding_key.split(".")]
    text = r"\.".join(words).replace(re.escape("#") + r"\.", r"(?:.*\.)?").replace(r"\." + re.escape("#"), r"(?:\..*)?")
    return re.fullmatch(text.replace(re.escape("#"), ".*"), key, re.DOTALL) is not None


def _known_key(topology: Topology, binding: Binding) -> str | None:
    """Return the key of messages that come by a binding, or None where it can be any."""
    source = topology.exchanges.get(binding.source)
    has_wildcard = not {"*", "#"}.isdisjoint(binding.key.split("."))
    if source is None or (source.type != "direct" and (source.type != "topic" or has_wildcard)):
        return None
    return binding.key
