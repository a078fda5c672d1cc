"""The broker's topology, and that of one retry policy, as Mermaid flowcharts: the pictures of the README."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kombu import Exchange, Queue

from app.broker.policies.base import Policy
from app.doctor.consumer_timeout import worker_prefetches
from app.topology.model import bindings_of, exchanges_of
from app.topology.queues import events_exchange, requests_exchange, site_exchange
from config.routes import ALIASES, ORCHESTRATOR, REQUEST_TYPES, SUBSCRIPTIONS

#: Waiting is amber, failure red, on light and dark pages alike.
_STYLES = (
    "    classDef waiting fill:#fdf3d8,stroke:#b8860b,color:#000",
    "    classDef failed fill:#f8dddd,stroke:#a33,color:#000",
)


def consumers_of(processes: Mapping[str, str]) -> dict[str, str]:
    """Return queue -> process, as the Procfile's `--queues` say."""
    return {queue: name for name, queues, _ in worker_prefetches(processes, 1) for queue in queues}


def to_mermaid(queues: Sequence[Queue], consumers: Mapping[str, str]) -> str:
    """Return a flowchart of `queues`, which `consumers` maps to processes where they are worked on.

    Hexagons are exchanges, framed boxes queues, rounded ones processes; a dashed line is the broker's own doing. The
    delay queues, which differ in their duration only, are drawn as one.
    """
    work = [queue for queue in queues if queue.name in consumers]
    delays = [queue for queue in queues if queue not in work and _ttl(queue)]
    ends = [queue for queue in queues if queue not in work and queue not in delays]
    processes = sorted({consumers[queue.name] for queue in work}, reverse=True)
    lines = [
        "flowchart LR",
        f'    producers(["clients, beat, tasks"]) --> {_exchange(site_exchange)}',
        *_work(work, consumers),
        *(f"    {process}([{process}])" for process in processes),
        *_delays(delays, processes),
        *_ends(ends, processes),
        *_given_up(work),
        f'    packer -->|"update"| {_exchange(events_exchange)} --> subscribers([subscribers])',
        *_STYLES,
        "    class delay,waiting waiting",
        *(f"    class {_node(queue.exchange.name)},{_node(queue.name)}_queue failed" for queue in ends),
    ]
    return "\n".join(lines)


def convention(policy: Policy, work: Sequence[Queue], *, worker: str) -> str:
    """Return a flowchart of a policy on its work queues, which `worker` consumes from: where failures wait and end."""
    return "\n".join(["flowchart LR", *_convention(policy, work, worker=worker), *_STYLES, *_classes(policy)])


def search(policy: Policy, events: Queue, requests: Queue, searcher: Queue) -> str:
    """Return a flowchart of searching: the orchestrator's queues with the policy of its events, and a searcher's own.

    What names a queue is sent through the default exchange, and so are replies.
    """
    heard = ", ".join(route.type for route in SUBSCRIPTIONS if route.type != "update")
    asked = ", ".join(kind for kind in REQUEST_TYPES if kind != "heartbeat")
    lines = [
        f'    packer([packer]) -->|"update"| {_x(events_exchange)}',
        *_convention(policy, [events], worker=ORCHESTRATOR),
        *(line for exchange, keys in _bound_by(requests) for line in [_to_queue(exchange, keys, requests)]),
        *(_to_queue(exchange, keys, searcher, "searcher([searcher])") for exchange, keys in _bound_by(searcher)),
        f'    client(["web, command line, demo"]) -->|"search, suggest"| {_q(searcher)}',
        f'    client -->|"{asked}"| {_x(requests_exchange)}',
        f'    worker -->|"load, unload, and requests passed on"| {_q(searcher)}',
        f'    searcher -->|"{heard}"| {_x(events_exchange)}',
        f'    searcher -->|"heartbeat"| {_x(requests_exchange)}',
        '    worker & searcher -->|"replies"| replies[["a queue with a name by the broker"]] --> client',
    ]
    return "\n".join(["flowchart LR", *lines, *_STYLES, *_classes(policy)])


def _convention(policy: Policy, work: Sequence[Queue], *, worker: str) -> list[str]:
    dead = policy.dead
    waiting = _waiting(policy)
    retries = {_dead_letter_exchange(queue) for queue in work}
    lines = [_to_queue(exchange, keys, queue) for queue in work for exchange, keys in _bound_by(queue)]
    lines.append(f"    worker([{worker}])")
    for queue in waiting:
        # What rejects is the worker; what moves the message then is the broker.
        by_broker = queue.exchange.name in retries
        lines += [f'    {_q(each)} -.->|"failed, rejected"| {_x(queue.exchange)}' for each in work if by_broker]
        lines += [] if by_broker else [f'    worker -->|"failed"| {_x(queue.exchange)}']
        lines += [f"    {_x(queue.exchange)} --> {_q(queue)}"]
        lines += [f'    {_q(queue)} -.->|"after {_span(_ttl(queue))}"| {_x(_target(queue, work))}']
    if dead is not None:
        lines += [f'    worker -->|"retries spent"| {_x(dead.exchange)} --> {_q(dead)}']
    return lines


