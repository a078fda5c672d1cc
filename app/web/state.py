"""What the requests of one application are answered from."""

from __future__ import annotations

from fastapi import Request

from app.cluster.client.finder import AsyncFinder


async def finder_of(request: Request) -> AsyncFinder:
    """Return who finds. Asynchronous, for FastAPI would have a thread call it otherwise."""
    finder: AsyncFinder = request.app.state.finder
    return finder
