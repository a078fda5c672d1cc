"""A RabbitMQ and a Redis that a test may kill: those of its process of the test run, started again afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from app import private_services as services
from config.settings import Settings
from tests.support.kill import kill
from tests.support.rabbitmqctl import rabbitmqctl


@dataclass(frozen=True, slots=True)
class Killable:
    """Services to be killed. `settings` are those of an application with a vhost and an empty Redis of its own."""

    settings: Settings
    _private: Settings

    def kill(self, program: str) -> None:
        """SIGKILL `beam.smp`, which is RabbitMQ, or `redis-server`."""
        kill(program, self._private.data_dir)

    @contextmanager
    def suspended(self, queue: str) -> Iterator[None]:
        """Suspend the process of a classic queue for the block: its confirms are late, and the node is not."""
        name = f'rabbit_misc:r(<<"{unquote(urlsplit(self.settings.broker).path[1:])}">>, queue, <<"{queue}">>)'
        find = f"{{ok, Queue}} = rabbit_amqqueue:lookup({name}), Process = amqqueue:get_pid(Queue), "
        rabbitmqctl(self._private, "eval", f"{find} sys:suspend(Process).")
        try:
            yield
        finally:
            rabbitmqctl(self._private, "eval", f"{find} sys:resume(Process).")

    def start(self) -> None:
        """Start what does not run, on its data."""
        services.up(self._private)

    def restart(self) -> None:
        """Stop both in order and start them again."""
        services.down(self._private)
        services.up(self._private)
