"""Our application with a few tasks that fail in every way there is: `celery -A tests.support.failing worker`."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.broker.worker.task import Task
from app.celery import app
from app.errors import InvalidUrl

__all__ = ["app"]

# What is tested here is the end of messages, not what they ask for.
app.conf.imports = ()


#: What registers a task; typed, since Celery's own decorator is not.
task: Callable[..., Callable[[Callable[..., None]], Any]] = functools.partial(app.task, base=Task, bind=True)


def _note(task: Any, journal: str) -> None:
    """Append a line for this run to the journal."""
    with Path(journal).open("a") as file:
        file.write(f"{task.request.id} {os.getpid()}\n")


@task(name="failing.fail")
def fail(self: Any, journal: str) -> None:
    """Raise KeyError."""
    _note(self, journal)
    raise KeyError("boom")


@task(name="failing.permanent")
def permanent(self: Any, journal: str) -> None:
    """Raise an error that no retry can fix."""
    _note(self, journal)
    raise InvalidUrl("ftp://x: not http")


@task(name="failing.leave")
def leave(self: Any, journal: str) -> None:
    """Exit, as a library may do that takes itself for a program."""
    _note(self, journal)
    sys.exit(3)
