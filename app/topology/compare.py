"""The code's topology and a broker's, compared: every difference and every danger is a finding."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from app.topology.findings import APPLY, Finding, Severity
from app.topology.model import Binding, Exchange, Queue, Topology
from app.topology.routing import lost_keys, ttl_loops

#: Names of delay queues: those that are not ours any more drain by themselves.
_DELAY = re.compile(r"(.+)\.delay\.(\d+)")

#: Exchanges that anybody may bind queues to: subscribers' bindings are no finding.
_OPEN = ("topic",)


def compare(ours: Topology, found: Topology) -> list[Finding]:
    """Return the findings: what is missing or different, then what loses messages, then what is left over."""
    steps = (_missing, _different_exchanges, _different_queues, _dead_letters, _alternates, _loops, _extra_bindings)
    return [finding for step in steps for finding in step(ours, found)]


def difference(expected: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, str]:
    """Return the arguments in which two differ, as texts: those expected, and those found."""
    names = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))

    def told(arguments: Mapping[str, Any]) -> str:
        return ", ".join(f"{name} = {arguments[name]}" if name in arguments else f"no {name}" for name in names)

    return told(expected), told(found)


def other_arguments(queue: str, expected: str, found: str) -> Finding:
    """Return the finding for a queue that has other arguments: RabbitMQ can change none."""
    return Finding(
        severity="error",
        where=f"queue {queue}",
        what="other arguments: declaring it is refused (406), and a worker cannot start",
        expected=expected,
        found=found,
        mend=f"stop who works on it or posts to it by name, then: perennial topology migrate {queue}",
    )


def other_exchange(exchange: str, expected: str, found: str, *, bound: str = "", awaited: bool = True) -> Finding:
    """Return the finding for an exchange of another kind: it must go before it can be declared anew.

    `bound` names others that are bound to it; `awaited` says that queues give it what expires.
    """
    others = f"; bind again who else was bound: {bound}" if bound else ""
    others += "; in one go, for what expires meanwhile in a classic queue is dropped" if awaited else ""
    delete = f"rabbitmqadmin delete exchange name={exchange}"
    return Finding(
        severity="error",
        where=f"exchange {exchange}",
        what="of another kind: declaring it is refused (406), and a worker cannot start",
        expected=expected,
        found=found,
        mend=f"stop workers and clients, then: {delete} && {APPLY}{others}",
    )


def missing(what: str) -> Finding:
    """Return the finding for something that is not there."""
    return Finding(severity="error", where=what, what="missing", mend=APPLY)


def _missing(ours: Topology, found: Topology) -> Iterator[Finding]:
    yield from (missing(f"exchange {name}") for name in ours.exchanges if name not in found.exchanges)
    yield from (missing(f"queue {name}") for name in ours.queues if name not in found.queues)
    for binding in sorted(ours.bindings - found.bindings):
        # Without the one or the other it goes without saying.
        if binding.destination in found.queues and binding.source in found.exchanges:
            yield missing(f"binding {_told(binding)}")


def _different_exchanges(ours: Topology, found: Topology) -> Iterator[Finding]:
    for name, mine in ours.exchanges.items():
        theirs = found.exchanges.get(name)
        if theirs is not None and _kind(mine) != _kind(theirs):
            expected, there = difference(_kind(mine), _kind(theirs))
            others = sorted(each.destination for each in found.bindings - ours.bindings if each.source == name)
            awaited = any(queue.dead_letter_exchange == name for queue in found.queues.values())
            yield other_exchange(name, expected, there, bound=", ".join(others), awaited=awaited)


def _different_queues(ours: Topology, found: Topology) -> Iterator[Finding]:
    for name, mine in ours.queues.items():
        theirs = found.queues.get(name)
        if theirs is not None and _kind(mine) != _kind(theirs):
            yield other_arguments(name, *difference(_kind(mine), _kind(theirs)))


def _dead_letters(ours: Topology, found: Topology) -> Iterator[Finding]:
    for name, queue in found.queues.items():
        target, severity = queue.dead_letter_exchange, _severity(name in ours.queues)
        if target and target not in found.exchanges:
            what = f"dead-letters to exchange {target}, which is not there: RabbitMQ drops what should go there"
        elif lost := lost_keys(found, queue):
            what = f"dead-letters to {target or 'the default exchange'}, where nothing is bound for {', '.join(lost)}"
        else:
            continue
        mend = APPLY if severity == "error" else f"declare and bind {target}, or ask whose {name} is"
        yield Finding(severity=severity, where=f"queue {name}", what=what, mend=mend)


def _alternates(ours: Topology, found: Topology) -> Iterator[Finding]:
    sources = {binding.source for binding in found.bindings}
    for name, exchange in found.exchanges.items():
        alternate, severity = exchange.alternate, _severity(name in ours.exchanges)
        if alternate and alternate not in found.exchanges:
            what = f"alternate exchange {alternate} is not there: RabbitMQ drops what cannot be routed"
        elif alternate and alternate not in sources:
            what = f"nothing is bound to its alternate exchange {alternate}: RabbitMQ drops what cannot be routed"
        else:
            continue
        mend = APPLY if severity == "error" else f"declare and bind {alternate}, or ask whose {name} is"
        yield Finding(severity=severity, where=f"exchange {name}", what=what, mend=mend)


def _loops(ours: Topology, found: Topology) -> Iterator[Finding]:
    for loop in ttl_loops(found):
        severity = _severity(not ours.queues.keys().isdisjoint(loop))
        yield Finding(
            severity=severity,
            where=f"queue {loop[0]}",
            what=f"a loop of time-outs, in which RabbitMQ drops a message that comes round: {' -> '.join(loop)}",
            mend="take the TTL or the dead-letter exchange from one of them; a loop needs a queue that is worked on",
        )


def old_delays(ours: Topology, found: Topology) -> dict[str, int]:
    """Return the delay queues that are none of the code's now, each with its wait in ms."""
    namespaces = {match[1] for match in map(_DELAY.fullmatch, ours.queues) if match}
    matches = {name: _DELAY.fullmatch(name) for name in found.queues.keys() - ours.queues.keys()}
    return {name: int(match[2]) for name, match in sorted(matches.items()) if match and match[1] in namespaces}


