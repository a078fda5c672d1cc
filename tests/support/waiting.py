"""Wait for a condition instead of sleeping for a fixed time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], description: str, *, seconds: float = 30.0, every: float = 0.05) -> T:
    """Return the first true value of the condition; raises AssertionError with `description` after `seconds`.

    `every` is the longest time between two evaluations: the first ones come sooner.
    """
    deadline = time.monotonic() + seconds
    pause, length = threading.Event(), 0.01
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {description} (last value: {value!r})")
        pause.wait(min(length, every))
        length *= 1.5
