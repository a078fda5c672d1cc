"""What stands around the story of a demo: a folder that is its own, and an end that nothing interrupts."""

from __future__ import annotations

import fcntl
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from app import services
from app.errors import DemoFailed
from config.settings import Settings
from demo.supervisor import Supervisor


@contextmanager
def quietly_stopped(supervisor: Supervisor, say: Callable[[str], None]) -> Iterator[Supervisor]:
    """Run the supervisor for the block; once it is being stopped, signals no longer interrupt that."""
    with supervisor:
        try:
            yield supervisor
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            say("Stopping ...")


def fresh(home: Path) -> Path:
    """Return an empty folder for everything that this run keeps; what ran in the last one's is stopped."""
    services.down(Settings(data_dir=home))
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    return home


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the demo's folder; raises DemoFailed while another demo does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DemoFailed(f"another demo of this checkout is running (it holds {folder / 'lock'})") from error
        yield


def leave(number: int, frame: FrameType | None) -> None:
    """End as a signal asks, from its handler."""
    del frame
    sys.exit(128 + number)
