"""Services and processes of the demo, which stop when the demo ends, even if it is killed.

`python -m demo.supervisor` starts the private services and the Procfile's processes. It stops them when its standard
input is closed. The demo holds the other end of that pipe, which the kernel closes when the demo is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Self

from app import private_services as services
from app.broker.errors import ApplicationError
from app.errors import DemoFailed
from app.machine import tail, try_lock
from app.processes import procfile
from app.processes.supervisor import KILL_WAIT
from app.storage.open import create_store
from config.settings import ROOT, Settings, get_settings

#: Seconds that stopping may take: first the processes, then RabbitMQ.
STOP_TIMEOUT = KILL_WAIT + 30.0


class Supervisor:
    """Runs the supervisor process during the block. All output goes to the file `log`.

    `module` is the module to run. It must call `main` below, and may pass other processes than the Procfile's.
    """

    def __init__(self, environment: Mapping[str, str], *, log: Path, module: str = "demo.supervisor") -> None:
        self.log = log
        self._module = module
        self._environment = dict(environment)

    def __enter__(self) -> Self:
        # In its own session it does not receive Ctrl-C: the demo does, and then closes the pipe.
        with self.log.open("wb") as output:
            self._child = subprocess.Popen(  # noqa: S603 - The module name is a constant.
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
        raise DemoFailed(f"the processes did not stop within {STOP_TIMEOUT:.0f} s; see their log {self.log}")

    def check(self) -> None:
        """Raise DemoFailed, with the last lines of the log, if the supervisor has ended."""
        code = self._child.poll()
        if code is not None:
            raise DemoFailed(f"the processes ended (exit {code}); {self.last_lines()}")

    def last_lines(self) -> str:
        """Return the log's path and its last lines."""
        return f"their log {self.log} ends with:\n{tail(self.log)}"


@contextmanager
def uninterrupted_stop(supervisor: Supervisor, say: Callable[[str], None]) -> Iterator[Supervisor]:
    """Run the supervisor during the block, and ignore signals while it stops."""
    with supervisor:
        try:
            yield supervisor
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            say("Stopping ...")


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the demo's folder during the block; raises DemoFailed while another demo holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        if not try_lock(lock):
            raise DemoFailed(f"another demo of this checkout is running (it holds {folder / 'lock'})")
        yield


def empty_data_folder(folder: Path) -> Path:
    """Return an empty data folder for this run, after stopping services that the last run left running in it."""
    services.down(Settings(data_dir=folder))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def exit_on_signal(number: int, frame: FrameType | None) -> None:
    """Exit with the status of a signal, as its handler."""
    del frame
    sys.exit(128 + number)


def exit_status(run: Callable[[], int], say: Callable[[str], None]) -> int:
    """Run a demo; return its exit status, 1 after an error that explains itself, or 130 after Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, exit_on_signal)
    try:
        return run()
    except ApplicationError as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("Interrupted; all processes are stopped.")
        return 130


def main(run: Callable[[], int] = procfile.run) -> int:
    """Start the services and `run` the processes until it returns or SIGTERM arrives. Return an exit status."""
    signal.signal(signal.SIGTERM, exit_on_signal)
    # This process keeps a private copy of the pipe; child processes inherit /dev/null as standard input.
    pipe = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def terminate_at_end_of_pipe() -> None:
        while os.read(pipe, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate_at_end_of_pipe, name="parent-watch", daemon=True).start()
    settings = get_settings()
    try:
        services.up(settings)
        create_store(settings.store)
        return run()
    except ApplicationError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        services.down(settings)


if __name__ == "__main__":
    sys.exit(main())