def _classes(policy: Policy) -> Iterator[str]:
    """Yield which nodes wait, and which are the end."""
    for queues, name in ((_waiting(policy), "waiting"), ([policy.dead] if policy.dead else [], "failed")):
        for queue in queues:
            yield f"    class {_id('x', queue.exchange.name)},{_id('q', queue.name)} {name}"


def _waiting(policy: Policy) -> list[Queue]:
    return [queue for queue in policy.queues() if _ttl(queue)]


def _to_queue(exchange: Exchange, keys: str, queue: Queue, process: str = "worker") -> str:
    return f'    {_x(exchange)} -->|"{keys}"| {_q(queue)} --> {process}'


def _bound_by(queue: Queue) -> list[tuple[Exchange, str]]:
    """Return each exchange that a queue is bound to, with its keys; in an order that is always the same."""
    exchanges = {exchange.name: exchange for exchange, _ in _bound(queue)}
    keys = sorted((exchange.name, key) for exchange, key in _bound(queue))
    return [(exchanges[name], ", ".join(key for each, key in keys if each == name)) for name in sorted(exchanges)]


def _target(waiting: Queue, work: Sequence[Queue]) -> Exchange:
    """Return the exchange that a waiting queue gives its messages back to, as the work queues are bound to it."""
    name = _dead_letter_exchange(waiting)
    return next(exchange for queue in work for exchange, _ in _bound(queue) if exchange.name == name)


def _bound(queue: Queue) -> list[tuple[Exchange, str]]:
    """Return exchange and key of every binding of a queue."""
    return list(zip(exchanges_of(queue), (key for _, key in bindings_of(queue)), strict=True))


def _span(delay_ms: int) -> str:
    seconds = delay_ms / 1_000
    return f"{seconds / 3_600:g} h" if seconds >= 3_600 else f"{seconds:g} s"


def _x(exchange: Exchange) -> str:
    return f'{_id("x", exchange.name)}{{{{"{exchange.name}<br>{exchange.type}"}}}}'


def _q(queue: Queue) -> str:
    return f"{_id('q', queue.name)}{_box(queue.name)}"


def _id(kind: str, name: str) -> str:
    return f"{kind}_{name.replace('.', '_').replace('-', '_')}"


def _work(work: Sequence[Queue], consumers: Mapping[str, str]) -> Iterator[str]:
    for queue in work:
        keys = ", ".join(sorted(key for _, key in bindings_of(queue) if key != queue.name and key not in ALIASES))
        yield f'    site -->|"{keys}"| {_node(queue.name)}{_box(queue.name)} --> {consumers[queue.name]}'


def _delays(delays: Sequence[Queue], processes: Sequence[str]) -> Iterator[str]:
    longest, shortest = max(map(_ttl, delays)), min(map(_ttl, delays))
    box = _box(f"site.delay.ms<br>{len(delays)} queues,<br>{shortest / 1_000:g} s to {longest / 1_000:g} s")
    exchange = f'delay{{{{"site.delay.ms<br>{delays[0].exchange.type}"}}}}'
    yield f'    {" & ".join(processes)} -->|"failed, postponed"| {exchange} --> waiting{box}'
    for target in sorted({_dead_letter_exchange(queue) for queue in delays}):
        yield f'    waiting -.->|"time is up"| {_node(target)}'


def _ends(ends: Sequence[Queue], processes: Sequence[str]) -> Iterator[str]:
    for queue in ends:
        box = f"{_node(queue.name)}_queue{_box(queue.name)}"
        yield f'    {" & ".join(processes)} -->|"retries spent"| {_exchange(queue.exchange)} --> {box}'


def _given_up(work: Sequence[Queue]) -> Iterator[str]:
    """Draw what the broker itself dead-letters or cannot route."""
    for queue in work:
        if target := _dead_letter_exchange(queue):
            yield f'    {_node(queue.name)} -.->|"delivery limit"| {_node(target)}'
    alternate = (site_exchange.arguments or {}).get("alternate-exchange")
    if alternate:
        yield f'    {_node(site_exchange.name)} -.->|"unknown key"| {_node(alternate)}'


def _exchange(exchange: Exchange) -> str:
    return f'{_node(exchange.name)}{{{{"{exchange.name}<br>{exchange.type}"}}}}'


def _box(text: str) -> str:
    return f'[["{text}"]]'


def _node(name: str) -> str:
    return name.replace(".", "_")


def _ttl(queue: Queue) -> int:
    return int((queue.queue_arguments or {}).get("x-message-ttl", 0))


def _dead_letter_exchange(queue: Queue) -> str:
    return str((queue.queue_arguments or {}).get("x-dead-letter-exchange", ""))
