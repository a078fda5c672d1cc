"""The answers for whoever watches the process."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import choose_encoder

from app.broker.errors import ApplicationError
from app.cluster.client.contract import SearchClient
from app.cluster.protocol import Routes
from app.web.state import search_client

router = APIRouter(include_in_schema=False)


@router.get("/healthz")
async def healthz() -> PlainTextResponse:
    """Answer while the process does."""
    return PlainTextResponse("ok\n")


@router.get("/readyz")
def readyz(finder: Annotated[SearchClient, Depends(search_client)]) -> PlainTextResponse:
    """Answer 200 while searches can be answered, else 503, with one line that says why."""
    try:
        ready, why = readiness(finder.routes())
    except ApplicationError as error:
        ready, why = False, error.reason
    return PlainTextResponse(f"{why}\n", status_code=200 if ready else 503)


@router.get("/metrics")
def metrics(request: Request) -> Response:
    """Tell Prometheus what was counted, in the format it asks for.

    It is on the port of the pages: there are numbers and names of indexed sites in it, nothing that anybody searched
    for. Whoever puts this server before the public keeps /metrics to himself there.
    """
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    registry = request.app.state.metrics.registry
    return Response(encode(registry), headers={"Content-Type": media_type})


def readiness(routes: Routes) -> tuple[bool, str]:
    """Return whether searches can be answered, and how it stands.

    One pack that is on no searcher does not make a process unready, for then all others could not be searched either.
    """
    answered = sum(bool(route.searchers) for route in routes.routes)
    known = len(routes.routes)
    if not routes.settled:
        return False, "the orchestrator still gathers what is there"
    if known and not answered:
        return False, f"none of {known} packs is on a searcher"
    return True, "ok" if answered == known else f"ok, but {known - answered} of {known} packs are on no searcher"
