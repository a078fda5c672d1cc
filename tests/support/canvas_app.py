"""An application that uses all of Celery: results, canvas, hooks and signals. `celery -A tests.support.canvas_app`."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from celery import Celery, signals
from celery.exceptions import Ignore, Reject

from app.broker.errors import Postpone
from app.broker.policies.base import RetryPolicies
from app.broker.policies.delay_queues import DelayQueues
from app.broker.policies.fixed_ttl import FixedTtl
from app.broker.worker.install import install

# The broker and the result backend are those of CELERY_BROKER_URL and CELERY_RESULT_BACKEND, which Celery itself reads.

policies = RetryPolicies(
    {
        "work": DelayQueues("work", timeout_ms=300, retry_max=2),
        "picky": FixedTtl("picky", {"picky": "picky"}, ttl_ms=300, retry_max=2, fatal=frozenset({"exception"})),
        "watched": DelayQueues("watched", timeout_ms=300, retry_max=2),
        "slow": DelayQueues("slow", timeout_ms=600_000, retry_max=1),
    },
    default=DelayQueues("work", timeout_ms=300, retry_max=2),
)
app = Celery("canvas", set_as_current=False)
app.conf.task_queues = policies.work_queues()
app.conf.task_default_queue = "work"
app.conf.accept_content = ["json", "yaml"]
app.conf.result_extended = True
app.conf.include = ["tests.support.canvas_tasks"]
install(app, policies, publish_timeout=5.0)


def connect(broker: str, backend: str) -> None:
    """Let this process use other services from now on, also where it has connections of an earlier test module."""
    app.conf.update(broker_read_url=broker, broker_write_url=broker, result_backend=backend)
    app.amqp.producers = None
    app.close()


class OutOfStock(Exception):
    """Raised for an error that no retry can fix."""

    permanent = True


class Unpicklable(Exception):
    """Raised by a library whose exceptions cannot be rebuilt from their arguments."""

    def __init__(self, shelf: str, row: int) -> None:
        super().__init__(f"{shelf}-{row}")


def has_journal(args: Sequence[Any]) -> bool:
    """Return whether the first argument is the path of a journal: some tasks of canvases have others."""
    return bool(args) and isinstance(args[0], str) and Path(args[0]).is_absolute()


def note(journal: str, line: str) -> int:
    """Append a line to a journal; return how many such lines there were before."""
    path = Path(journal)
    before = path.read_text().splitlines().count(line) if path.exists() else 0
    with path.open("a") as file:
        file.write(f"{line}\n")
    return before


class Hooked(app.Task):  # type: ignore[misc, name-defined]
    """A task that notes each hook that Celery calls."""

    abstract = True

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Note the failure."""
        note(args[0], f"on_failure {type(exc).__name__}")

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Note the retry."""
        note(args[0], f"on_retry {type(exc).__name__}")

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """Note the success."""
        note(args[0], "on_success")

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Note the state."""
        note(args[0], f"after_return {status}")


#: What registers a task; typed, since Celery's own decorator is not.
task: Callable[..., Callable[[Callable[..., Any]], Any]] = app.task


@task(base=Hooked)
def fail(journal: str, times: int = 1_000, value: int = 0) -> int:
    """Raise KeyError the first `times` times, then return the value."""
    if note(journal, "run") < times:
        raise KeyError("no such shelf")
    return value


@task(base=Hooked)
def refuse(journal: str) -> None:
    """Raise an error that is permanent, until a file says that there is stock."""
    note(journal, "run")
    if not Path(f"{journal}.stock").exists():
        raise OutOfStock("sold out")


@task(base=Hooked)
def refuse_oddly(journal: str) -> None:
    """Raise an error that cannot be pickled."""
    note(journal, "run")
    raise Unpicklable("shelf", 3)


@task(base=Hooked, time_limit=1)
def hang(journal: str) -> None:
    """Run into the hard time limit."""
    note(journal, "run")
    threading.Event().wait(60)


def note_delivery(task: Any, journal: str) -> bool:
    """Note the run, and whether its message was delivered before; return whether a file says that there is stock."""
    note(journal, "run")
    note(journal, f"redelivered {task.request.delivery_info.get('redelivered')}")
    return Path(f"{journal}.stock").exists()


@task(bind=True)
def wait_for(self: Any, journal: str) -> None:
    """Postpone until there is stock."""
    if not note_delivery(self, journal):
        raise Postpone(0.3, "nothing is there yet")


@task(bind=True)
def requeue(self: Any, journal: str) -> None:
    """Ask for the message back until there is stock."""
    if not note_delivery(self, journal):
        raise Reject("nothing is there yet", requeue=True)


@task(ignore_result=True)
def forget(journal: str) -> None:
    """Fail without a result."""
    note(journal, "run")
    raise KeyError("no such shelf")


