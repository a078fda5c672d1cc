"""What the settings give to several commands: the store and a publisher."""

from __future__ import annotations

from app.broker.publishing import Publisher, get_publisher
from app.storage.open import open_store
from app.storage.store import ObjectStore
from app.topology.declare import prepare_client
from config.settings import Settings


def settings_store(settings: Settings) -> ObjectStore:
    """Return the store of STORE_URL; raises StoreError."""
    return open_store(settings.store, endpoint_url=settings.s3_endpoint_url)


def client_publisher(settings: Settings) -> Publisher:
    """Return a publisher after declaring what a client needs; raises BrokerUnreachable."""
    prepare_client(settings)
    return get_publisher(settings.broker, timeout=settings.publish_timeout)
