"""Compare the code's topology with a broker's: each difference and each danger is a finding with its remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from app.topology.model import ExchangeDefinition, QueueDefinition, Topology
from app.topology.routing import lost_keys, ttl_loops

#: `error`: a message can be lost, or a queue is not served. `note`: worth knowing, and nothing is lost.
Severity = Literal["error", "note"]

#: The remedy for whatever is missing.
APPLY = "perennial topology apply"

#: The remedy for queues of a node that is down.
_START_NODE = "start the node; never delete the queue to declare it elsewhere, as its messages are on that node"

#: The remedy for a queue with other arguments, or with a migration that has not ended.
_MIGRATE = "stop its consumers and publishers, then: perennial topology migrate"

#: Names of delay queues: namespace and milliseconds.
_DELAY_QUEUE = re.compile(r"(.+)\.delay\.(\d+)")

#: Names of the further queues of a dead set, which are declared when it is long.
_OF_DEAD_SET = re.compile(r"(.+)\.(shard\.\d+|index)")

#: What follows the name of a queue in that of its aside queue, in which its messages are while it is migrated.
ASIDE = ".aside"

#: Keys of which RabbitMQ applies the lower value, of the policy or of the queue's argument.
_LIMITS = ("message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyFinding:
    """One difference or danger: what it is about, such as `queue site.index`, the problem and the remedy."""

    severity: Severity = "error"
    subject: str
    problem: str
    remedy: str
    #: What the code declares, and what the broker has; empty where this does not apply.
    expected: str = ""
    found: str = ""


def compare(ours: Topology, found: Topology) -> list[TopologyFinding]:
    """Return the findings: what is missing or different, then what loses messages, is down, or is a loop."""
    # RabbitMQ does not show the bindings of queues whose node is down.
    waiting = {name for name, queue in found.queues.items() if queue.replicas.members and not queue.replicas.online}
    found = replace(found, bindings=found.bindings | {each for each in ours.bindings if each.destination in waiting})
    findings = [*_missing_or_different(ours, found), *_unbound_targets(ours, found)]
    further = (match[0] for match in map(_OF_DEAD_SET.fullmatch, found.queues) if match and match[1] in ours.queues)
    for name in sorted({*further, *(ours.queues.keys() & found.queues.keys())}):
        for setting, consequence, remedy in harmful_settings(found.queues[name]):
            problem = f"{setting} {consequence}"
            findings.append(TopologyFinding(subject=f"queue {name}", problem=problem, remedy=remedy))
    findings += _unavailable(ours, found)
    findings += [
        TopologyFinding(subject=f"queue {name}", problem="its migration has not ended", remedy=f"{_MIGRATE} {name}")
        for name in ours.queues
        if f"{name}{ASIDE}" in found.queues
    ]
    for loop in ttl_loops(found):
        finding = TopologyFinding(
            severity="note" if ours.queues.keys().isdisjoint(loop) else "error",
            subject=f"queue {loop[0]}",
            problem=f"a loop of expiries, in which RabbitMQ drops a message that returns: {' -> '.join(loop)}",
            remedy="remove the TTL or the dead-letter exchange from one of them; a loop needs a queue with a consumer",
        )
        findings.append(finding)
    return findings


def former_delay_queues(ours: Topology, found: Topology) -> dict[str, int]:
    """Return the delay queues that the code does not declare, each with its delay in ms: they empty themselves."""
    namespaces = {match[1] for match in map(_DELAY_QUEUE.fullmatch, ours.queues) if match}
    matches = {name: _DELAY_QUEUE.fullmatch(name) for name in found.queues.keys() - ours.queues.keys()}
    return {name: int(match[2]) for name, match in sorted(matches.items()) if match and match[1] in namespaces}


def _missing_or_different(ours: Topology, found: Topology) -> Iterator[TopologyFinding]:
    """Yield a finding for each declaration of the code that the broker lacks, then for each with other arguments."""
    missing = [f"exchange {name}" for name in ours.exchanges if name not in found.exchanges]
    missing += [f"queue {name}" for name in ours.queues if name not in found.queues]
    for binding in sorted(ours.bindings - found.bindings):
        # Where its queue or its exchange is missing, so is the binding.
        if binding.destination in found.queues and binding.source in found.exchanges:
            key = f" [{binding.key}]" if binding.key else ""
            missing.append(f"binding {binding.source} -> {binding.destination}{key}")
    yield from (TopologyFinding(subject=subject, problem="missing", remedy=APPLY) for subject in missing)
    yield from _other_exchanges(ours, found)
    for name, queue in ours.queues.items():
        default = {} if found.default_queue_type == "classic" else {"x-queue-type": found.default_queue_type}
        declared = replace(queue, arguments={**default, **queue.arguments})
        if name in found.queues and (difference := _difference(declared, found.queues[name])):
            yield TopologyFinding(
                subject=f"queue {name}",
                problem="other arguments: declaring it is refused (406), and it is not served",
                expected=difference[0],
                found=difference[1],
                remedy=f"{_MIGRATE} {name}",
            )


def _other_exchanges(ours: Topology, found: Topology) -> Iterator[TopologyFinding]:
    """Yield a finding for each exchange with another type or other arguments: it must be deleted and declared again."""
    for name, exchange in ours.exchanges.items():
        if name in found.exchanges and (difference := _difference(exchange, found.exchanges[name])):
            remedy = f"stop workers and clients, then: rabbitmqadmin delete exchange name={name} && {APPLY}"
            if foreign := sorted(each.destination for each in found.bindings - ours.bindings if each.source == name):
                remedy += f"; then bind these again: {', '.join(foreign)}"
            if any(queue.dead_letter_exchange == name for queue in found.queues.values()):
                remedy += "; without a pause: meanwhile, what expires in a classic queue is dropped"
            yield TopologyFinding(
                subject=f"exchange {name}",
                problem="another type or other arguments: it is refused (406), and what needs it is not served",
                expected=difference[0],
                found=difference[1],
                remedy=remedy,
            )


def _difference(
    expected: ExchangeDefinition | QueueDefinition, found: ExchangeDefinition | QueueDefinition
) -> tuple[str, str] | None:
    """Return what two declarations differ in, as texts: the expected and the found arguments. None if in nothing."""
    left, right = _declared_arguments(expected), _declared_arguments(found)
    names = sorted(name for name in {*left, *right} if left.get(name) != right.get(name))

    def text(arguments: Mapping[str, Any]) -> str:
        return ", ".join(f"{name} = {arguments[name]}" if name in arguments else f"no {name}" for name in names)

    return (text(left), text(right)) if names else None


def _declared_arguments(declared: ExchangeDefinition | QueueDefinition) -> dict[str, Any]:
    """Return all in which two declarations must agree. A queue without a type is a classic one."""
    exchange_type = {"type": declared.type} if isinstance(declared, ExchangeDefinition) else {}
    arguments = {
        name: value for name, value in declared.arguments.items() if (name, value) != ("x-queue-type", "classic")
    }
    return exchange_type | {"durable": declared.durable, **dict.fromkeys(declared.flags, True)} | arguments


def _unbound_targets(ours: Topology, found: Topology) -> Iterator[TopologyFinding]:
    """Yield a finding for each dead-letter or alternate exchange of the code that is missing or routes nowhere."""
    for queue in (found.queues[name] for name in ours.queues if name in found.queues):
        target = queue.dead_letter_exchange
        if target and target not in found.exchanges:
            problem = f"dead-letters to exchange {target}, which does not exist: RabbitMQ drops these messages"
        elif keys := lost_keys(found, queue):
            problem = (
                f"dead-letters to {target or 'the default exchange'}, where nothing is bound for {', '.join(keys)}"
            )
        else:
            continue
        yield TopologyFinding(subject=f"queue {queue.name}", problem=problem, remedy=APPLY)
    sources = {binding.source for binding in found.bindings}
    for exchange in (found.exchanges[name] for name in ours.exchanges if name in found.exchanges):
        alternate = exchange.alternate
        if alternate and alternate not in found.exchanges:
            problem = f"alternate exchange {alternate} does not exist: RabbitMQ drops unroutable messages"
        elif alternate and alternate not in sources:
            problem = f"nothing is bound to its alternate exchange {alternate}: RabbitMQ drops unroutable messages"
        else:
            continue
        yield TopologyFinding(subject=f"exchange {exchange.name}", problem=problem, remedy=APPLY)


def _unavailable(ours: Topology, found: Topology) -> Iterator[TopologyFinding]:
    """Yield an error for each of our queues that waits for its node, and a note for each with a member missing."""
    for name in sorted(ours.queues.keys() & found.queues.keys()):
        replicas = found.queues[name].replicas
        missing_nodes = ", ".join(replicas.missing)
        if 2 * len(replicas.missing) >= len(replicas.members) and replicas.missing:
            severity: Severity = "error"
            problem = f"waits for {missing_nodes}, which is down; "
            problem += "its messages return with it, and all other queues are served"
        elif replicas.missing:
            severity = "note"
            problem = f"works without its member on {missing_nodes}; it stops when half of its members are down"
        else:
            continue
        yield TopologyFinding(severity=severity, subject=f"queue {name}", problem=problem, remedy=_START_NODE)


def harmful_settings(queue: QueueDefinition) -> Iterator[tuple[str, str, str]]:
    """Yield key, consequence and remedy of each setting of a policy that deletes, expires or moves messages.

    A limit counts where it is lower than the queue's own argument. Source: RabbitMQ, Policies and Operator Policies.
    """
    for key, value in queue.broker_policy.items():
        if consequence := _consequence(queue, key, value):
            label = queue.policy_names.get(key, "policy")
            clear = "clear_operator_policy" if label.startswith("operator policy ") else "clear_policy"
            name = label.removeprefix("operator ").removeprefix("policy ")
            yield (
                f"{label} sets {key} = {value}:",
                consequence,
                f"exclude the queue from its pattern, or: rabbitmqctl {clear} {name}",
            )


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
        case "dead-letter-routing-key" if own is None and "x-dead-letter-exchange" in queue.arguments:
            return f"replaces the key of messages on their way to {target}, by which they return to their queue"
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
