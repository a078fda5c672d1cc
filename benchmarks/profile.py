"""Count py-spy's stacks of a worker by the purpose of the code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

#: The worker's main process, or one of its pool.
Role = Literal["parent", "pool"]

#: Purposes with less than this share of a role's samples are summed up as `other`.
SMALL = 0.01

_FILE = re.compile(r"\((.+?)(?::\d+)?\)$")

#: Purpose of the code in a file, by the beginning of its path. The first match counts.
_POOL_PURPOSES = (
    ("app/crawl/parse", "parse"),
    ("app/crawl/urls", "parse"),
    ("app/http/", "fetch"),
    ("app/crawl/frontier/single_flight", "single flight"),
    ("app/crawl/frontier/host_limits", "rate limiter, robots"),
    ("app/crawl/frontier/robots_cache", "rate limiter, robots"),
    ("app/crawl/frontier", "frontier"),
    ("app/crawl/robots", "rate limiter, robots"),
    ("app/timers", "timer"),
    ("app/storage", "store"),
    ("app/broker/publishing", "publish"),
)

#: Purpose of a stack of the parent, by a word anywhere in it.
_PARENT_PURPOSES = (
    ("celery/events/", "task events"),
    ("app/messages/envelopes", "envelope to task"),
    ("app/broker/delivery", "envelope to task"),
    ("app/broker/publishing", "publish"),
    ("basic_ack", "acknowledge"),
    ("_write_job", "pipe to and from the pool"),
    ("_flush_outqueue", "pipe to and from the pool"),
    ("handle_result_event", "pipe to and from the pool"),
    ("on_message (app/messages/consumer", "Celery's message handling"),
    ("drain_events", "read from the broker"),
    ("poll (kombu/utils/eventio", "wait for events (epoll)"),
)


@dataclass(frozen=True, slots=True)
class Share:
    """The share, 0 to 1, of a role's samples that served one purpose."""

    role: Role
    purpose: str
    share: float


def summary(stacks: Path) -> list[Share]:
    """Count the stacks of a file in py-spy's `raw` format by role and purpose, the most frequent first."""
    counts: Counter[tuple[Role, str]] = Counter()
    with stacks.open() as lines:
        for line in lines:
            stack, _, count = line.rpartition(" ")
            role, frames = _role(stack.split(";"))
            counts[role, purpose(role, frames)] += int(count)
    return _shares(counts)


def _shares(counts: Counter[tuple[Role, str]]) -> list[Share]:
    totals: Counter[Role] = Counter()
    for (role, _), count in counts.items():
        totals[role] += count
    large: Counter[tuple[Role, str]] = Counter()
    for (role, purpose), count in counts.items():
        large[role, purpose if count >= SMALL * totals[role] else "other"] += count
    return [Share(role, purpose, count / totals[role]) for (role, purpose), count in large.most_common()]


def _role(frames: Sequence[str]) -> tuple[Role, Sequence[str]]:
    """Return the role of a stack and its frames. py-spy puts the process and its ancestors first."""
    processes = sum(frame.startswith("process ") for frame in frames)
    return ("pool" if processes > 1 else "parent"), frames[processes:]


def purpose(role: Role, frames: Sequence[str]) -> str:
    """Return the purpose of a stack, whose frames go from the program's entry to the innermost call."""
    if role == "parent":
        text = ";".join(frames)
        return next((purpose for word, purpose in _PARENT_PURPOSES if word in text), "event loop")
    return _of_pool([found[1] for frame in reversed(frames) if (found := _FILE.search(frame))])


def _of_pool(files: Iterable[str]) -> str:
    """Return the purpose of the innermost file of this project, marking calls that went to Redis."""
    through_redis = False
    for file in files:
        through_redis = through_redis or file.startswith("redis/")
        if file.startswith(("app/", "tasks/")):
            purpose = next(
                (purpose for beginning, purpose in _POOL_PURPOSES if file.startswith(beginning)), "task body"
            )
            return f"Redis: {purpose}" if through_redis else purpose
    return "Celery's pool process"
