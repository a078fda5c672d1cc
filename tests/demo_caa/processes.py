"""`python -m tests.demo_caa.processes`: private services, a worker and an event reader while standard input is open."""

from __future__ import annotations

import os
import shlex
import sys
from functools import partial

from app.private_services import procfile
from app.topology.queues import art_queues
from config.settings import get_settings
from demo import supervisor


def worker() -> str:
    """Return the command of a worker on the queues of the archives that are served."""
    settings = get_settings()
    queues = [queue.name for exchange in settings.art_exchanges for queue in art_queues(exchange, settings)]
    words = [sys.executable, "-m", "celery", "-A", "app", "worker", "--hostname=coverart@%h", "--concurrency=2"]
    return shlex.join([*words, f"--queues={','.join(queues)}", "--without-gossip", "--without-mingle"])


#: The command of the process that publishes the events of the database.
READER = shlex.join([sys.executable, "-m", "app.messages.art_event_reader"])


if __name__ == "__main__":
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    sys.exit(
        supervisor.main(partial(procfile.supervise, {"coverart": worker(), "eventreader": READER}, env=environment))
    )
