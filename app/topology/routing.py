"""Compute where a broker routes a message, to find dead-letter targets that are not bound."""

from __future__ import annotations

import re

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
    for binding in topology.bindings:
        if binding.source != exchange or not _matches(exchange_type, binding.key, key):
            continue
        key_after = key if key is not None else _known_key(topology, binding)
        if binding.to_exchange:
            found |= routed_queues(topology, binding.destination, key_after, visited)
        else:
            found.add((binding.destination, key_after))
    alternate = topology.exchanges[exchange].alternate
    return found or (routed_queues(topology, alternate, key, visited) if alternate else set())


def lost_keys(topology: Topology, queue: QueueDefinition) -> list[str]:
    """Return the keys for which nothing is bound to a queue's dead-letter exchange; an unknown key reads `any key`."""
    target = queue.dead_letter_exchange
    if target is None:
        return []
    bound = {_known_key(topology, each) for each in topology.bindings if each.destination == queue.name}
    keys = {queue.dead_letter_key or key for key in bound or {queue.name}}
    checked = {key for key in keys if key is not None or target}
    return sorted("any key" if key is None else key for key in checked if not routed_queues(topology, target, key))


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
