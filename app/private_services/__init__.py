"""A private RabbitMQ and Redis for one checkout: start, stop and status."""

from __future__ import annotations

from app.private_services.lifecycle import ServiceStatus, down, status, up
from app.private_services.state import Urls

__all__ = ["ServiceStatus", "Urls", "down", "status", "up"]
