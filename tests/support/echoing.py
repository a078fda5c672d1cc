"""Our worker with services that answer what they are asked. `celery -A tests.support.echoing worker`."""

from __future__ import annotations

import logging
import os
from typing import Any

from celery import signals

from app.broker.delivery import Delivery
from app.broker.rpc.responder import Responder
from app.celery import app
from app.serving import SERVICES
from config.routes import REQUESTS, SEARCHER
from config.settings import get_settings

__all__ = ["app"]

logger = logging.getLogger(__name__)


class Echo:
    """Answers with the body and the pid; notes what it is told."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._responder = Responder(
            get_settings().broker,
            {"echo": self._echo, "get_routes": self._echo},
            problem=lambda error: f"problem {error!r}".encode(),
            threads=2,
        )
        logger.warning("echo: made for %s", consumer.searcher_id)

    def _echo(self, delivery: Delivery, _payload: dict[str, Any]) -> bytes:
        return f"{os.getpid()} ".encode() + delivery.body

    def take(self, delivery: Delivery) -> None:
        """Answer, unless the message is a bad one."""
        if delivery.body == b"bad":
            raise ValueError("a bad message")
        self._responder.take(delivery)

    def connected(self) -> None:
        """Note it."""
        logger.warning("echo: connected")

    def close(self) -> None:
        """Note it, and linger for a moment."""
        logger.warning("echo: closing")
        self._consumer.linger(float(os.environ.get("ECHO_LINGER", "0.2")))
        self._responder.close()
        logger.warning("echo: closed")


@signals.worker_init.connect  # type: ignore[untyped-decorator]
def _echo_everything(**_: Any) -> None:
    """Take the place of what our tasks registered."""
    SERVICES.update(dict.fromkeys((REQUESTS, SEARCHER), Echo))
