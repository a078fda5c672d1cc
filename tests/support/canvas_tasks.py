"""Tasks of canvases, each of which fails in its first run: of the application `tests.support.canvas_app`."""

from __future__ import annotations

import json
import threading
from typing import Any

from celery import group
from celery.exceptions import SoftTimeLimitExceeded

from tests.support.canvas_app import add, fail_first, note, task


@task(bind=True)
def late(self: Any, value: Any) -> Any:
    """Return the value in the second run."""
    fail_first(self)
    return value


@task(bind=True)
def late_add(self: Any, *numbers: Any) -> int:
    """Return the sum in the second run."""
    fail_first(self)
    return int(add(*numbers))


@task(bind=True)
def late_note(self: Any, journal: str, line: str) -> None:
    """Note the line in the second run."""
    fail_first(self)
    note(journal, line)


@task(bind=True)
def late_add_to_all(self: Any, numbers: list[Any], value: Any) -> None:
    """Let a group add the value to each number."""
    fail_first(self)
    raise self.replace(group(late_plus.s(number, value) for number in numbers))


@task(bind=True)
def late_plus(self: Any, left: Any, right: Any) -> Any:
    """Return the sum of two numbers, or of two lists, in the second run."""
    fail_first(self)
    return left + right


@task(bind=True)
def late_guarded(self: Any, value: int) -> int:
    """Return the value in the second run, in which the task catches its soft time limit."""
    fail_first(self)
    try:
        threading.Event().wait(30)
    except SoftTimeLimitExceeded:
        return value
    return -1


@task(bind=True)
def late_priority(self: Any, *_before: Any) -> int:
    """Return the priority of the message in the second run."""
    fail_first(self)
    return int(self.request.delivery_info["priority"])


@task(bind=True)
def late_more(self: Any, numbers: list[int], value: int) -> int:
    """Add members to the chord in the second run."""
    fail_first(self)
    for number in numbers:
        self.add_to_chord(late_add.s(number, value))
    return 0


@task(bind=True)
def called_back_by_id(self: Any, ident: str, *, journal: str) -> None:
    """Note the call of an error's link in its second run: Celery sends it as a task, since it takes an id only."""
    fail_first(self)
    note(journal, "link_error")
    note(f"{journal}.ids", ident)


@task()
def broken_link(_request: Any, _error: Any, _trace: Any) -> None:
    """Raise, called as the link of an error."""
    raise OSError("no such link")


@task(bind=True)
def note_stamps(self: Any, journal: str, times: int = 1) -> None:
    """Note the stamps of each run. Raise KeyError the first `times` times."""
    if note(f"{journal}.stamps", json.dumps(self.request.stamps)) < times:
        raise KeyError("no such shelf")
