"""Services and processes of the demo, which end with it, however it ends.

`python -m demo.supervisor` starts the private services and the Procfile's processes, and stops both when its
standard input is closed. The demo holds the other end: killed, it closes it as well.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Self

from app import services
from app.broker.errors import ApplicationError
from app.errors import DemoFailed
from app.services import procfile
from app.services.service import tail
from config.settings import ROOT, get_settings

#: Seconds that stopping may take: the processes' own patience, then RabbitMQ's.
STOP_TIMEOUT = procfile.KILL_WAIT + 30.0


class Supervisor:
    """Runs the supervisor for the block. Its output, and that of all its processes, goes to the file `log`.

    `module` is what is run: one that calls `main` below, with other processes than the Procfile's.
    """

    def __init__(self, environment: Mapping[str, str], *, log: Path, module: str = "demo.supervisor") -> None:
        self.log = log
        self._module = module
        self._environment = dict(environment)

    def __enter__(self) -> Self:
        # A session of its own: Ctrl-C on the terminal is for the demo, which then closes the pipe.
        with self.log.open("wb") as output:
            self._child = subprocess.Popen(  # noqa: S603 - the module is named by ourselves.
                [sys.executable, "-m", self._module],
                cwd=ROOT,
                env={**os.environ, **self._environment},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self._child.stdin is not None:
            self._child.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(STOP_TIMEOUT)
            return
        self._child.kill()
        self._child.wait()
        raise DemoFailed(f"the processes did not stop within {STOP_TIMEOUT:.0f} s; their log is {self.log}")

    def check(self) -> None:
        """Raise DemoFailed, with the last lines of the log, if a process has ended."""
        code = self._child.poll()
        if code is not None:
            raise DemoFailed(f"the processes ended (exit {code}); {self.last_lines()}")

    def last_lines(self) -> str:
        """Return the log's path and its last lines."""
        return f"their log {self.log} ends with:\n{tail(self.log)}"


def main(run: Callable[[], int] = procfile.run) -> int:
    """Start the services and `run` the processes until it returns or we are told to end; return an exit status."""
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with, args=(_detached_stdin(),), name="lifeline", daemon=True).start()
    settings = get_settings()
    try:
        services.up(settings)
        return run()
    except ApplicationError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        services.down(settings)


def _detached_stdin() -> int:
    """Keep standard input for ourselves: children get none."""
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return lifeline


def _end_with(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
