"""A copy of every message that goes to the art exchange, waits for its retry, or fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from amqp.exceptions import AMQPError
from kombu import Connection, Queue

from app.broker.headers import REPLAY
from app.broker.policies.fixed_ttl import RETRIES
from app.coverart.coordination import ARRIVED
from app.coverart.jobs import EVENT
from app.coverart.project import COVER_ART
from app.topology.declare import declare_all
from config.routes import ART_JOBS
from config.settings import Settings
from tests.demo_caa.screen import DemoEvent, short

#: Seconds between two checks whether it must end.
_ATTENTION = 0.1


class MessageTap:
    """Consumes copies of all messages from a queue of its own, which is bound beside the others.

    `retried` and `failed` are the (routing key, body) of all that waited for a retry and that failed for good.
    """

    def __init__(self, settings: Settings, tell: Callable[[DemoEvent], None]) -> None:
        self._tell = tell
        self._window_ms = round(settings.art_window * 1_000)
        self._stop = threading.Event()
        self._connection = Connection(settings.broker, connect_timeout=5)
        self._channel = self._connection.channel()
        declare_all(self._connection, settings)
        self.published = 0
        self.events = 0
        self.retried: list[tuple[str, bytes]] = []
        self.failed: list[tuple[str, bytes]] = []
        self._listen()
        self._thread = threading.Thread(target=self._run, name="tap")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.collect(socket_timeout=1)

    def _listen(self) -> None:
        copies = Queue("", exclusive=True, auto_delete=True, durable=False)(self._channel)
        copies.name = copies.queue_declare().queue
        for job in ART_JOBS:
            copies.bind_to(exchange=COVER_ART.prefix, routing_key=job)
        for end in ("retry", "failed"):
            copies.bind_to(exchange=f"{COVER_ART.prefix}.{end}", routing_key="")
        self._channel.basic_consume(copies.name, no_ack=True, callback=self._hear)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._connection.drain_events(timeout=_ATTENTION)
            except TimeoutError:
                continue
            except (AMQPError, OSError) as error:
                self._tell(DemoEvent("broker", f"the connection broke: {error}"))
                return

    def _hear(self, message: Any) -> None:
        headers, exchange = message.headers or {}, message.delivery_info["exchange"]
        key, body = message.delivery_info["routing_key"], bytes(message.body)
        left = f"{RETRIES} is {headers.get(RETRIES)}"
        if exchange.endswith(".retry"):
            self.retried.append((key, body))
            self._tell(DemoEvent("retry", f"{called(key, body)} waits in {exchange}; {left}"))
        elif exchange.endswith(".failed"):
            self.failed.append((key, body))
            self._tell(
                DemoEvent("failed", f"{called(key, body)} ends in {exchange}, where an operator finds it; {left}")
            )
        else:
            self._tell(self._arrived(key, body, headers))

    def _arrived(self, key: str, body: bytes, headers: Mapping[str, Any]) -> DemoEvent:
        came = came_from(headers)
        if came.endswith(".retry"):
            return DemoEvent("retry", f"{called(key, body)} is back on its exchange and runs again")
        if came.endswith(f".delay.{self._window_ms}") and ARRIVED in headers:
            waited = f"waited {self._window_ms / 1_000:g} s; it runs unless an equal one has run since it came"
            return DemoEvent("window", f"{called(key, body)} {waited}")
        if came:
            return DemoEvent(
                "wait",
                f"{called(key, body)} is back after {came.rpartition('.')[2]} ms in the broker: it had to wait",
            )
        if EVENT in headers:
            self.events += 1
            return DemoEvent("reader", f"event {headers[EVENT]} goes out as the message {key}  {body!r}")
        if REPLAY in headers:
            return DemoEvent("replay", f"{called(key, body)} is on its exchange again")
        self.published += 1
        return DemoEvent("message", f"{key}  {body!r}")


def came_from(headers: Mapping[str, Any]) -> str:
    """Return the queue that a message waited in last, as the broker noted in it; empty for a new one."""
    deaths = headers.get("x-death") or [{}]
    return str(deaths[0].get("queue", ""))


def called(key: str, body: bytes) -> str:
    """Return a message in a few words."""
    return " ".join([key, *short(body.decode("utf-8", "replace")).split()])
