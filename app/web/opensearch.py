"""OpenSearch 1.1: the description and the suggestions that a browser's search bar uses."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.broker.errors import InvalidMessage
from app.cluster.client.contract import MAX_DOMAINS, SearchClient
from app.errors import InvalidQuery, PackNotFound
from app.text.humanize import cut
from app.web.languages import VARY, languages_of
from app.web.pages import templates
from app.web.shown_urls import parse_domains
from app.web.suggested_pages import suggested_pages

DESCRIPTION = "application/opensearchdescription+xml"
SUGGESTIONS = "application/x-suggestions+json"
#: Characters of ShortName and LongName (OpenSearch 1.1 draft 6, section 4.2).
MAX_SHORT_NAME, MAX_LONG_NAME = 16, 48
#: Pages that the search page suggests.
_PAGES = 4

#: A host with its port in the request's Host field. No other text is written into a description.
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")

router = APIRouter(include_in_schema=False)

Domains = Annotated[Sequence[str], Query()]


@router.get("/opensearch.xml")
async def description(request: Request, domain: Domains = ()) -> Response:
    """Describe the search of all sites, or of the given ones, which must be indexed."""
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        raise InvalidMessage("the request's Host field is no host name")
    domains = parse_domains(domain)
    if domains:
        indexed = {route.domain for route in (await run_in_threadpool(request.app.state.search_client.routes)).routes}
        if missing := [name for name in domains if name not in indexed]:
            raise PackNotFound(f"{', '.join(missing)} has no pack")
    base = f"{request.url.scheme}://{host}{request.scope.get('root_path', '')}"
    return Response(describe(base, domains), media_type=DESCRIPTION)


@router.get("/suggest")
def suggest(request: Request, q: str = "", domain: Domains = (), pages: str = "") -> Response:
    """Suggest how a query may go on, in the format of browsers. An invalid query has no suggestions.

    Without `domain`, suggestions come from all sites with a searcher, unless these are more than MAX_DOMAINS. With
    `pages`, the search page's script gets pages as a fifth element, after descriptions and URLs, which are empty.
    """
    client: SearchClient = request.app.state.search_client
    domains: Sequence[str] = parse_domains(domain)
    suggestions: Sequence[str] = ()
    if not domains:
        placed = sorted(route.domain for route in client.routes().routes if route.searchers)
        domains = placed if len(placed) <= MAX_DOMAINS else ()
    if domains and q.strip():
        with suppress(InvalidQuery):
            suggestions = client.suggest(domains, q)
    answer: list[object] = [q, suggestions]
    if pages:
        uncounted = request.app.state.uncounted_client
        languages = languages_of(request)
        found = suggested_pages(uncounted, domains, q, most=_PAGES, languages=languages) if q.strip() else ()
        answer += [[], [], [asdict(page) for page in found]]
    content = json.dumps(answer, ensure_ascii=False).encode(errors="replace")
    return Response(content, media_type=SUGGESTIONS, headers=VARY)


def describe(base: str, domains: Sequence[str]) -> str:
    """Return the description document (OpenSearch 1.1 draft 6, section 4) of the search at `base`, a URL without path.

    Its elements ShortName, Description and Url are required.
    """
    sites = ", ".join(domains)
    chosen = urlencode([("domain", domain) for domain in domains])
    # urlencode encodes `{`, which would begin a parameter of the template.
    query = f"{chosen}&q={{searchTerms}}" if chosen else "q={searchTerms}"
    return templates.get_template("opensearch.xml").render(
        base=base,
        query=query,
        short_name=cut(sites or "Perennial", MAX_SHORT_NAME),
        long_name=cut(f"Perennial: {sites}" if sites else "Perennial", MAX_LONG_NAME),
        description=cut(f"Search {sites}" if sites else "Search all sites that are indexed here", 1_024),
        suggestions=SUGGESTIONS,
        own_url=f"{base}/opensearch.xml{'?' if chosen else ''}{chosen}",
    )
