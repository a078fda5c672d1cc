"""What the workers of a Celery application do now: Celery's `inspect` over one connection, with bounded waits.

Commands of remote control: https://docs.celeryq.dev/en/stable/userguide/workers.html#inspecting-workers
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from amqp.exceptions import AccessRefused
from kombu.pidbox import Mailbox

from .connection import connected
from .errors import ControlRefused

#: The queue of a worker's remote control is called as the worker, and this; it lasts as long as its connection.
MAILBOX_ENDING: Final = ".celery.pidbox"
#: Seconds of one wait for a reply.
PATIENCE: Final = 1.0


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """What one worker answered: the tasks that it runs, its pool's size and prefetch count, and its queues.

    Of each task there is what Celery's `active` has: `id`, `name`, `args`, `kwargs`, `time_start` and `worker_pid`.
    """

    tasks: list[Mapping[str, Any]]
    pool_size: int | None
    prefetch: int | None
    queues: list[str]


def inspect_workers(url: str, names: Collection[str] = ()) -> dict[str, WorkerReply]:
    """Return the replies of workers by name: of these `names` only, as soon as all have answered, or of all.

    It waits PATIENCE seconds after the last reply for another one. A worker that does not answer is missing. Raises
    BrokerUnreachable, and ControlRefused for an account that may not control workers: no smaller right exists.
    """
    with connected(url) as connection:
        mailbox = Mailbox("celery", type="fanout", connection=connection)
        try:
            tasks = _replies(mailbox, "active", names)
            pools = _replies(mailbox, "stats", tasks) if tasks else {}
            queues = _replies(mailbox, "active_queues", tasks) if tasks else {}
        except AccessRefused as error:
            raise ControlRefused("this account of the broker may not inspect workers") from error
    replies = {}
    for name, running in tasks.items():
        stats, consumed = pools.get(name), queues.get(name)
        measured = stats if isinstance(stats, Mapping) else {}
        pool = measured.get("pool")
        replies[name] = WorkerReply(
            tasks=[each for each in running if isinstance(each, Mapping)] if isinstance(running, list) else [],
            pool_size=pool.get("max-concurrency") if isinstance(pool, Mapping) else None,
            prefetch=measured.get("prefetch_count"),
            queues=sorted(str(each["name"]) for each in consumed) if isinstance(consumed, list) else [],
        )
    return replies


def _replies(mailbox: Any, command: str, names: Collection[str]) -> dict[str, Any]:
    found = mailbox.call(sorted(names) or None, command, timeout=PATIENCE)
    return {name: reply for each in found for name, reply in each.items()}