def old_delay(name: str, delay_ms: int, *, messages: int) -> Finding:
    """Return the note on a delay queue that is none of the code's now."""
    return Finding(
        severity="note",
        where=f"queue {name}",
        what="a wait that the settings do not name: a former one, or a message's own",
        found=f"{messages} message(s) for {delay_ms / 1_000:g} s",
        mend="none needed: it empties itself, and is made again on demand",
    )


def _extra_bindings(ours: Topology, found: Topology) -> Iterator[Finding]:
    for binding in sorted(found.bindings - ours.bindings):
        if _watched(binding, ours):
            yield _extra(binding)


def _watched(binding: Binding, ours: Topology) -> bool:
    """Tell whether a binding that is not ours changes what reaches our queues, or leaves our exchanges."""
    source = ours.exchanges.get(binding.source)
    ours_to_give = source is not None and source.type not in _OPEN
    old_delay = binding.source == binding.destination and _DELAY.fullmatch(binding.source)
    return (ours_to_give or binding.destination in ours.queues) and not old_delay


def _extra(binding: Binding) -> Finding:
    key = f" routing_key={binding.key}" if binding.key else ""
    return Finding(
        severity="note",
        where=f"binding {_told(binding)}",
        what="not of the code: it brings more messages, or takes copies",
        mend=f"if nobody wants it: rabbitmqadmin delete binding source={binding.source} destination_type="
        f"{'exchange' if binding.to_exchange else 'queue'} destination={binding.destination}{key}",
    )


def _kind(thing: Exchange | Queue) -> dict[str, Any]:
    """Return all that a declaration must agree in; a queue without a type is a classic one."""
    kind = {"type": thing.type} if isinstance(thing, Exchange) else {}
    arguments = {name: value for name, value in thing.arguments.items() if (name, value) != ("x-queue-type", "classic")}
    return kind | {"durable": thing.durable} | arguments


def _severity(ours: bool) -> Severity:
    return "error" if ours else "note"


def _told(binding: Binding) -> str:
    return f"{binding.source} -> {binding.destination}" + (f" [{binding.key}]" if binding.key else "")
