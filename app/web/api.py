"""The JSON twin of the search page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, cast
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from app.cluster.client.contract import AsyncSearchClient, SearchClient
from app.web.models import (
    DomainsAnswer,
    Parameters,
    SearchAnswer,
    SearchParameters,
    SuggestAnswer,
    SuggestParameters,
    as_json,
    domain_answer,
    search_answer,
)
from app.web.state import search_client


class _Route(APIRoute):
    """A route that gives its function what all functions here take: the finder, and one model of the query string.

    FastAPI describes the function; called by FastAPI, more than a quarter of the work on a request would be finding out
    what the function takes, anew for each request and for any function that there could be.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        function: Callable[..., Awaitable[Response]] = self.endpoint
        fields = self.dependant.query_params
        models = {field.name: cast(type[Parameters], field.field_info.annotation) for field in fields}

        async def answer(request: Request) -> Response:
            read = {name: model.read(request.query_params) for name, model in models.items()}
            return await function(finder=await search_client(request), **read)

        return answer


router = APIRouter(prefix="/api/v1", route_class=_Route)


@router.get("/search", response_model=SearchAnswer, operation_id="search")
async def search(
    finder: Annotated[AsyncSearchClient, Depends(search_client)], parameters: Annotated[SearchParameters, Query()]
) -> Response:
    """Search one site or several."""
    question = parameters.question()
    found = await finder.asearch(question)
    return as_json(search_answer(found, question, link=_link(parameters)))


@router.get("/suggest", response_model=SuggestAnswer, operation_id="suggest")
async def suggest(
    finder: Annotated[SearchClient, Depends(search_client)], parameters: Annotated[SuggestParameters, Query()]
) -> Response:
    """Suggest how a query may go on."""
    found = await run_in_threadpool(finder.suggest, tuple(parameters.domain), parameters.q, limit=parameters.limit)
    return as_json(SuggestAnswer(query=parameters.q, suggestions=tuple(found)))


@router.get("/domains", response_model=DomainsAnswer, operation_id="domains")
async def domains(finder: Annotated[SearchClient, Depends(search_client)]) -> Response:
    """List what can be searched."""
    routes = await run_in_threadpool(finder.routes)
    known = sorted(routes.routes, key=lambda route: route.domain)
    return as_json(DomainsAnswer(domains=tuple(domain_answer(route) for route in known)))


def _link(parameters: SearchParameters) -> str:
    """Return path and query of a search, without its offset; what is as it would be anyway is left out."""
    given = parameters.model_dump(exclude={"offset"}, exclude_defaults=True)
    return f"{router.prefix}/search?{urlencode(given, doseq=True)}"
