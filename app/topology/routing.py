"""Compute where a broker routes a message: find unbound dead-letter targets and loops of expiring messages."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Iterator

from app.topology.model import Binding, QueueDefinition, Topology

#: A queue, and the routing key of a message in it; None if the key may be any.
QueuedKey = tuple[str, str | None]


def routed_queues(topology: Topology, exchange: str, key: str | None) -> set[QueuedKey]:
    """Return the queues to which an exchange routes a message, with the message's key.

    None as key means any key that is bound. Where the default exchange routes it is then unknown, and not returned.
    """
    return _routed(topology, exchange, key, frozenset())


def queued_keys(topology: Topology, queue: str) -> set[QueuedKey]:
    """Return the routing keys with which messages can arrive in a queue, by its bindings."""
    keys = {_known_key(topology, each) for each in topology.bindings if each.destination == queue}
    return {(queue, key) for key in keys} or {(queue, queue)}


def dead_letter_targets(topology: Topology, queued: QueuedKey) -> set[QueuedKey]:
    """Return where a message is dead-lettered to; an empty set where its queue has no dead-letter exchange."""
    queue = topology.queues[queued[0]]
    if queue.dead_letter_exchange is None:
        return set()
    return routed_queues(topology, queue.dead_letter_exchange, queue.dead_letter_key or queued[1])


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
            targets = dead_letter_targets(topology, queued)
            graph[queued] = {each for each in targets if _expires_to_exchange(topology.queues[each[0]])}
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


def _routed(topology: Topology, exchange: str, key: str | None, visited: frozenset[str]) -> set[QueuedKey]:
    if not exchange:
        return {(key, key)} if key is not None and key in topology.queues else set()
    if exchange in visited or exchange not in topology.exchanges:
        return set()
    visited |= {exchange}
    found: set[QueuedKey] = set()
    for binding in _matching(topology, exchange, key):
        key_after = key if key is not None else _known_key(topology, binding)
        if binding.to_exchange:
            found |= _routed(topology, binding.destination, key_after, visited)
        else:
            found.add((binding.destination, key_after))
    alternate = topology.exchanges[exchange].alternate
    return found or (_routed(topology, alternate, key, visited) if alternate else set())


def _matching(topology: Topology, exchange: str, key: str | None) -> Iterator[Binding]:
    """Yield the bindings of an exchange that match a key; all of them for None."""
    kind = topology.exchanges[exchange].type
    for binding in topology.bindings:
        if binding.source != exchange:
            continue
        if kind == "topic":
            matches = key is None or _topic_pattern(binding.key).fullmatch(key) is not None
        else:
            matches = key is None or kind != "direct" or binding.key == key
        if matches:
            yield binding


def _topic_pattern(binding_key: str) -> re.Pattern[str]:
    """Return the pattern of a topic binding: `*` is one word, `#` any number of words."""
    words = [r"[^.]*" if word == "*" else re.escape(word) for word in binding_key.split(".")]
    text = r"\.".join(words).replace(re.escape("#") + r"\.", r"(?:.*\.)?").replace(r"\." + re.escape("#"), r"(?:\..*)?")
    return re.compile(text.replace(re.escape("#"), ".*"), re.DOTALL)


def _known_key(topology: Topology, binding: Binding) -> str | None:
    """Return the key of messages that come by a binding, or None where it can be any."""
    source = topology.exchanges.get(binding.source)
    has_wildcard = not {"*", "#"}.isdisjoint(binding.key.split("."))
    if source is None or (source.type != "direct" and (source.type != "topic" or has_wildcard)):
        return None
    return binding.key
