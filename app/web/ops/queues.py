"""Pages of queues, workers, searchers and timers."""

from __future__ import annotations

from fastapi import APIRouter

from app.web.middleware import OPS_PAGES

router = APIRouter(prefix=OPS_PAGES, include_in_schema=False)
