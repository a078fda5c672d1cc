"""A RabbitMQ and a Redis that a test may kill: those of its process of the test run, started again afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from app import private_services as services
from config.settings import Settings
from tests.support.kill import kill


@dataclass(frozen=True, slots=True)
class Killable:
    """Services to be killed. `settings` are those of an application with a vhost and an empty Redis of its own."""

    settings: Settings
    _private: Settings

    def kill(self, program: str) -> None:
        """SIGKILL `beam.smp`, which is RabbitMQ, or `redis-server`."""
        kill(program, self._private.data_dir)

    def start(self) -> None:
        """Start what does not run, on its data."""
        services.up(self._private)

    def restart(self) -> None:
        """Stop both in order and start them again."""
        services.down(self._private)
        services.up(self._private)
