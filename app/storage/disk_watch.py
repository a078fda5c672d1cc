"""Notices that the disk of a folder store hangs: the thread that uses it waits in the system, and cannot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from app.storage.folder import FolderStore

#: Seconds after which one use of the disk counts as hung. A large pack may take half a minute to be flushed.
HANG_SECONDS: Final = 60.0
#: Seconds between two checks.
CHECK_INTERVAL: Final = 5.0


def watch_disk(
    store: FolderStore,
    on_hang: Callable[[float], None],
    *,
    hang_seconds: float = HANG_SECONDS,
    interval: float = CHECK_INTERVAL,
) -> Callable[[], None]:
    """Call `on_hang` with the seconds at each check at which the disk hangs, in a thread; return what ends it."""
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(interval):
            since = store.busy_since
            seconds = time.monotonic() - since
            if since and seconds > hang_seconds:
                on_hang(seconds)

    threading.Thread(target=watch, name="disk watch", daemon=True).start()
    return stopped.set
