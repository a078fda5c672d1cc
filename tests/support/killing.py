"""Workers that are killed before a chosen operation on the broker, forked from one process: `python -m` this module.

It reads a JSON line for each worker to run (see `Order`), and answers with a line when that one has ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from amqp import spec
from amqp.abstract_channel import AbstractChannel
from celery import Celery

from app.broker.errors import Postpone
from app.broker.policies.delay_queues import DelayQueues
from app.broker.policies.fixed_ttl import FixedTtl
from app.broker.policies.registry import RetryPolicies
from app.broker.policies.x_death import XDeath
from app.broker.worker.failures import FailureHandler
from app.broker.worker.install import install

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


def main() -> None:
    """Serve orders until there are no more."""
    for line in sys.stdin:
        order = Order(**json.loads(line))
        if (child := os.fork()) == 0:
            _in_child(order)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"killed": os.WIFSIGNALED(status)}), flush=True)


def _in_child(order: Order) -> None:
    os.setsid()
    out = os.open(f"{order.report}.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(out, 1)
    os.dup2(out, 2)
    try:
        _Killer(order).lie_in_wait()
        options = {"without_gossip": True, "without_mingle": True, "without_heartbeat": True, "concurrency": 1}
        app.Worker(queues=[order.queue], pool=order.pool, loglevel="INFO", **options).start()
    except BaseException:  # noqa: BLE001 - A child must never come back into its parent's loop.
        traceback.print_exc()
    finally:
        os._exit(0)


class _Killer:
    """Counts operations on the broker from the first failure on, and ends the process group before one of them."""

    def __init__(self, order: Order) -> None:
        self._left = order.at
        self._armed = False
        self._report = os.open(order.report, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)

    def lie_in_wait(self) -> None:
        """Wrap what sends, what receives a confirm, and where a failure is noticed."""
        send, receive = AbstractChannel.send_method, AbstractChannel.dispatch_method

        def send_method(channel: Any, sig: Any, *args: Any, **kwargs: Any) -> Any:
            self._before(_NAMES[tuple(sig)])
            sent = send(channel, sig, *args, **kwargs)
            if sig == spec.Basic.Publish:
                self._before("await confirm")
            if sig in (spec.Basic.Ack, spec.Basic.Reject):
                self._end(channel)
            return sent

        def dispatch_method(channel: Any, sig: Any, *args: Any, **kwargs: Any) -> Any:
            if sig == spec.Basic.Ack:
                self._before("confirm")
            return receive(channel, sig, *args, **kwargs)

        AbstractChannel.send_method = send_method
        AbstractChannel.dispatch_method = dispatch_method
        for name in ("fail", "postpone", "may_run"):
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


def _names() -> dict[tuple[int, int], str]:
    """Return the methods of AMQP by their numbers."""
    kinds = [getattr(spec, name) for name in ("Connection", "Channel", "Exchange", "Queue", "Basic", "Confirm", "Tx")]
    return {
        sig: f"{kind.__name__}.{name}" for kind in kinds for name, sig in vars(kind).items() if isinstance(sig, tuple)
    }


_NAMES = _names()


if __name__ == "__main__":
    main()
