"""The topology as Mermaid flowcharts for its reference: of the site, of searching and of cover art."""

from __future__ import annotations

from collections.abc import Sequence

from kombu import Exchange, Queue

from app.broker.outcomes import OUTCOMES
from app.broker.policies.base import Policy
from app.coverart.project import COVER_ART
from app.doctor.consumer_timeout import worker_prefetches
from app.private_services.procfile import procfile
from app.topology.declare import all_queues
from app.topology.model import bindings_of, exchanges_of
from app.topology.queues import (
    art_queues,
    events_exchange,
    orchestrator_queues,
    queries_exchange,
    requests_exchange,
    searcher_queue,
    site_exchange,
)
from app.topology.retry_policies import art_policy, subscriber_policy
from config.routes import ALIASES, HEARTBEAT, ORCHESTRATOR, REQUEST_TYPES, SITE, SUBSCRIPTIONS
from config.settings import Settings

#: Waiting is amber and failure red, legible on light and dark pages.
_STYLES = (
    "    classDef waiting fill:#fdf3d8,stroke:#b8860b,color:#000",
    "    classDef failed fill:#f8dddd,stroke:#a33,color:#000",
)


def site_flowchart(settings: Settings) -> str:
    """Return the flowchart of the `site` queues with the processes of the Procfile that consume from them.

    Hexagons are exchanges, framed boxes queues, rounded boxes processes. A dashed line is what the broker does by
    itself. The delay queues, which differ in their duration only, are one box.
    """
    consumers = {queue: process for process, queues, _ in worker_prefetches(procfile(), 1) for queue in queues}
    queues = [queue for queue in all_queues(settings) if queue.name.startswith(f"{SITE}.")]
    work = [queue for queue in queues if queue.name in consumers]
    delays = [queue for queue in queues if queue not in work and _ttl_ms(queue)]
    dead_sets = [queue for queue in queues if queue not in work and queue not in delays]
    processes = sorted({consumers[queue.name] for queue in work}, reverse=True)
    all_processes = " & ".join(processes)
    lines = ["flowchart LR", f'    producers(["clients, beat, tasks"]) --> {_site_exchange(site_exchange)}']
    for queue in work:
        keys = ", ".join(sorted(key for _, key in bindings_of(queue) if key != queue.name and key not in ALIASES))
        lines.append(f'    site -->|"{keys}"| {_node(queue.name)}{_box(queue.name)} --> {consumers[queue.name]}')
    lines += [f"    {process}([{process}])" for process in processes]
    lines += _delay_lines(delays, all_processes)
    for queue in dead_sets:
        box = f"{_node(queue.name)}_queue{_box(queue.name)}"
        lines.append(f'    {all_processes} -->|"retries spent"| {_site_exchange(queue.exchange)} --> {box}')
    for queue in work:
        if target := _dead_letter_exchange(queue):
            lines.append(f'    {_node(queue.name)} -.->|"delivery limit"| {_node(target)}')
    if alternate := (site_exchange.arguments or {}).get("alternate-exchange"):
        lines.append(f'    {_node(site_exchange.name)} -.->|"unknown key"| {_node(alternate)}')
    lines += [
        f'    packer -->|"update"| {_site_exchange(events_exchange)} --> subscribers([subscribers])',
        f'    {all_processes} -->|"outcome of a replay"| {_site_exchange(OUTCOMES)} --> canary(["replay --canary"])',
        *_STYLES,
        "    class delay,waiting waiting",
        *(f"    class {_node(queue.exchange.name)},{_node(queue.name)}_queue failed" for queue in dead_sets),
    ]
    return "\n".join(lines)


def search_flowchart(settings: Settings) -> str:
    """Return the flowchart of searching: the orchestrator's queues with their retry policy, and a searcher's queue.

    Replies, and requests to a queue by its name, are published to the default exchange, which is not drawn.
    """
    policy, searcher = subscriber_policy(ORCHESTRATOR, settings), searcher_queue("ID")
    events, requests = orchestrator_queues(settings)
    event_types = ", ".join(route.type for route in SUBSCRIPTIONS if route.type != "update")
    lines = [
        f'    packer([packer]) -->|"update"| {_exchange(events_exchange)}',
        *_policy_lines(policy, [events], consumer=ORCHESTRATOR),
        *(_binding_line(exchange, keys, requests) for exchange, keys in _keys_by_exchange(requests)),
        *(
            _binding_line(exchange, keys, searcher, "searcher([searcher])")
            for exchange, keys in _keys_by_exchange(searcher)
        ),
        f'    client(["web, command line, demo"]) -->|"search, suggest"| {_exchange(queries_exchange)}',
        f'    client -->|"{", ".join(REQUEST_TYPES)}"| {_exchange(requests_exchange)}',
        f'    worker -->|"load, unload, and requests passed on"| {_queue(searcher)}',
        f'    searcher -->|"{HEARTBEAT}, {event_types}"| {_exchange(events_exchange)}',
        '    worker & searcher -->|"replies"| replies[["a queue with a name by the broker"]] --> client',
    ]
    return "\n".join(["flowchart LR", *lines, *_STYLES, *_class_lines(policy)])


