"""A system that a test has started, as its clients and its operators see it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from redis import Redis

from app.storage.open import open_store
from app.storage.store import ObjectStore
from config.settings import Settings
from tests.support.broker import Broker


class SystemClients(ABC):
    """What a system is looked at with; `settings` and `redis` reach its services."""

    __slots__ = ()
    settings: Settings
    redis: Redis

    @abstractmethod
    def log(self, name: str) -> str:
        """Return what a process has printed, also before it was started again."""

    @abstractmethod
    def not_running(self) -> list[str]:
        """Return the names of the processes that do not run now."""

    @property
    def store(self) -> ObjectStore:
        """The object store."""
        return open_store(self.settings.store)

    @property
    def broker(self) -> Broker:
        """A plain client of the broker."""
        return Broker(self.settings.broker)
