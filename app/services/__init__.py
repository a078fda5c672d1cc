"""A private RabbitMQ and Redis for one checkout: start, stop and status."""

from __future__ import annotations

from app.services.state import Urls
from app.services.supervise import ServiceStatus, down, status, up

__all__ = ["ServiceStatus", "Urls", "down", "status", "up"]