def art_flowchart(settings: Settings) -> str:
    """Return the flowchart of the Cover Art Archive's work queues, delay queue and dead set."""
    policy = art_policy(COVER_ART.prefix, settings)
    lines = _policy_lines(policy, art_queues(COVER_ART.prefix, settings), consumer="indexer")
    return "\n".join(["flowchart LR", *lines, *_STYLES, *_class_lines(policy)])


def _delay_lines(delays: Sequence[Queue], processes: str) -> list[str]:
    shortest, longest = min(map(_ttl_ms, delays)), max(map(_ttl_ms, delays))
    box = _box(f"site.delay.ms<br>{len(delays)} queues,<br>{shortest / 1_000:g} s to {longest / 1_000:g} s")
    exchange = f'delay{{{{"site.delay.ms<br>{delays[0].exchange.type}"}}}}'
    targets = sorted({_dead_letter_exchange(queue) for queue in delays})
    return [
        f'    {processes} -->|"failed, postponed"| {exchange} --> waiting{box}',
        *(f'    waiting -.->|"time is up"| {_node(target)}' for target in targets),
    ]


def _policy_lines(policy: Policy, work: Sequence[Queue], *, consumer: str) -> list[str]:
    """Return the lines of a policy's queues. The node of the consumer is called `worker`."""
    lines = [_binding_line(exchange, keys, queue) for queue in work for exchange, keys in _keys_by_exchange(queue)]
    lines.append(f"    worker([{consumer}])")
    rejected_to = {_dead_letter_exchange(queue) for queue in work}
    exchanges = {exchange.name: exchange for queue in work for exchange in exchanges_of(queue)}
    for queue in _delay_queues(policy):
        if queue.exchange.name in rejected_to:
            # The worker rejects the message, and the broker moves it.
            lines += [f'    {_queue(each)} -.->|"failed, rejected"| {_exchange(queue.exchange)}' for each in work]
        else:
            lines.append(f'    worker -->|"failed"| {_exchange(queue.exchange)}')
        seconds = _ttl_ms(queue) / 1_000
        span = f"{seconds / 3_600:g} h" if seconds >= 3_600 else f"{seconds:g} s"
        lines.append(f"    {_exchange(queue.exchange)} --> {_queue(queue)}")
        lines.append(f'    {_queue(queue)} -.->|"after {span}"| {_exchange(exchanges[_dead_letter_exchange(queue)])}')
    if policy.dead is not None:
        lines.append(f'    worker -->|"retries spent"| {_exchange(policy.dead.exchange)} --> {_queue(policy.dead)}')
    return lines


def _class_lines(policy: Policy) -> list[str]:
    """Return the lines that colour the delay queues and the dead set."""
    dead_sets = [policy.dead] if policy.dead else []
    coloured = [*((queue, "waiting") for queue in _delay_queues(policy)), *((queue, "failed") for queue in dead_sets)]
    return [f"    class {_id('x', queue.exchange.name)},{_id('q', queue.name)} {style}" for queue, style in coloured]


def _delay_queues(policy: Policy) -> list[Queue]:
    return [queue for queue in policy.queues() if _ttl_ms(queue)]


def _keys_by_exchange(queue: Queue) -> list[tuple[Exchange, str]]:
    """Return each exchange that a queue is bound to, with its binding keys; sorted."""
    exchanges = {exchange.name: exchange for exchange in exchanges_of(queue)}
    bindings = sorted(bindings_of(queue))
    return [(exchanges[name], ", ".join(key for each, key in bindings if each == name)) for name in sorted(exchanges)]


def _binding_line(exchange: Exchange, keys: str, queue: Queue, consumer: str = "worker") -> str:
    return f'    {_exchange(exchange)} -->|"{keys}"| {_queue(queue)} --> {consumer}'


def _ttl_ms(queue: Queue) -> int:
    return int((queue.queue_arguments or {}).get("x-message-ttl", 0))


def _dead_letter_exchange(queue: Queue) -> str:
    return str((queue.queue_arguments or {}).get("x-dead-letter-exchange", ""))


# Nodes of the site's flowchart are named like the exchange or the queue.


def _site_exchange(exchange: Exchange) -> str:
    return f'{_node(exchange.name)}{{{{"{exchange.name}<br>{exchange.type}"}}}}'


def _node(name: str) -> str:
    return name.replace(".", "_")


def _box(text: str) -> str:
    return f'[["{text}"]]'


# In the other flowcharts an exchange and a queue can have the same name, so the nodes begin with `x_` and `q_`.


def _exchange(exchange: Exchange) -> str:
    return f'{_id("x", exchange.name)}{{{{"{exchange.name}<br>{exchange.type}"}}}}'


def _queue(queue: Queue) -> str:
    return f"{_id('q', queue.name)}{_box(queue.name)}"


def _id(kind: str, name: str) -> str:
    return f"{kind}_{name.replace('.', '_').replace('-', '_')}"
