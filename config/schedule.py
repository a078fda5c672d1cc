"""The schedule of Celery beat."""

from __future__ import annotations

from typing import Any

from config.routes import ROUTE_BY_TYPE

BEAT_SCHEDULE: dict[str, dict[str, Any]] = {
    # No `expires`: a worker compares it with its own clock, and one that is ahead would discard every tick. The TTL of
    # the queue measures the wait on the broker alone.
    "fire the timers that are due": {"task": ROUTE_BY_TYPE["tick"].task, "schedule": 1.0},
}
