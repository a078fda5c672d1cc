"""The Celery instance: `celery -A app worker|beat|flower|shell`."""

from __future__ import annotations

import gc
import logging
import os
from typing import Any

from celery import Celery, signals
from celery.utils.text import str_to_list

from app import counters, error_reports, tracing
from app.broker.connection import tls_options
from app.broker.publishing import get_publisher
from app.broker.worker.install import broker_url, install
from app.machine import touch_heartbeat
from app.topology.queues import task_queues
from app.topology.retry_policies import retry_policies
from config.logs import configure
from config.routes import ORCHESTRATOR, REQUESTS, ROUTE_BY_TYPE
from config.settings import ROOT, get_settings

log = logging.getLogger(__name__)

#: Objects that a process of the pool creates, less those that it releases, before Python looks for cycles among them.
GARBAGE_THRESHOLD = 50_000

app = Celery("perennial")
app.config_from_object("config.celeryconfig")
# Requests are no tasks: the orchestrator consumes them on a channel of its own.
app.conf.task_queues = [queue for queue in task_queues(get_settings()) if queue.name != REQUESTS]
for _queue in app.conf.task_queues:
    _queue.no_declare = not get_settings().declare_topology
#: For `celery -A app shell`, which offers the application and its tasks only.
app.settings = get_settings()
app.conf.broker_use_ssl = tls_options(get_settings().broker)


def _count_run(task: str, queue: str, outcome: str, reason: str) -> None:
    # A message may name any task.
    counters.TASK_RUNS.add(task if task in app.tasks else "", queue, outcome, reason)


install(
    app,
    retry_policies(get_settings()),
    on_outcome=_count_run,
    consumer="app.messages.consumer:EnvelopeConsumer",
)

# Flower without options would listen on every address without a password.
os.environ.setdefault("FLOWER_CONF", str(ROOT / "config" / "flowerconfig.py"))


@signals.setup_logging.connect  # type: ignore[untyped-decorator]
def _own_logging(loglevel: Any = None, logfile: Any = None, **_: Any) -> None:
    # WARNING is Celery's default: LOG_LEVEL decides then.
    configure(None if loglevel in (None, logging.WARNING, "WARNING") else loglevel, logfile)


@signals.worker_process_init.connect  # type: ignore[untyped-decorator]
def _collect_garbage_seldom(**_: Any) -> None:
    # A page is thousands of objects in no cycle, and the modules stay: to look at them again took a tenth of a crawl.
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)


@signals.worker_init.connect  # type: ignore[untyped-decorator]
@signals.worker_process_init.connect  # type: ignore[untyped-decorator]
def _begin_to_count(**_: Any) -> None:
    counters.begin(get_settings().redis)

    def count_confirmed(seconds: float) -> None:
        counters.CONFIRM_WAITS.add()
        counters.CONFIRM_SECONDS.add(amount=seconds)

    get_publisher(broker_url(app)).on_confirmed = count_confirmed


@signals.celeryd_init.connect  # type: ignore[untyped-decorator]
def _begin_error_reports(**_: Any) -> None:
    # Before the processes of the pool are forked, in which Sentry's integration is called.
    error_reports.begin("worker", get_settings())


@signals.worker_process_init.connect  # type: ignore[untyped-decorator]
def _begin_traces(**_: Any) -> None:
    tracing.begin("worker", get_settings().otel_exporter_otlp_endpoint)


@signals.worker_process_shutdown.connect  # type: ignore[untyped-decorator]
@signals.worker_shutdown.connect  # type: ignore[untyped-decorator]
def _end_of_process(**_: Any) -> None:
    counters.end()
    tracing.end()


@signals.beat_init.connect  # type: ignore[untyped-decorator]
def _begin_beat(**_: Any) -> None:
    tracing.begin("beat", get_settings().otel_exporter_otlp_endpoint)
    error_reports.begin("beat", get_settings())


@signals.heartbeat_sent.connect  # type: ignore[untyped-decorator]
def _touch_heartbeat_file(sender: Any, **_: Any) -> None:
    # For health checks. A check by remote control would need an account that may control all workers.
    touch_heartbeat(get_settings().heartbeat_dir / sender.eventer.hostname)


@signals.celeryd_init.connect  # type: ignore[untyped-decorator]
def _choose_consumer(instance: Any, options: Any, **_: Any) -> None:
    # A worker becomes the orchestrator by naming its queue only: without `--queues` it takes all others.
    instance.app.amqp.queues.deselect([ORCHESTRATOR])
    if ORCHESTRATOR in str_to_list(options.get("queues") or ()):
        instance.app.conf.worker_consumer = "app.cluster.orchestrator.worker:OrchestratorConsumer"


@signals.worker_ready.connect  # type: ignore[untyped-decorator]
def _warn_without_contact(sender: Any, **_: Any) -> None:
    if ROUTE_BY_TYPE["page"].queue in sender.app.amqp.queues.consume_from and get_settings().lacks_contact:
        log.warning(
            "User-Agent %r: its contact is an example. Set USER_AGENT, so that the owners of sites can reach you",
            get_settings().user_agent,
        )
