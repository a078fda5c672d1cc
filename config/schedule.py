"""The schedule of Celery beat."""

from __future__ import annotations

from typing import Any

from config.routes import ROUTE_BY_TYPE

BEAT_SCHEDULE: dict[str, dict[str, Any]] = {
    "fire the timers that are due": {"task": ROUTE_BY_TYPE["tick"].task, "schedule": 1.0, "options": {"expires": 1.0}},
}
