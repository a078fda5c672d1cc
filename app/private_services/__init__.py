"""A private RabbitMQ and Redis for one checkout: start, stop, status, and a process that watches each of them."""

from __future__ import annotations

from app.private_services.lifecycle import ServiceStatus, down, private_names, status, up
from app.private_services.state import Urls

__all__ = ["ServiceStatus", "Urls", "down", "private_names", "status", "up"]
