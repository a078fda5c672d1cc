"""The Procfile's processes on this machine: started together, stopped warm."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from honcho import manager
from honcho.environ import parse_procfile
from honcho.printer import Printer

from app.errors import ServicesError
from config.settings import ROOT, get_settings

#: The process that runs only where cover art is served: it would consume from queues that are not there.
ART = "coverart"

#: The process of which there are as many as copies of each pack, so that each copy has a place.
SEARCHER = "searcher"

#: Seconds that a process gets to stop before it is killed. Honcho's own 5 s would cut a warm shutdown short.
KILL_WAIT = 20

#: Seconds between two looks whether all processes have started.
_SOON = 0.1


class Manager(manager.Manager):  # type: ignore[misc]
    """Honcho's manager, which stops workers warm, also before everything has started, and kills what will not stop."""

    def __init__(self, printer: Printer) -> None:
        super().__init__(printer)
        self._procmgr = _ProcessGroups()

    def terminate(self) -> None:
        """Stop all processes: those that are about to start are waited for, for they have no process id yet."""
        if self._all_started():
            # Honcho counts its patience from the first process that ends; here none may.
            _daemon_timer(KILL_WAIT + 1.0, self.kill)
            super().terminate()
        else:
            _daemon_timer(_SOON, self.terminate)


class _ProcessGroups(manager.ProcessManager):  # type: ignore[misc]
    """How processes are told to end. Each leads a group of its own."""

    def terminate(self, pid: int) -> None:
        """Tell the leader alone: a worker's pool processes die of SIGTERM, and their pages with them."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def run(*, extra: Mapping[str, str] | None = None, only: tuple[str, ...] = (), output: Any = None) -> int:
    """Run the Procfile until one process ends or a signal comes; return the exit status.

    What serves cover art is left out without MUSICBRAINZ_URL; there are REPLICAS searchers.
    `extra` is added to the environment, `only` names the processes to run (all by default), `output` is a text file.
    """
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        **(extra or {}),
        "PYTHONUNBUFFERED": "1",
    }
    settings = get_settings()
    left_out = set() if settings.art_exchanges else {ART}
    commands = {
        name: command for name, command in procfile().items() if name not in left_out and (not only or name in only)
    }
    return supervise(formation(commands, searchers=settings.replicas), env=env, output=output)


def formation(commands: Mapping[str, str], *, searchers: int) -> dict[str, str]:
    """Return the commands with so many searchers, named as honcho does: `searcher.1`, `searcher.2`."""
    many: dict[str, str] = {}
    for name, command in commands.items():
        names = [f"{name}.{number + 1}" for number in range(searchers)] if name == SEARCHER else [name]
        many |= dict.fromkeys(names, command)
    return many


def supervise(commands: Mapping[str, str], *, env: Mapping[str, str], output: Any = None) -> int:
    """Run simple shell commands, by name, until one ends or a signal comes; stop the others, return the exit status."""
    manager.KILL_WAIT = KILL_WAIT
    runner = Manager(Printer(output or sys.stdout))
    for name, command in commands.items():
        # `exec`: the process that is told to end is the command itself, not a shell before it.
        runner.add_process(name, f"exec {command}", env=dict(env), cwd=str(ROOT))
    runner.loop()
    return int(runner.returncode or 0)


def procfile() -> dict[str, str]:
    """Return the Procfile's commands by name, in its order; raises ServicesError where there is none."""
    path = ROOT / "Procfile"
    if not path.exists():
        raise ServicesError(f"{path}: no Procfile; run from a checkout")
    return dict(parse_procfile(path.read_text()).processes)


def _daemon_timer(seconds: float, function: Any) -> None:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()
