"""Run commands side by side: print their lines, restart what crashes with backoff, stop all of them warm.

honcho's own `Manager` sends SIGTERM to whole process groups, which kills a Celery worker's pool processes in the middle
of a task. It kills after 5 seconds, and fails when it is stopped before every process has started.
"""

from __future__ import annotations

import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from honcho.colour import get_colours
from honcho.printer import Message, Printer

from app.processes.process_states import ProcessState, identify
from config.settings import ROOT

#: Seconds that the processes have to stop before they are killed. A warm shutdown ends the task that is running.
KILL_WAIT = 20.0

#: Restarts of a process that crashes again and again. The wait before the first one is in seconds; each further wait is
#: doubled. With these numbers a process stays down about half a minute after its first crash.
RESTARTS: Final = 5
FIRST_WAIT = 1.0

#: Seconds after which a process that runs has recovered: its next crash is the first one of a row. A private RabbitMQ
#: that hangs is given up by its watcher sooner, or it would be started again without end.
RECOVERED: Final = 300.0

#: Seconds between two checks for signals, for ended processes and for due restarts.
POLL = 0.1

#: The name before the lines of the supervisor itself.
SYSTEM = "system"


def restart_wait(crashes: int) -> float | None:
    """Return the seconds until a process is restarted after `crashes` crashes in a row; None if it stays down."""
    return FIRST_WAIT * 2 ** (crashes - 1) if crashes <= RESTARTS else None


@dataclass(slots=True)
class _Child:
    """A command and its process, if it runs. Times are by the monotonic clock."""

    name: str
    command: str
    colour: str
    process: subprocess.Popen[bytes] | None = None
    #: Whether all of its output was read.
    is_read: bool = False
    started_at: float = 0.0
    restart_at: float | None = None
    crashes: int = 0
    exit_code: int | None = None

    def state(self) -> ProcessState:
        if self.process is not None:
            return ProcessState(self.name, "running", identify(self.process.pid), self.exit_code, self.crashes)
        if self.restart_at is not None:
            return ProcessState(self.name, "restarting", None, self.exit_code, self.crashes)
        return ProcessState(
            self.name, "down" if restart_wait(self.crashes) is None else "stopped", None, self.exit_code, self.crashes
        )

    def has_ended(self) -> bool:
        """Return whether its process has ended and its output was read; `reap` may follow.

        What remains of its process group is killed: a restart must not run beside it. The ended process is not reaped
        before, so that its id cannot be that of another group.
        """
        if self.process is None:
            return False
        if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        if not self.is_read:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.is_read

    def reap(self, now: float, *, may_restart: bool) -> None:
        """Note the exit code of the ended process, and when it is restarted."""
        assert self.process is not None  # noqa: S101 - has_ended() was true.
        self.exit_code, self.process = self.process.wait(), None
        if may_restart:
            self.note_crash(now)

    def note_crash(self, now: float) -> None:
        """Count a crash, and note when the process is restarted."""
        self.crashes = 1 if now - self.started_at >= RECOVERED else self.crashes + 1
        wait = restart_wait(self.crashes)
        self.restart_at = None if wait is None else now + wait

    def next_step(self) -> str:
        """Return the text for what follows its last crash."""
        wait = restart_wait(self.crashes)
        if wait is None:
            return (
                f"; it stays down after {self.crashes} crashes in a row, and the other processes go on. "
                "Repair the cause that its last lines name, then start `perennial up` again"
            )
        return f"; restart {self.crashes} of {RESTARTS} in {wait:g} s"


