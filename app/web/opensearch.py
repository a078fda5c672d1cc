"""The search page as an engine of a browser's search bar: description and suggestions of OpenSearch 1.1."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.broker.errors import InvalidMessage
from app.cluster.client.contract import MAX_DOMAINS, SearchClient
from app.cluster.protocol import Routes
from app.crawl.urls import parse_domain
from app.errors import InvalidQuery, PackNotFound
from app.web.dependencies import Client

DESCRIPTION = "application/opensearchdescription+xml"
SUGGESTIONS = "application/x-suggestions+json"
NAMESPACE = "http://a9.com/-/spec/opensearch/1.1/"
#: Characters of ShortName and LongName (OpenSearch 1.1 draft 6, section 4.2).
MAX_SHORT_NAME, MAX_LONG_NAME = 16, 48

#: A host as a request may name it, with its port. What is not of this form is not written into a description.
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")

router = APIRouter(include_in_schema=False)

Domains = Annotated[Sequence[str], Query()]


@router.get("/opensearch.xml")
async def description(request: Request, client: Client, domain: Domains = ()) -> Response:
    """Describe the search of all sites, or of those named, which must have been indexed."""
    wanted = _named(domain)
    if wanted:
        known = {route.domain for route in (await run_in_threadpool(client.routes)).routes}
        if never := [one for one in wanted if one not in known]:
            raise PackNotFound(f"{', '.join(never)} has no pack")
    return Response(describe(_base(request), wanted), media_type=DESCRIPTION)


@router.get("/suggest")
async def suggest(client: Client, q: str = "", domain: Domains = ()) -> Response:
    """Suggest how a query may go on, as browsers read it. What cannot be searched for goes on as nothing."""
    found = await run_in_threadpool(_suggestions, client, _named(domain), q)
    return Response(json.dumps([q, found], ensure_ascii=False).encode(errors="replace"), media_type=SUGGESTIONS)


def describe(base: str, domains: Sequence[str]) -> bytes:
    """Return the description document (OpenSearch 1.1 draft 6, section 4) of the search at `base`, a URL without path.

    Its elements ShortName, Description and Url are those required.
    """
    where = ", ".join(domains)
    long_name = f"Perennial: {where}" if where else "Perennial"
    chosen = urlencode([("domain", domain) for domain in domains])
    # `{` of a domain would begin a template's parameter; urlencode leaves none.
    query = f"{chosen}&q={{searchTerms}}" if chosen else "q={searchTerms}"
    root = ET.Element("OpenSearchDescription", xmlns=NAMESPACE)
    _add(root, "ShortName", _cut(where or "Perennial", MAX_SHORT_NAME))
    _add(root, "LongName", _cut(long_name, MAX_LONG_NAME))
    _add(root, "Description", _cut(f"Search {where}" if where else "Search all sites that are indexed here", 1_024))
    _add(root, "Image", f"{base}/static/icon.svg", height="16", width="16", type="image/svg+xml")
    _add(root, "Url", type="text/html", template=f"{base}/?{query}")
    _add(root, "Url", type=SUGGESTIONS, rel="suggestions", template=f"{base}/suggest?{query}")
    itself = f"{base}/opensearch.xml{'?' if chosen else ''}{chosen}"
    _add(root, "Url", type=DESCRIPTION, rel="self", template=itself)
    _add(root, "InputEncoding", "UTF-8")
    _add(root, "OutputEncoding", "UTF-8")
    document: bytes = ET.tostring(root, encoding="UTF-8", xml_declaration=True)
    return document


def _add(parent: ET.Element, name: str, text: str | None = None, **attributes: str) -> None:
    ET.SubElement(parent, name, attributes).text = text


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _suggestions(client: SearchClient, domains: Sequence[str], q: str) -> Sequence[str]:
    domains = domains or _all(client.routes())
    try:
        return client.suggest(domains, q) if domains and q.strip() else ()
    except InvalidQuery:
        return ()


def _all(routes: Routes) -> Sequence[str]:
    """Return all domains that a searcher answers for; none where they are more than can be asked at once."""
    domains = sorted(route.domain for route in routes.routes if route.searchers)
    return domains if len(domains) <= MAX_DOMAINS else ()


def _named(domains: Sequence[str]) -> Sequence[str]:
    return tuple(dict.fromkeys(parse_domain(domain) for domain in domains if domain.strip()))


def _base(request: Request) -> str:
    """Return the URL that this server was asked at, without a path; raises InvalidMessage for a host that is none."""
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        raise InvalidMessage("the request names no host that could stand in a URL")
    return f"{request.url.scheme}://{host}{request.scope.get('root_path', '')}"
