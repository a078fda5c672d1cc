"""Our application with a few tasks that fail in every way there is: `celery -A tests.support.failing worker`."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.broker.errors import Postpone
from app.broker.worker.task import Task
from app.celery import app
from app.errors import InvalidUrl

__all__ = ["app"]

# What is tested here is the end of messages, not what they ask for.
app.conf.imports = ()


#: What registers a task; typed, since Celery's own decorator is not.
task: Callable[..., Callable[[Callable[..., None]], Any]] = functools.partial(app.task, base=Task, bind=True)


def _note(task: Any, journal: str) -> int:
    """Append a line for this run to the journal; return how many runs there were before it."""
    path = Path(journal)
    before = len(path.read_text().splitlines()) if path.exists() else 0
    with path.open("a") as file:
        file.write(f"{task.request.id} {os.getpid()}\n")
    return before


@task(name="failing.fail")
def fail(self: Any, journal: str, times: int = 1_000) -> None:
    """Raise KeyError the first `times` times."""
    if _note(self, journal) < times:
        raise KeyError("boom")


@task(name="failing.permanent")
def permanent(self: Any, journal: str) -> None:
    """Raise an error that no retry can fix."""
    _note(self, journal)
    raise InvalidUrl("ftp://x: not http")


@task(name="failing.postpone")
def postpone(self: Any, journal: str, times: int) -> None:
    """Postpone the first `times` times."""
    if _note(self, journal) < times:
        raise Postpone(0.3, "not yet")


@task(name="failing.never")
def never(self: Any, journal: str) -> None:
    """Postpone forever."""
    _note(self, journal)
    raise Postpone(float("inf"), "never", exactly=True)


@task(name="failing.leave")
def leave(self: Any, journal: str) -> None:
    """Exit, as a library may do that takes itself for a program."""
    _note(self, journal)
    sys.exit(3)


@task(name="failing.suicide")
def suicide(self: Any, journal: str, times: int = 1_000) -> None:
    """Kill the own process the first `times` times, as the OOM killer would."""
    if _note(self, journal) < times:
        os.kill(os.getpid(), signal.SIGKILL)


@task(name="failing.memory")
def memory(self: Any, journal: str) -> None:
    """Ask for more memory than there is."""
    _note(self, journal)
    bytearray(2**62)


@task(name="failing.hang", time_limit=1)
def hang(self: Any, journal: str) -> None:
    """Hang until the hard time limit."""
    _note(self, journal)
    threading.Event().wait(60)


@task(name="failing.linger", soft_time_limit=1, time_limit=30)
def linger(self: Any, journal: str) -> None:
    """Hang until the soft time limit."""
    _note(self, journal)
    threading.Event().wait(60)


@task(name="failing.hold", time_limit=60)
def hold(self: Any, journal: str, flag: str) -> None:
    """Wait until a file is there."""
    _note(self, journal)
    while not Path(flag).exists():
        threading.Event().wait(0.05)