class ProcessSupervisor:
    """Runs simple shell commands, by name. One thread for each process reads its output; the caller's thread prints."""

    def __init__(
        self,
        commands: Mapping[str, str],
        env: Mapping[str, str],
        *,
        changed: Callable[[Sequence[ProcessState]], None],
    ) -> None:
        """Prepare the commands. `changed` is called with the states of all whenever a process starts or ends."""
        self._env = dict(env)
        self._changed = changed
        self._events: queue.Queue[Message] = queue.Queue()
        self._printer = Printer(sys.stdout, width=max(map(len, [*commands, SYSTEM])))
        self._children = {
            name: _Child(name, command, colour)
            for (name, command), colour in zip(commands.items(), get_colours(), strict=False)
        }
        self._signals: list[int] = []

    def run(self) -> int:
        """Run all commands until SIGINT, SIGTERM or SIGHUP comes, or until every process stays down.

        A process that ends is restarted, `RESTARTS` times in a row; then it stays down and the others go on. Returns
        the exit code of the first process that stayed down, else 128 and the signal's number.

        SIGTERM goes to the leader of each process group alone: it would kill a worker's pool processes in the middle of
        a page. What has not ended after `KILL_WAIT` seconds is killed with its group.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup(1) ignores the signal of a terminal that is closed, and so it stays.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, _: self._signals.append(number))
        for child in self._children.values():
            self._start(child)
        while not self._signals and not all(child.state().state == "down" for child in self._children.values()):
            self._turn(may_restart=True)
        if self._signals:
            self._say(f"{signal.Signals(self._signals[0]).name} received")
        self._stop()
        codes = [child.exit_code or 1 for child in self._children.values() if child.state().state == "down"]
        # A negative exit code is the number of the signal that ended the process.
        return next((128 - code if code < 0 else code for code in codes), 128 + max(self._signals, default=0))

    def _start(self, child: _Child) -> None:
        child.is_read, child.restart_at, child.started_at = False, None, time.monotonic()
        try:
            # `exec`: the leader is the command itself, not a shell before it.
            child.process = subprocess.Popen(  # noqa: S602 - a Procfile's commands are for a shell.
                f"exec {child.command}",
                shell=True,
                env=self._env,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:  # It would end the supervisor, and leave the others running.
            child.note_crash(child.started_at)
            self._say(f"{child.name} not started: {error}{child.next_step()}")
            self._report()
            return
        self._say(f"{child.name} started (pid={child.process.pid})")
        assert child.process.stdout is not None  # noqa: S101 - Popen was called with a pipe.
        output = child.process.stdout

        def pass_on() -> None:
            """Pass on each line of the process, and that its whole group has closed the output."""
            with output:
                for line in output:
                    self._events.put(Message("line", line, datetime.now(), child.name, child.colour))
            self._events.put(Message("read", None, datetime.now(), child.name, child.colour))

        threading.Thread(target=pass_on, daemon=True).start()
        self._report()

    def _turn(self, *, may_restart: bool) -> None:
        """Print the next line, or wait for `POLL` seconds; note ended processes and start those that are due."""
        with suppress(queue.Empty):
            event = self._events.get(timeout=POLL)
            if event.type == "line":
                self._print(event)
            else:
                self._children[event.name].is_read = True
        now = time.monotonic()
        for child in self._children.values():
            if child.has_ended():
                child.reap(now, may_restart=may_restart)
                self._say(f"{child.name} stopped (rc={child.exit_code})" + (child.next_step() if may_restart else ""))
                self._report()
            elif may_restart and child.restart_at is not None and now >= child.restart_at:
                self._start(child)

    def _stop(self) -> None:
        for name, process in self._running():
            self._say(f"sending SIGTERM to {name} (pid {process.pid})")
            # Not by Popen, which would reap a process that has ended.
            os.kill(process.pid, signal.SIGTERM)
        kill_at = time.monotonic() + KILL_WAIT
        while running := self._running():
            if time.monotonic() > kill_at:
                kill_at = math.inf
                for name, process in running:
                    self._say(f"sending SIGKILL to {name} (pid {process.pid})")
                    os.killpg(process.pid, signal.SIGKILL)
            self._turn(may_restart=False)
        for child in self._children.values():
            child.restart_at = None
        self._report()

    def _running(self) -> list[tuple[str, subprocess.Popen[bytes]]]:
        """Return name and process of each child that was not reaped: its id cannot be that of another process."""
        return [(name, child.process) for name, child in self._children.items() if child.process is not None]

    def _say(self, text: str) -> None:
        """Print a line of the supervisor itself."""
        self._print(Message("line", text, datetime.now(), SYSTEM, None))

    def _print(self, line: Message) -> None:
        """Print a line. It is lost where the terminal or the reader of the output is gone, or the disk is full."""
        with suppress(OSError):  # An error would end the supervisor, and leave all processes running.
            self._printer.write(line)

    def _report(self) -> None:
        try:
            self._changed([child.state() for child in self._children.values()])
        except OSError as error:
            self._say(f"state of the processes not saved: {error}")
