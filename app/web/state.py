"""What the requests of one application are answered from."""

from __future__ import annotations

from fastapi import Request

from app.cluster.client.contract import AsyncSearchClient


async def search_client(request: Request) -> AsyncSearchClient:
    """Return who finds. Asynchronous, for FastAPI would have a thread call it otherwise."""
    finder: AsyncSearchClient = request.app.state.finder
    return finder
