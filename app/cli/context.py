"""What the settings give to several commands: a publisher."""

from __future__ import annotations

from app.broker.publishing import Publisher, get_publisher
from app.topology.declare import prepare_client
from config.settings import Settings


def client_publisher(settings: Settings) -> Publisher:
    """Return a publisher after declaring what a client needs; raises BrokerUnreachable."""
    prepare_client(settings)
    return get_publisher(settings.broker, timeout=settings.publish_timeout)
