"""A shop that is not ours: a Celery application that takes app/broker alone. `celery -A tests.support.shop worker`."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import Celery, signals
from celery.exceptions import Reject, Retry

from app.broker.policies.base import RetryPolicies
from app.broker.policies.delay_queues import DelayQueues
from app.broker.policies.drop import DropAll
from app.broker.policies.fixed_ttl import FixedTtl
from app.broker.policies.x_death import XDeath
from app.broker.worker.install import install

# The broker is that of CELERY_BROKER_URL, which Celery itself reads.

mail = DelayQueues("shop", timeout_ms=300, retry_max=2)
policies = RetryPolicies(
    {
        "mail": mail,
        "mail.classic": DelayQueues("old", timeout_ms=300, retry_max=2, queue_type="classic"),
        "labels.print": FixedTtl("labels", {"labels.print": "print"}, ttl_ms=400, retry_max=2),
        "orders": XDeath("orders", retry_after_ms=500, retry_max=2),
        "orders.classic": XDeath("orders.classic", retry_after_ms=500, retry_max=2, queue_type="classic"),
        "topics": XDeath("topics", retry_after_ms=500, retry_max=2, exchange_type="topic", separator="-"),
        "rounds": XDeath("rounds", retry_after_ms=100, retry_max=7),
        "rounds.classic": XDeath("rounds.classic", retry_after_ms=100, retry_max=7, queue_type="classic"),
        "clock": DropAll(),
        # What fails here waits for so long that a broker can be killed meanwhile.
        "wait.mail": DelayQueues("wait", timeout_ms=8_000, retry_max=1),
        "wait.mail.classic": DelayQueues("wait.old", timeout_ms=8_000, retry_max=1, queue_type="classic"),
        "wait.labels": FixedTtl("wait.labels", {"wait.labels": "print"}, ttl_ms=8_000, retry_max=1),
        "wait.orders": XDeath("wait.orders", retry_after_ms=8_000, retry_max=1),
        "wait.orders.classic": XDeath("wait.orders.classic", retry_after_ms=8_000, retry_max=1, queue_type="classic"),
        "quick.mail": DelayQueues("quick", timeout_ms=50, retry_max=2),
        "deadly": DelayQueues("deadly", delivery_limit=3),
        "deadly.labels": FixedTtl(
            "deadly.labels", {"deadly.labels": "print"}, delivery_limit=3, postpone_type="classic"
        ),
    },
    default=mail,
)
app = Celery("shop")
app.conf.task_queues = policies.work_queues()
app.conf.task_default_queue = "mail"
install(app, policies, publish_timeout=2.0)

#: What registers a task; typed, since Celery's own decorator is not.
task: Callable[..., Callable[[Callable[..., Any]], Any]] = app.task


class OutOfStock(Exception):
    """Raised for an error that no retry can fix."""

    permanent = True


def note(journal: str, line: str = "run") -> int:
    """Append a line with the time to a journal; return how many such lines there were before."""
    path = Path(journal)
    before = path.read_text().split().count(line) if path.exists() else 0
    with path.open("a") as file:
        file.write(f"{line} {time.time()}\n")
    return before


@task()
def fail(journal: str, times: int = 1_000) -> str:
    """Raise KeyError the first `times` times."""
    if note(journal) < times:
        raise KeyError("no such shelf")
    return "done"


@task()
def out_of_stock(journal: str) -> None:
    """Raise an error that is permanent."""
    note(journal)
    raise OutOfStock("sold out")


@task(soft_time_limit=0.3, time_limit=30)
def linger(journal: str) -> None:
    """Hang until the soft time limit."""
    note(journal)
    threading.Event().wait(60)


@task(time_limit=0.3)
def hang(journal: str) -> None:
    """Hang until the hard time limit."""
    note(journal)
    threading.Event().wait(60)


@task()
def suicide(journal: str) -> None:
    """Die of SIGKILL, as by the OOM killer."""
    note(journal)
    os.kill(os.getpid(), signal.SIGKILL)


@task()
def leave(journal: str) -> None:
    """Exit, as a library may do that takes itself for a program."""
    note(journal)
    sys.exit(3)


@task()
def murder(journal: str) -> None:
    """Kill the whole worker, as the OOM killer does in a container."""
    note(journal)
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@task()
def memory(journal: str) -> None:
    """Ask for more memory than the process may have."""
    note(journal)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 31, hard))
    try:
        bytearray(1 << 32)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@task(bind=True, max_retries=9)
def by_retry(self: Any, journal: str) -> None:
    """Retry as tasks were written before."""
    note(journal)
    try:
        dict[str, str]()["shelf"]
    except KeyError as error:
        raise self.retry(exc=error, countdown=60) from error


@task(bind=True)
def by_bare_retry(self: Any, journal: str) -> None:
    """Ask to be run again though nothing went wrong."""
    note(journal)
    raise self.retry(countdown=60)


@task(autoretry_for=(KeyError,), retry_backoff=60, max_retries=9)
def by_autoretry(journal: str) -> None:
    """Have Celery retry."""
    note(journal)
    raise KeyError("no such shelf")


@task(bind=True)
def by_retry_with_more(self: Any, journal: str) -> None:
    """Ask to be run again with other arguments."""
    note(journal)
    raise self.retry(args=(journal, 2))


@task()
def by_reject(journal: str) -> None:
    """Have the broker dead-letter the message, as tasks were written that knew of a dead-letter exchange."""
    note(journal)
    raise Reject("no such shelf", requeue=False)


@task()
def by_raised_retry(journal: str) -> None:
    """Raise what Celery's own `retry` raises, without having it send a copy."""
    note(journal)
    raise Retry("no such shelf")


@task()
def succeed(journal: str) -> str:
    """Do it."""
    note(journal)
    note(journal, "done")
    return "done"


@task(shares_process=True)
def shared(journal: str, outcome: str = "done") -> str:
    """Do what is written, beside other messages in the same process."""
    note(journal)
    if outcome == "exit":
        os._exit(1)
    if outcome == "hang":
        threading.Event().wait(60)
    if outcome == "memory":
        memory.run(f"{journal}.memory")
    while outcome == "wait" and not Path(f"{journal}.release").exists():
        threading.Event().wait(0.02)
    threading.Event().wait(0.3)
    note(journal, "done")
    return "done"


@task()
def hold(journal: str) -> None:
    """Keep a process busy until the journal is there."""
    while not Path(journal).exists():
        threading.Event().wait(0.05)


@signals.task_failure.connect  # type: ignore[untyped-decorator]
def _noted(kwargs: Any = None, exception: Any = None, **_: Any) -> None:
    """Note a death, as an alarm would."""
    if kwargs and "journal" in kwargs:
        note(kwargs["journal"], f"task_failure:{str(exception).split(':')[0]}")
