"""The broker's topology as a Mermaid flowchart: the picture of the README."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from kombu import Exchange, Queue

from app.care.model import bindings_of
from config.routes import ALIASES
from config.topology import events_exchange, site_exchange

#: Waiting is amber, failure red, on light and dark pages alike.
_STYLES = (
    "    classDef waiting fill:#fdf3d8,stroke:#b8860b,color:#000",
    "    classDef failed fill:#f8dddd,stroke:#a33,color:#000",
)


def consumers_of(processes: Mapping[str, str]) -> dict[str, str]:
    """Return queue -> process, as the Procfile's `--queues` say."""
    options = ((name, option) for name, command in processes.items() for option in shlex.split(command))
    lists = ((name, option.partition("=")[2]) for name, option in options if option.startswith("--queues="))
    return {queue: name for name, queues in lists for queue in queues.split(",")}


def to_mermaid(queues: Sequence[Queue], consumers: Mapping[str, str]) -> str:
    """Return a flowchart of `queues`, which `consumers` maps to processes where they are worked on.

    Hexagons are exchanges, framed boxes queues, rounded ones processes; a dashed line is the broker's own doing. The
    delay queues, which differ in their duration only, are drawn as one.
    """
    work = [queue for queue in queues if queue.name in consumers]
    delays = [queue for queue in queues if queue not in work and _ttl(queue)]
    ends = [queue for queue in queues if queue not in work and queue not in delays]
    processes = sorted(set(consumers.values()), reverse=True)
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
