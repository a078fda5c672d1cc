"""A limit of CPU time for calls into C, which no exception interrupts: the process ends, and the next run skips."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from billiard import current_process

from app.broker.headers import LAST_ERROR

#: Seconds of CPU for a page. One of 5 MB takes about one.
SECONDS = 4.0


@contextmanager
def cpu_limit(seconds: float = SECONDS) -> Iterator[None]:
    """End this process by SIGVTALRM if the block takes more CPU time. Only a process of a worker's pool is ended."""
    if current_process().name == "MainProcess" or threading.current_thread() is not threading.main_thread():
        yield
        return
    # With a handler in Python, the signal would wait for the end of the call.
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def limit_was_exceeded(headers: Mapping[str, Any]) -> bool:
    """Return whether the limit ended the last run of the message with these headers: Celery names the signal."""
    return "SIGVTALRM" in str(headers.get(LAST_ERROR, ""))
