"""Workers that are killed before a chosen operation on the broker, forked from one process: `python -m` this module.

It reads a JSON line for each worker to run (see `Order`), and answers with a line when that one has ended.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery import Celery

from app.broker.errors import Postpone
from app.broker.policies.base import RetryPolicies
from app.broker.policies.delay_queues import DelayQueues
from app.broker.policies.fixed_ttl import FixedTtl
from app.broker.policies.x_death import XDeath
from app.broker.worker.failures import FailureHandler
from app.broker.worker.install import install
from tests.support.kill_points import before_operations, serve

#: What waits, waits for longer than a test: nothing moves while it is counted.
MINUTE_MS = 60_000

mail = DelayQueues("slow", timeout_ms=MINUTE_MS, retry_max=1)
policies = RetryPolicies(
    {
        "slow.mail": mail,
        "slow.labels.print": FixedTtl("slow.labels", {"slow.labels.print": "print"}, ttl_ms=MINUTE_MS, retry_max=1),
        "slow.orders": XDeath("slow.orders", retry_after_ms=MINUTE_MS, retry_max=1),
        "fragile": XDeath("fragile", retry_after_ms=100, retry_max=1, delivery_limit=2),
    },
    default=mail,
)
app = Celery("killed")
app.conf.task_queues = policies.work_queues()
app.conf.task_default_queue = "slow.mail"
install(app, policies, publish_timeout=5.0)

task: Callable[..., Callable[[Callable[..., Any]], Any]] = app.task


class HopelessError(Exception):
    """Raised for an error that no retry can fix."""

    permanent = True


@task(name="killing.retry")
def _retry() -> None:
    raise KeyError("no such shelf")


@task(name="killing.dead")
def _dead() -> None:
    raise HopelessError("sold out")


@task(name="killing.postpone")
def _postpone() -> None:
    raise Postpone(64.0, "not yet")


@task(name="killing.fell_worker")
def _fell_worker(journal: str) -> None:
    with open(journal, "a") as file:  # noqa: PTH123 - Flushed before what comes next.
        file.write("run\n")
    os.killpg(0, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Order:
    """Run a worker on a queue; kill it before its operation `at` after the first failure, counted from 1.

    Its operations are written to the file `report`, a line each; the last one is that before which it was killed.
    """

    queue: str
    at: int
    report: str
    pool: str = "solo"


def run(order: dict[str, Any]) -> int:
    """Run the worker of an `Order` in a session of its own."""
    given = Order(**order)
    os.setsid()
    out = os.open(f"{given.report}.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(out, 1)
    os.dup2(out, 2)
    _Killer(given).lie_in_wait()
    options = {"without_gossip": True, "without_mingle": True, "without_heartbeat": True, "concurrency": 1}
    app.Worker(queues=[given.queue], pool=given.pool, loglevel="INFO", **options).start()
    return 0


class _Killer:
    """Counts operations on the broker from the first failure on, and ends the process group before one of them."""

    def __init__(self, order: Order) -> None:
        self._left = order.at
        self._armed = False
        self._report = os.open(order.report, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)

    def lie_in_wait(self) -> None:
        """Wrap what sends, what receives a confirm, and where a failure is noticed."""
        before_operations(self._before, settled=self._end)
        for name in ("fail", "postpone", "end_at_delivery_limit"):
            setattr(FailureHandler, name, self._arming(getattr(FailureHandler, name)))

    def _arming(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def armed(*args: Any, **kwargs: Any) -> Any:
            self._armed = True
            return act(*args, **kwargs)

        return armed

    def _end(self, channel: Any) -> None:
        """End the process, once the broker's answer to a later call says that it has seen the acknowledgement."""
        if self._armed:
            self._armed = False
            channel.basic_qos(0, 1, False)
            os._exit(0)

    def _before(self, operation: str) -> None:
        if not self._armed:
            return
        os.write(self._report, f"{operation}\n".encode())
        self._left -= 1
        if self._left == 0:
            os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    serve(run)
