"""Pages of sites: all of them in a list, with forms to add one and to index a page."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse

from app.broker.errors import InvalidMessage
from app.errors import InvalidSite
from app.operations import crawls, sites
from app.operations.site_list import PER_PAGE, list_page
from app.web.ops import site_page, site_removal, site_urls
from app.web.ops.site_page import routes_of, site_path
from app.web.ops.site_urls import PageNumber
from app.web.ops.visits import Acting, Reading, Visit

router = APIRouter()
for _module in (site_page, site_removal, site_urls):
    router.include_router(_module.router)


@router.get("/sites", response_class=HTMLResponse)
def list_sites(visit: Reading, q: str = "", page: PageNumber = 1) -> HTMLResponse:
    """Show a page of the sites whose domain contains `q`."""
    return _list(visit, q=q, page=page)


@router.post("/sites")
def add(visit: Acting) -> Response:
    """Add a site, and open its page."""
    given = {name: visit.value(name) for name in ("domain", "schedule")}
    fields = {"schedule": given["schedule"]} if given["schedule"] else {}
    try:
        site = sites.add(visit.ops, given["domain"], fields, why=visit.value("why"))
    except (InvalidSite, InvalidMessage) as error:
        return _list(visit, given=given, faults={"add": str(error)}, status=400)
    return visit.back(site_path(site.domain), f"{site.domain} is a site now.")


@router.post("/index")
def index(visit: Acting) -> Response:
    """Post the index of a page, or of a site from it, and open the site's page."""
    given = {"url": visit.value("url"), "how": visit.value("how")}
    crawl, now = given["how"] == "crawl", given["how"] == "now"
    try:
        page = crawls.index(visit.ops, given["url"], crawl=crawl, now=now, why=visit.value("why"))
    except InvalidMessage as error:
        return _list(visit, given=given, faults={"index": str(error)}, status=400)
    text = f"The crawl from {page.url} is posted." if crawl else f"The index of {page.url} is posted."
    return visit.back(site_path(page.domain), f"{text} A worker begins it.")


def _list(
    visit: Visit,
    *,
    q: str = "",
    page: int = 1,
    given: dict[str, str] | None = None,
    faults: dict[str, str] | None = None,
    status: int = 200,
) -> HTMLResponse:
    routes = routes_of(visit.request)
    found = list_page(visit.ops, text=q, offset=(page - 1) * PER_PAGE, routes=routes)
    nothing = {"domain": "", "schedule": "", "url": "", "how": "crawl"}
    return visit.page(
        "sites.html",
        status=status,
        found=found,
        q=q,
        number=page,
        has_more=page * PER_PAGE < found.matching,
        is_known=routes is not None,
        given={**nothing, **(given or {})},
        faults={"add": "", "index": "", **(faults or {})},
    )
