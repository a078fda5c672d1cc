"""A worker whose name another connection still has: it waits for it and says so, and does not end."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from kombu import Connection

from config.settings import Settings
from tests.support.waiting import eventually
from tests.support.worker import start

pytestmark = pytest.mark.acceptance


def test_a_worker_waits_until_the_broker_gives_up_the_connection_of_its_killed_predecessor(
    settings: Settings, environment: dict[str, str], tmp_path: Path
) -> None:
    name = f"again@{socket.gethostname()}"
    with Connection(settings.broker) as predecessor:
        # What the broker keeps of a worker that vanished without closing its connection.
        predecessor.default_channel.queue_declare(f"{name}.celery.pidbox", exclusive=True, durable=False)
        worker = start(environment, tmp_path / "again.log", queues=["site.index"], concurrency=1)
        try:
            waiting = "Waiting up to 180 s for an exclusive queue of another connection"
            eventually(lambda: worker.ready() or waiting in worker.log, "it says that it waits", seconds=60)
            assert waiting in worker.log
            assert f"{name}.celery.pidbox" in worker.log
            predecessor.release()
            eventually(worker.ready, "it is ready", seconds=60)
            worker.leave()
        finally:
            if worker.process.poll() is None:
                worker.kill()
