"""The Celery instance: `celery -A app worker|beat|flower|shell`."""

from __future__ import annotations

import logging
import os
from typing import Any

from celery import Celery, signals

from app.broker.connection import tls_options
from app.broker.worker.install import install
from app.roles import prepare
from app.topology.declare import policies
from app.topology.queues import task_queues
from config.logs import configure
from config.settings import ROOT, get_settings

app = Celery("perennial")
app.config_from_object("config.celeryconfig")
app.conf.task_queues = task_queues(get_settings())
app.conf.broker_use_ssl = tls_options(get_settings().broker)
install(
    app,
    policies(get_settings()),
    publish_timeout=get_settings().publish_timeout,
    confirm=get_settings().client_confirms,
    consumer="app.consumer:Consumer",
)

# Flower without options would listen on every address without a password.
os.environ.setdefault("FLOWER_CONF", str(ROOT / "config" / "flowerconfig.py"))


@signals.setup_logging.connect  # type: ignore[untyped-decorator]
def _own_logging(loglevel: Any = None, **_: Any) -> None:
    # Celery says WARNING where nobody said anything.
    configure(None if loglevel in (None, logging.WARNING, "WARNING") else loglevel)


@signals.celeryd_init.connect  # type: ignore[untyped-decorator]
def _own_queues(instance: Any = None, **_: Any) -> None:
    # The last moment before those behind `--queues` are looked for.
    prepare(instance.app.amqp.queues)