@task(ignore_result=True, store_errors_even_if_ignored=True)
def forget_success(journal: str) -> None:
    """Fail without a result, but with a stored error."""
    note(journal, "run")
    raise KeyError("no such shelf")


@task(base=Hooked)
def ignore(journal: str) -> None:
    """End without a result."""
    note(journal, "run")
    raise Ignore


class Hooking(app.Task):  # type: ignore[misc, name-defined]
    """A task whose hooks raise."""

    abstract = True

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """Raise always."""
        note(args[0], "on_success")
        raise LookupError("no such hook")

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Raise always."""
        note(args[0], "on_failure")
        raise LookupError("no such hook")


@task(base=Hooking)
def hooked_badly(journal: str, fails: bool) -> str:
    """Fail, or succeed; then a hook raises."""
    note(journal, "run")
    if fails:
        raise KeyError("no such shelf")
    return "done"


@task(base=Hooked)
def unstorable(journal: str) -> object:
    """Return what no result can be."""
    note(journal, "run")
    return object()


@task(rate_limit="5/s")
def limited(journal: str, number: int) -> int:
    """Fail the first time, and return the number."""
    note(journal, f"at {time.time()}")
    if note(journal, "run") < 1:
        raise KeyError("no such shelf")
    return number


@task(base=Hooked)
def leave(journal: str) -> None:
    """Exit, as a library may do that takes itself for a program."""
    note(journal, "run")
    sys.exit(3)


@task()
def add(*numbers: Any) -> int:
    """Return the sum of numbers, or of lists of them."""
    return sum(sum(each) if isinstance(each, list) else each for each in numbers)


def fail_first(task: Any) -> None:
    """Raise KeyError in the first run of a message."""
    if not task.request.retries:
        raise KeyError("no such shelf")


class Watched(app.Task):  # type: ignore[misc, name-defined]
    """A task whose signals are noted."""

    abstract = True

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Note the call."""
        note(args[0], "before_start")


@task(bind=True, base=Watched, track_started=True)
def describe(self: Any, journal: str, *_args: Any, **_kwargs: Any) -> None:
    """Note what the request says, and report progress. Fail in the first run."""
    note(journal, "run")
    note(f"{journal}.requests", json.dumps(vars(self.request), default=str))
    self.update_state(state="PROGRESS")
    fail_first(self)


@task(throws=(KeyError,))
def expected(journal: str) -> None:
    """Raise an error that is expected."""
    note(journal, "run")
    raise KeyError("no such shelf")


@task()
def called_back(request: Any, error: Any, _trace: Any, *, journal: str) -> None:
    """Note the call of an error's link: Celery calls it in the process of the run, with the request."""
    note(journal, f"link_error {type(error).__name__}")
    note(f"{journal}.ids", request.id)


@signals.task_failure.connect  # type: ignore[untyped-decorator]
def _note_failure(args: Any = None, exception: Any = None, einfo: Any = None, **_: Any) -> None:
    """Note what Sentry and OpenTelemetry listen to."""
    if has_journal(args):
        note(args[0], f"task_failure {type(exception).__name__} {einfo is not None}")


@signals.task_retry.connect  # type: ignore[untyped-decorator]
def _note_retry(request: Any = None, einfo: Any = None, **_: Any) -> None:
    """Note what Sentry and OpenTelemetry listen to."""
    if has_journal(request.args):
        note(request.args[0], f"task_retry {einfo is not None}")


@signals.task_prerun.connect(sender=describe)  # type: ignore[untyped-decorator]
def _note_prerun(args: Any, **_: Any) -> None:
    note(args[0], "task_prerun")


@signals.task_postrun.connect(sender=describe)  # type: ignore[untyped-decorator]
def _note_postrun(args: Any, state: Any, **_: Any) -> None:
    note(args[0], f"task_postrun {state}")


@signals.task_success.connect(sender=describe)  # type: ignore[untyped-decorator]
def _note_success(sender: Any, **_: Any) -> None:
    note(sender.request.args[0], "task_success")


@signals.task_received.connect  # type: ignore[untyped-decorator]
def _note_received(request: Any, **_: Any) -> None:
    if request.type == describe.name:
        note(request.args[0], "task_received")


@signals.task_revoked.connect(sender=wait_for)  # type: ignore[untyped-decorator]
def _note_revoked(request: Any, expired: bool, **_: Any) -> None:
    note(request.args[0], f"task_revoked {expired}")


@signals.task_unknown.connect  # type: ignore[untyped-decorator]
def _note_unknown(name: str, message: Any, **_: Any) -> None:
    note(message.payload[0][0], f"task_unknown {name}")


@signals.task_rejected.connect  # type: ignore[untyped-decorator]
def _note_rejected(message: Any, **_: Any) -> None:
    note(message.payload[0], "task_rejected")
