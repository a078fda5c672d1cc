"""The Procfile's processes on this machine: started together, stopped warm."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from honcho import manager
from honcho.environ import parse_procfile
from honcho.printer import Printer

from app.errors import ServicesError
from config.settings import ROOT

#: Seconds that a process gets to stop before it is killed. Honcho's own 5 s would cut a warm shutdown short.
KILL_WAIT = 20


def run(*, extra: Mapping[str, str] | None = None, only: tuple[str, ...] = (), output: Any = None) -> int:
    """Run the Procfile until one process ends or a signal comes; return the exit status.

    `extra` is added to the environment, `only` names the processes to run (all by default), `output` is a text file.
    """
    manager.KILL_WAIT = KILL_WAIT
    runner = manager.Manager(Printer(output or sys.stdout))
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        **(extra or {}),
    }
    for name, command in procfile().items():
        if not only or name in only:
            runner.add_process(name, command, env={**env, "PYTHONUNBUFFERED": "1"}, cwd=str(ROOT))
    runner.loop()
    return int(runner.returncode or 0)


def procfile() -> dict[str, str]:
    """Return the Procfile's commands by name, in its order; raises ServicesError where there is none."""
    path = ROOT / "Procfile"
    if not path.exists():
        raise ServicesError(f"{path}: no Procfile; run from a checkout")
    return dict(parse_procfile(path.read_text()).processes)
