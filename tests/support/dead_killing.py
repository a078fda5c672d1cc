"""A replay or drop that is killed before a chosen operation, in a process forked from this one.

An order is [act, broker, operation, file]. An act such as "replay in shards" is done with shards of few letters.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.broker.dead_letters import ActResult, audit, exports
from app.broker.dead_letters.letters import LetterFilter
from app.broker.publishing import Publisher
from tests.support.dead import dead_sets, journal_in, small_shards
from tests.support.kill_points import before_operations, serve


def run(order: Any) -> int:
    """Do the act of an order; return 0 if it is complete."""
    act, broker, operation, path = order
    file = Path(path)
    act, _, shards = act.partition(" ")
    if shards:
        small_shards()
    _kill_before(operation)
    journal = journal_in(file.with_suffix(".sent"))
    dead = dead_sets(broker, Publisher(broker), file.with_suffix(".audit"), journal=journal).only("post.dead")
    acts: dict[str, Callable[[], ActResult]] = {
        "replay": dead.replay,
        "drop": lambda: dead.drop(LetterFilter(), file),
        "tidy": lambda: dead.tidy(0, file)[1],
    }
    return 0 if acts[act]().complete else 1


def _kill_before(operation: int) -> None:
    """Kill this process before its n-th operation: a method sent, a confirm received, or a write to the export."""
    left = operation

    def count(name: str) -> None:
        nonlocal left
        # A kill before connections and channels are opened or closed leaves what a kill before the next method does.
        if name == "await confirm" or name.startswith(("Connection.", "Channel.")):
            return
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def append_lines(*args: Any, **options: Any) -> None:
        count("export")
        append(*args, **options)

    append = audit.append_lines
    before_operations(count)
    # The exporter has a name of its own for it.
    exports.__dict__["append_lines"] = append_lines


if __name__ == "__main__":
    serve(run)
