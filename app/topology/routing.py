"""Where a broker would route a message, without sending one: dead ends and loops of what dies in queues."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Iterator

from app.topology.model import Binding, Queue, Topology

#: A queue, and the routing key that a message has in it; None where that may be any.
Place = tuple[str, str | None]


def routed(topology: Topology, exchange: str, key: str | None) -> set[Place]:
    """Return where an exchange puts a message: the queues, and the key where it is known.

    An unknown key (None) may be any that is bound; what the default exchange would do with it cannot be told.
    """
    return _routed(topology, exchange, key, frozenset())


def places_of(topology: Topology, queue: str) -> set[Place]:
    """Return the keys with which messages come to stand in a queue, as its bindings say."""
    keys = {_known_key(topology, each) for each in topology.bindings if each.destination == queue}
    return {(queue, key) for key in keys} or {(queue, queue)}


def after_death(topology: Topology, place: Place) -> set[Place]:
    """Return where a message goes that dies in its place; nowhere where its queue has no dead-letter exchange."""
    queue = topology.queues[place[0]]
    if queue.dead_letter_exchange is None:
        return set()
    return routed(topology, queue.dead_letter_exchange, queue.dead_letter_key or place[1])


def lost_keys(topology: Topology, queue: Queue) -> list[str]:
    """Return the keys for which nothing is bound where a queue's dead go; an unknown key reads `any key`."""
    target = queue.dead_letter_exchange
    if target is None:
        return []
    keys = {queue.dead_letter_key or key for _, key in places_of(topology, queue.name)}
    told = {key for key in keys if key is not None or target}
    return sorted("any key" if key is None else key for key in told if not routed(topology, target, key))


def ttl_loops(topology: Topology) -> list[list[str]]:
    """Return the loops in which a message would die of nothing but time-outs: RabbitMQ drops it there.

    Source: RabbitMQ, Dead Letter Exchanges: "messages will be dropped if there was no rejections in the entire cycle".
    """
    graph = _waiting(topology)
    loops: list[list[str]] = []
    while True:
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            names = [queue for queue, _ in reversed(error.args[1])]
            loops.append(names)
            graph = {place: nexts for place, nexts in graph.items() if place[0] not in names}
        else:
            return loops


def _waiting(topology: Topology) -> dict[Place, set[Place]]:
    """Return the places in queues with a TTL, each with those of such queues that it gives its messages to."""
    graph: dict[Place, set[Place]] = {}
    todo = [place for queue in topology.queues.values() if _waits(queue) for place in places_of(topology, queue.name)]
    while todo:
        place = todo.pop()
        if place not in graph:
            graph[place] = {each for each in after_death(topology, place) if _waits(topology.queues[each[0]])}
            todo.extend(graph[place])
    return graph


def _waits(queue: Queue) -> bool:
    return queue.expires_messages and queue.dead_letter_exchange is not None


def _routed(topology: Topology, exchange: str, key: str | None, seen: frozenset[str]) -> set[Place]:
    if not exchange:
        return {(key, key)} if key is not None and key in topology.queues else set()
    if exchange in seen or exchange not in topology.exchanges:
        return set()
    found: set[Place] = set()
    for binding in _matching(topology, exchange, key):
        then = key if key is not None else _known_key(topology, binding)
        if binding.to_exchange:
            found |= _routed(topology, binding.destination, then, seen | {exchange})
        else:
            found.add((binding.destination, then))
    alternate = topology.exchanges[exchange].alternate
    return found or (_routed(topology, alternate, key, seen | {exchange}) if alternate else set())


def _matching(topology: Topology, exchange: str, key: str | None) -> Iterator[Binding]:
    kind = topology.exchanges[exchange].type
    for binding in topology.bindings:
        if binding.source == exchange and (key is None or _matches(kind, binding.key, key)):
            yield binding


def _matches(kind: str, bound: str, key: str) -> bool:
    if kind == "direct":
        return bound == key
    return kind != "topic" or _pattern(bound).fullmatch(key) is not None


def _pattern(bound: str) -> re.Pattern[str]:
    """Return a topic's pattern: `*` is one word, `#` any number of them."""
    words = [r"[^.]*" if word == "*" else re.escape(word) for word in bound.split(".")]
    text = r"\.".join(words).replace(re.escape("#") + r"\.", r"(?:.*\.)?").replace(r"\." + re.escape("#"), r"(?:\..*)?")
    return re.compile(text.replace(re.escape("#"), ".*"), re.DOTALL)


def _known_key(topology: Topology, binding: Binding) -> str | None:
    """Return the key that a message must have had to come by a binding, or None where that may be any."""
    source = topology.exchanges.get(binding.source)
    exact = source is not None and (source.type == "direct" or (source.type == "topic" and not _wild(binding.key)))
    return binding.key if exact else None


def _wild(key: str) -> bool:
    return not {"*", "#"}.isdisjoint(key.split("."))
