"""`python -m tests.demo_caa.processes`: private services, a worker and an event reader while standard input is open."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from app.processes import procfile
from demo import supervisor

if __name__ == "__main__":
    commands = {name: command for name, command in procfile.procfile().items() if name in ("coverart", "eventreader")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", "WORKER_CONCURRENCY": "2"}
    sys.exit(supervisor.main(partial(procfile.supervise, commands, env=environment)))
