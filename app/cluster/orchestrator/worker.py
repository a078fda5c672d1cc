"""The worker with `--queues=orchestrator`: holds the lease, runs searchers' events as tasks and answers requests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from celery.concurrency.solo import TaskPool as SoloPool
from celery.utils.log import get_logger
from celery.worker import state
from kombu import Consumer as RequestConsumer

from app.broker.connection import wait_for_exclusive_queue
from app.broker.delivery import Delivery
from app.broker.errors import AlreadyRunning, WorkerMisconfigured
from app.broker.publishing import get_publisher
from app.broker.rpc.responder import Responder
from app.broker.worker.consumer import BROKER_PATIENCE
from app.cluster.orchestrator.service import OrchestratorService
from app.messages.consumer import EnvelopeConsumer
from app.storage.open import open_store
from app.topology.queues import request_queue
from config.routes import ORCHESTRATOR, REQUESTS
from config.settings import Settings, get_settings

logger = get_logger(__name__)

#: The exclusive queue that makes a connection the orchestrator's; the broker deletes it with the connection.
LEASE: Final = "orchestrator.lease"
#: Seconds to wait for another orchestrator's lease: at the start, and after a reconnection. By then the broker may not
#: have noticed yet that this worker's previous connection is lost.
_LEASE_PATIENCE, _LEASE_PATIENCE_AGAIN = 5.0, BROKER_PATIENCE
#: Unacknowledged requests that the broker sends at most. A request is acknowledged before it is answered.
_PREFETCH: Final = 64

#: The service of this process's consumer, at most one.
_running: list[OrchestratorService] = []


def running_service() -> OrchestratorService:
    """Return this process's orchestrator; raises WorkerMisconfigured without one."""
    if not _running:
        raise WorkerMisconfigured(f"this process runs no orchestrator: start one with --queues={ORCHESTRATOR}")
    return _running[0]


class OrchestratorConsumer(EnvelopeConsumer):
    """Celery's consumer in the orchestrator's worker. It consumes requests on a separate channel, beside the tasks.

    Tasks, requests and the timer all run in the worker's event loop, so the state needs no lock.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.pool, SoloPool):
            raise WorkerMisconfigured(f"queue {ORCHESTRATOR}: its tasks run in the worker's process, add --pool=solo")

        def every(seconds: float, function: Callable[[], None]) -> Callable[[], None]:
            entry = self.timer.call_repeatedly(seconds, function)
            return lambda: self.timer.cancel(entry)

        self._service = build(get_settings(), every=every)
        _running[:] = [self._service]
        self._requests: RequestConsumer | None = None

    def connect(self) -> Any:
        """Connect and take the lease; raises AlreadyRunning, which ends the worker, if another orchestrator has it."""
        connection = super().connect()
        patience = _LEASE_PATIENCE_AGAIN if self.restart_count else _LEASE_PATIENCE
        try:
            hold_lease(connection, patience=patience, meanwhile=state.maybe_shutdown)
        except BaseException:
            connection.collect(socket_timeout=1)
            raise
        return connection

    def on_ready(self) -> None:
        """Consume requests and start the service."""
        super().on_ready()
        channel = self.connection.channel()
        channel.basic_qos(0, _PREFETCH, False)

        def answer(message: Any) -> None:
            message.ack()
            self._service.take(Delivery.of(message, REQUESTS))

        def ignore(message: Any, error: Exception) -> None:
            logger.warning("Request ignored, its body cannot be decoded: %s", error)
            message.ack_log_error(logger, self.connection_errors)

        # The queue was declared when the worker connected.
        queues = [request_queue(get_settings())]
        self._requests = RequestConsumer(channel, queues, on_message=answer, auto_declare=False)
        self._requests.on_decode_error = ignore
        self._requests.consume()
        self._service.connected()

    def stop(self) -> None:
        """Close the service before the connection is closed, and stop."""
        if self._requests is not None:
            with suppress(*self.connection_errors, *self.channel_errors):
                self._requests.cancel()
        self._service.close()
        super().stop()


def hold_lease(connection: Any, *, patience: float, meanwhile: Callable[[], None]) -> None:
    """Declare the exclusive queue of the only orchestrator; raises AlreadyRunning after `patience` seconds.

    `meanwhile` is called between attempts, and may raise to end them.
    """

    def declare(channel: Any) -> None:
        channel.queue_declare(LEASE, durable=False, exclusive=True, auto_delete=False)

    if not wait_for_exclusive_queue(connection, declare, patience=patience, meanwhile=meanwhile):
        raise AlreadyRunning(
            f"another orchestrator runs on {connection.as_uri()} and holds the exclusive queue {LEASE}"
        )


def build(
    settings: Settings, *, every: Callable[[float, Callable[[], None]], Callable[[], None]]
) -> OrchestratorService:
    """Return an orchestrator for the settings' broker and store; OrchestratorService documents `every`."""
    # Opened at each use, so that an orchestrator starts and answers while its store is unreachable.
    store = partial(open_store, settings.store)
    return OrchestratorService(
        replicas=settings.replicas,
        heartbeat=settings.heartbeat,
        store=store,
        respond=partial(Responder, settings.broker),
        publish=get_publisher(settings.broker).publish,
        every=every,
    )
