"""Plain clients of the store and the broker of a system that a test has started."""

from __future__ import annotations

from app.storage.open import open_store
from app.storage.store import ObjectStore
from config.settings import Settings
from tests.support.broker import Broker


class SystemClients:
    """What a system of these settings is looked at with."""

    __slots__ = ()
    settings: Settings

    @property
    def store(self) -> ObjectStore:
        """The object store."""
        return open_store(self.settings.store)

    @property
    def broker(self) -> Broker:
        """A plain client of the broker."""
        return Broker(self.settings.broker)
