"""The topology as Mermaid flowcharts for its reference: of the site, of searching and of cover art."""

from __future__ import annotations

from collections.abc import Sequence

from kombu import Exchange, Queue

from app.broker.outcomes import outcomes_exchange
from app.broker.policies.base import Policy
from app.coverart.project import COVER_ART
from app.operations.doctor.comparisons import worker_prefetches
from app.processes.procfile import procfile
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
    consumers = {queue: process for process, queues, _ in worker_prefetches(procfile()) for queue in queues}
    queues = [queue for queue in all_queues(settings) if queue.name.startswith(f"{SITE}.")]
    work = [queue for queue in queues if queue.name in consumers]
    delays = [queue for queue in queues if queue not in work and _ttl_ms(queue)]
    [dead_set] = [queue for queue in queues if queue not in work and queue not in delays]
    site, dead, delay = _exchange(site_exchange), _exchange(dead_set.exchange), _one_of(delays)
    outcomes = _exchange(outcomes_exchange)
    processes = sorted({consumers[queue.name] for queue in work}, reverse=True)
    all_processes = " & ".join(processes)
    lines = [f'    producers(["clients, beat, tasks"]) --> {site}']
    for queue in work:
        keys = ", ".join(sorted(key for _, key in bindings_of(queue) if key != queue.name and key not in ALIASES))
        lines.append(_binding_line(site_exchange, keys, queue, consumers[queue.name]))
    waits = [_ttl_ms(queue) / 1_000 for queue in delays]
    lines += [
        *(f"    {process}([{process}])" for process in processes),
        f'    {all_processes} -->|"failed, postponed"| {_exchange(delay.exchange)} --> {_queue(delay)}',
        f'    {_queue(delay)} -.->|"after {min(waits):g} to {max(waits):g} s, in {len(delays)} queues"| {site}',
        f'    {all_processes} -->|"retries spent"| {dead} --> {_queue(dead_set)}',
        *(f'    {_queue(queue)} -.->|"delivery limit"| {dead}' for queue in work if _dead_letter_exchange(queue)),
        f'    {site} -.->|"unknown key"| {dead}',
        f'    packer -->|"update"| {_exchange(events_exchange)} --> subscribers([subscribers])',
        f'    {all_processes} -->|"outcome of a replay"| {outcomes} --> canary(["replay --canary"])',
    ]
    coloured = _coloured([delay], "waiting") + _coloured([dead_set], "failed")
    return "\n".join(["flowchart LR", *lines, *_STYLES, *coloured])


def _one_of(delays: Sequence[Queue]) -> Queue:
    """Return one delay queue, `site.delay.ms`, that stands for those of all durations."""
    [kind] = {queue.exchange.type for queue in delays}
    name = f"{SITE}.delay.ms"
    return Queue(name, Exchange(name, type=kind))


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
    return _coloured(_delay_queues(policy), "waiting") + _coloured([policy.dead] if policy.dead else [], "failed")


def _coloured(queues: Sequence[Queue], style: str) -> list[str]:
    return [f"    class {_id('x', queue.exchange.name)},{_id('q', queue.name)} {style}" for queue in queues]


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


# An exchange and a queue can have the same name, so the nodes begin with `x_` and `q_`.


def _exchange(exchange: Exchange) -> str:
    return f'{_id("x", exchange.name)}{{{{"{exchange.name}<br>{exchange.type}"}}}}'


def _queue(queue: Queue) -> str:
    return f'{_id("q", queue.name)}[["{queue.name}"]]'


def _id(kind: str, name: str) -> str:
    return f"{kind}_{name.replace('.', '_').replace('-', '_')}"
