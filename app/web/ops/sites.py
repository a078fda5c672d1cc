"""All sites in a list, and acts that add one and index a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import Field

from app.broker.errors import InvalidMessage
from app.errors import InvalidSite
from app.operations import crawls, sites
from app.operations.site_list import PER_PAGE, SitesPage, list_page
from app.web.models import MAX_DOMAIN, StrictParameters
from app.web.ops.requests import ActBody, Acting, Calling, PageNumber, Reading, Subject, Url, Visit, answer
from app.web.ops.site_page import ChangedAnswer, Fields, changed_site, routes_of, site_path

subject = Subject()


class ListParameters(StrictParameters):
    """Query parameters of the list of sites."""

    text: str = Field("", max_length=MAX_DOMAIN, description="Only domains that contain this.")
    offset: int = Field(0, ge=0, le=100_000_000, description="Sites to leave out at the beginning.")
    limit: int = Field(PER_PAGE, ge=1, le=100, description="Sites to answer with, at most.")


class AddBody(ActBody):
    """A site to add."""

    domain: str = Field(min_length=1, max_length=MAX_DOMAIN, examples=["docs.example.org"])
    fields: Fields = Field(default_factory=dict)


class IndexBody(ActBody):
    """What to index."""

    url: Url
    crawl: bool = Field(False, description="Follow its links, and pack the whole site.")
    now: bool = Field(False, description="Pack the page as soon as it is stored; not with `crawl`.")


@subject.pages.get("/sites", response_class=HTMLResponse)
def show_list(visit: Reading, q: str = "", page: PageNumber = 1) -> HTMLResponse:
    """Show a page of the sites whose domain contains `q`."""
    return _list(visit, q=q, page=page)


@subject.pages.post("/sites")
def add(visit: Acting) -> Response:
    """Add a site, and open its page."""
    given = {name: visit.value(name) for name in ("domain", "schedule", "why")}
    fields: dict[str, Any] = {"schedule": given["schedule"]} if given["schedule"] else {}
    if start_url := visit.value("start_url"):
        fields["start_urls"] = [start_url]
    try:
        site = sites.add(visit.ops, given["domain"], fields, why=given["why"])
    except InvalidSite as error:
        return _list(visit, given=given, faults=error.faults or {"domain": str(error)})
    except InvalidMessage as error:
        return _list(visit, given=given, faults={"domain": str(error)})
    return visit.back(site_path(site.domain), f"{site.domain} is a site now.")


@subject.pages.post("/index")
def post_index(visit: Acting) -> Response:
    """Post the index of a page, or of a site from it, and open the site's page."""
    given = {name: visit.value(name) for name in ("url", "how", "why")}
    crawl, now = given["how"] == "crawl", given["how"] == "now"
    try:
        page = crawls.index(visit.ops, given["url"], crawl=crawl, now=now, why=given["why"])
    except InvalidMessage as error:
        return _list(visit, given=given, faults={"url": str(error)})
    text = f"The crawl from {page.url} is posted." if crawl else f"The index of {page.url} is posted."
    return visit.back(site_path(page.domain), f"{text} A worker begins it.")


def _list(
    visit: Visit,
    *,
    q: str = "",
    page: int = 1,
    given: Mapping[str, str] | None = None,
    faults: Mapping[str, str] | None = None,
) -> HTMLResponse:
    """Return the list; its form that has the given fields shows them again with their faults, by field."""
    routes = routes_of(visit.request)
    found = list_page(visit.ops, text=q, offset=(page - 1) * PER_PAGE, routes=routes)
    return visit.page(
        "sites.html",
        status=400 if faults else 200,
        found=found,
        q=q,
        number=page,
        has_more=page * PER_PAGE < found.matching,
        is_known=routes is not None,
        given=given or {},
        faults=faults or {},
    )


@subject.api.get("/sites", response_model=SitesPage, operation_id="list_sites")
def list_sites(request: Request, ops: Calling, parameters: Annotated[ListParameters, Query()]) -> Response:
    """List the sites that are declared, crawled or packed; those in trouble first."""
    return answer(list_page(ops, routes=routes_of(request), **parameters.model_dump()))


@subject.api.post("/sites", response_model=ChangedAnswer, operation_id="add_site")
def add_site(ops: Calling, body: AddBody) -> Response:
    """Add a site. If it has a schedule, its first crawl starts."""
    return answer(changed_site(sites.add(ops, body.domain, body.fields, why=body.why)))


@subject.api.post("/index", response_model=crawls.PostedWork, operation_id="index")
def index(ops: Calling, body: IndexBody) -> Response:
    """Index a page, or with `crawl` the whole site from it."""
    return answer(crawls.index(ops, body.url, crawl=body.crawl, now=body.now, why=body.why))
