"""The JSON API: its routes and their OpenAPI description."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from app.broker.errors import ApplicationError, InvalidMessage, Overloaded
from app.cluster.client.contract import MAX_DOMAINS, SearchClient
from app.cluster.client.corrected import search_corrected
from app.errors import (
    BodyRefused,
    NotPlaced,
    PackError,
    PackNotFound,
    SearchTimeout,
    SearchUnavailable,
    TooManySearches,
    UriTooLong,
)
from app.web.languages import VARY, languages_of
from app.web.middleware import CHARGE_AGAIN
from app.web.models import (
    DomainsAnswer,
    Problem,
    SearchAnswer,
    SearchParameters,
    SuggestAnswer,
    SuggestParameters,
    domain_answer,
    json_response,
    search_answer,
)
from app.web.problems import MEDIA_TYPE, type_of
from app.web.suggested_pages import suggested_pages

DESCRIPTION = """\
Search the sites that are indexed here.

What is not understood is refused, parameters that are not listed too: left out in silence, a filter that is mistyped
would change what the answer means.

A fault is answered with `application/problem+json` (RFC 9457), and its `type` tells the kinds of faults apart. Where
asking again makes sense, `Retry-After` says after how many seconds. Searches and suggestions of one address are
limited: `RateLimit-Policy` and `RateLimit` say to how many, and how many are left.

Some addresses are for operators: they need the token of the server's settings. Pages of other origins cannot read them.
"""

_QUOTA = {
    "RateLimit-Policy": {
        "schema": {"type": "string"},
        "description": 'Quota and window in s: `"searches";q=600;w=60`.',
    },
    "RateLimit": {
        "schema": {"type": "string"},
        "description": 'What is left, and s until more: `"searches";r=599;t=1`.',
    },
}
_RETRY_AFTER = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}, "description": "Seconds."}}
_REFERENCE = "#/components/schemas/{model}"


def describe_errors(*errors: type[ApplicationError]) -> dict[int | str, dict[str, Any]]:
    """Return the description of the answers for errors, by status. Several problem types may share a status."""
    described: dict[int | str, dict[str, Any]] = {}
    for status in sorted({error.problem.status for error in errors}):
        kinds = [error for error in errors if error.problem.status == status]
        types = list(dict.fromkeys(map(type_of, kinds)))
        schema = {"allOf": [{"$ref": _REFERENCE.format(model="Problem")}, {"properties": {"type": {"enum": types}}}]}
        headers = _RETRY_AFTER if any(error.problem.retry_in for error in kinds) else {}
        headers = headers | (_QUOTA if TooManySearches in kinds else {})
        described[status] = {
            "description": "; ".join(dict.fromkeys(f"{each.problem.title} (`{type_of(each)}`)" for each in kinds)),
            "content": {MEDIA_TYPE: {"schema": schema}},
            **({"headers": headers} if headers else {}),
        }
    return described


_ANY = (InvalidMessage, BodyRefused, UriTooLong, ApplicationError, SearchUnavailable)
_SEARCH_RESPONSES = {
    200: {"headers": _QUOTA},
    **describe_errors(*_ANY, PackNotFound, TooManySearches, NotPlaced, Overloaded, PackError, SearchTimeout),
}

router = APIRouter(prefix="/api/v1")


@router.get("/search", response_model=SearchAnswer, operation_id="search", responses=_SEARCH_RESPONSES)
async def search(request: Request, parameters: Annotated[SearchParameters, Query()]) -> Response:
    """Search one site or several."""
    client: SearchClient = request.app.state.search_client
    domains = parameters.domain or await run_in_threadpool(_all_domains, client)
    query = parameters.request(domains, languages=languages_of(request))
    if parameters.exact:
        result = await client.asearch(query)
    else:
        result = await search_corrected(client, query, may_repeat=request.scope.get(CHARGE_AGAIN))
    # Defaults are left out of the next page's address, which gets an offset of its own.
    given = parameters.model_dump(exclude={"offset"}, exclude_defaults=True)
    link = f"{router.prefix}/search?{urlencode(given, doseq=True)}"
    response = json_response(search_answer(result, query, link=link, names=request.app.state.site_names()))
    response.headers.update(VARY)
    return response


@router.get("/suggest", response_model=SuggestAnswer, operation_id="suggest", responses=_SEARCH_RESPONSES)
async def suggest(request: Request, parameters: Annotated[SuggestParameters, Query()]) -> Response:
    """Suggest how a query may go on."""
    client: SearchClient = request.app.state.search_client
    domains = parameters.domain or await run_in_threadpool(_all_domains, client)
    suggestions = await run_in_threadpool(client.suggest, tuple(domains), parameters.q, limit=parameters.limit)
    uncounted = request.app.state.uncounted_client
    languages = languages_of(request)
    pages = await run_in_threadpool(
        suggested_pages, uncounted, domains, parameters.q, most=parameters.pages, languages=languages
    )
    response = json_response(SuggestAnswer(query=parameters.q, suggestions=suggestions, pages=pages))
    response.headers.update(VARY)
    return response


@router.get("/domains", response_model=DomainsAnswer, operation_id="domains", responses=describe_errors(*_ANY))
async def domains(request: Request) -> Response:
    """List what can be searched."""
    routes = await run_in_threadpool(request.app.state.search_client.routes)
    names = request.app.state.site_names()
    ordered = sorted(routes.routes, key=lambda route: route.domain)
    return json_response(DomainsAnswer(domains=tuple(domain_answer(route, names) for route in ordered)))


def _all_domains(client: SearchClient) -> list[str]:
    """Return all indexed domains; raises PackNotFound without any, InvalidMessage if they are too many."""
    domains = sorted(route.domain for route in client.routes().routes)
    if not domains:
        raise PackNotFound("no site is indexed yet")
    if len(domains) > MAX_DOMAINS:
        raise InvalidMessage(f"there are {len(domains)} sites: name up to {MAX_DOMAINS} of them as `domain`")
    return domains


def describe_api(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description, in which the response to invalid parameters is a problem, not FastAPI's 422."""
    if not app.openapi_schema:
        document = get_openapi(title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes)
        schemas = document["components"]["schemas"]
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        schemas["Problem"] = TypeAdapter(Problem).json_schema(ref_template=_REFERENCE, mode="serialization")
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        app.openapi_schema = document
    return app.openapi_schema
