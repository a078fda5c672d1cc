"""The overview of one web process."""

from __future__ import annotations

from fastapi import Request

from app.operations.overview import Overview


def overview_of(request: Request) -> Overview:
    """Return the overview of the process that serves a request."""
    overview: Overview = request.app.state.overview
    return overview
