"""The operators' API: list, show, add, change and remove sites, and act on their crawls, packs and pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field

from app.broker.errors import InvalidMessage
from app.crawl.reports.explanation import PastEntry
from app.crawl.urls import parse_domain
from app.operations import crawls, removal, sites
from app.operations.site_list import PER_PAGE, SitesPage, list_page
from app.operations.site_view import CrawlFigures, RunningCrawl, ServedPack, SiteSearches, searches, site_view
from app.sites.removal import Holdings
from app.sites.site import Site
from app.web.models import MAX_DOMAIN, StrictParameters
from app.web.ops.site_page import routes_of
from app.web.ops.site_removal import PACKER_WAIT
from app.web.ops_api.callers import ActBody, Calling, answer

Domain = Annotated[
    str, Path(min_length=1, max_length=MAX_DOMAIN, description="The site's domain.", examples=["docs.example.org"])
]
_Url = Annotated[
    str, Field(min_length=1, max_length=2_000, description="A page.", examples=["https://docs.example.org/a"])
]
_Fields = Annotated[
    dict[str, Any], Field(description="Fields as `perennial site show --json` prints them.", max_length=100)
]
_OfSite = Annotated[str, Field(max_length=MAX_DOMAIN, description="The site, if it is not the host of the URL.")]


class ListParameters(StrictParameters):
    """Query parameters of the list of sites."""

    text: str = Field("", max_length=MAX_DOMAIN, description="Only domains that contain this.")
    offset: int = Field(0, ge=0, le=100_000_000, description="Sites to leave out at the beginning.")
    limit: int = Field(PER_PAGE, ge=1, le=100, description="Sites to answer with, at most.")


class HistoryParameters(StrictParameters):
    """Query parameters of the history of a URL."""

    url: _Url
    domain: _OfSite = ""


class AddBody(ActBody):
    """A site to add."""

    domain: str = Field(min_length=1, max_length=MAX_DOMAIN, examples=["docs.example.org"])
    fields: _Fields = Field(default_factory=dict)


class ChangeBody(ActBody):
    """Fields to change; the others stay."""

    fields: _Fields


class CrawlsBody(ActBody):
    """The state that the crawls of a site get."""

    state: Literal["paused", "running", "cancelled"]


class PackBody(ActBody):
    """How to pack."""

    full: bool = Field(False, description="Rebuild the pack from every stored page.")
    force: bool = Field(False, description="Replace the pack even by a much smaller one.")


class IndexBody(ActBody):
    """What to index."""

    url: _Url
    crawl: bool = Field(False, description="Follow its links, and pack the whole site.")
    now: bool = Field(False, description="Pack the page as soon as it is stored; not with `crawl`.")


class RemoveBody(ActBody):
    """The confirmation of a removal."""

    confirm: str = Field(max_length=MAX_DOMAIN, description="The domain once more.")


class PageBody(ActBody):
    """A page to block or unblock."""

    url: _Url
    domain: _OfSite = ""


class SiteAnswer(BaseModel):
    """One site. Of secrets it has the names."""

    domain: str
    fields: dict[str, Any] | None = Field(description="Fields that differ from their defaults; null without a site.")
    fault: str = Field(description="Why the fields cannot be read, or empty.")
    plan: dict[str, Any] | None = Field(description="State, schedule, last and next start.")
    pack: dict[str, Any] | None
    served: ServedPack
    running: RunningCrawl | None
    crawls: list[CrawlFigures] = Field(description="The latest one first.")
    timer: float | None = Field(description="Seconds until the timer is due.")
    callback: str | None
    damaged: list[str] = Field(description="Keys of objects that could not be read.")


class ChangedAnswer(BaseModel):
    """A site after an act."""

    domain: str
    fields: dict[str, Any]
    changed: list[str] = Field([], description="Names of the fields that were changed.")
    crawls: list[str] = Field([], description="Ids of the crawls that were changed.")


class RepairAnswer(BaseModel):
    """What was begun again."""

    domain: str
    actions: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedAnswer(Holdings):
    """What there was of a site that was removed."""

    removed_dead_letters: int


router = APIRouter()


@router.get("/sites", response_model=SitesPage, operation_id="list_sites")
def list_sites(request: Request, ops: Calling, parameters: Annotated[ListParameters, Query()]) -> Response:
    """List the sites that are declared, crawled or packed; those in trouble first."""
    return answer(list_page(ops, routes=routes_of(request), **parameters.model_dump()))


@router.post("/sites", response_model=ChangedAnswer, operation_id="add_site")
def add_site(ops: Calling, body: AddBody) -> Response:
    """Add a site. If it has a schedule, its first crawl starts."""
    return _changed(sites.add(ops, body.domain, body.fields, why=body.why))


@router.get("/sites/{domain}", response_model=SiteAnswer, operation_id="show_site")
def show_site(request: Request, ops: Calling, domain: Domain) -> Response:
    """Show a site: its fields, its crawls, its pack and where that is served."""
    return answer(site_view(ops, domain, routes_of(request)).as_json())


@router.post("/sites/{domain}", response_model=ChangedAnswer, operation_id="change_site")
def change_site(ops: Calling, domain: Domain, body: ChangeBody) -> Response:
    """Change fields of a site. Workers follow within ten seconds."""
    site, differing = sites.change(ops, domain, lambda _: body.fields, why=body.why)
    return _changed(site, fields=sorted(differing))


@router.post("/sites/{domain}/pause", response_model=ChangedAnswer, operation_id="pause_site")
def pause_site(ops: Calling, domain: Domain, body: ActBody) -> Response:
    """Pause a site: its crawls and its schedule."""
    return _changed(*sites.pause(ops, domain, why=body.why))


@router.post("/sites/{domain}/resume", response_model=ChangedAnswer, operation_id="resume_site")
def resume_site(ops: Calling, domain: Domain, body: ActBody) -> Response:
    """Resume a paused site and its crawls."""
    return _changed(*sites.resume(ops, domain, why=body.why))


@router.post("/sites/{domain}/crawls", response_model=crawls.ChangedCrawls, operation_id="change_crawls")
def change_crawls(ops: Calling, domain: Domain, body: CrawlsBody) -> Response:
    """Pause, resume or cancel the crawls of a site. A cancelled one never goes on."""
    return answer(crawls.change_crawls(ops, domain, body.state, why=body.why))


@router.post("/sites/{domain}/pack", response_model=crawls.PostedWork, operation_id="pack_site")
def pack_site(ops: Calling, domain: Domain, body: PackBody) -> Response:
    """Pack a site now."""
    return answer(crawls.pack(ops, domain, full=body.full, force=body.force, why=body.why))


@router.post("/sites/{domain}/repair", response_model=RepairAnswer, operation_id="repair_site")
def repair_site(ops: Calling, domain: Domain, body: ActBody) -> Response:
    """Compare the store with Redis, and begin again what is missing there."""
    name = parse_domain(domain)
    return answer({"domain": name, "actions": list(map(str, crawls.repair(ops, name, why=body.why)))})


@router.get("/sites/{domain}/holdings", response_model=Holdings, operation_id="site_holdings")
def site_holdings(ops: Calling, domain: Domain) -> Response:
    """Report what there is of a site, all of which its removal deletes."""
    return answer(removal.holdings(ops, domain))


@router.post("/sites/{domain}/remove", response_model=RemovedAnswer, operation_id="remove_site")
def remove_site(ops: Calling, domain: Domain, body: RemoveBody) -> Response:
    """Delete all there is of a site, and drop its messages. Waits for requests to the site that are under way."""
    name = parse_domain(domain)
    if body.confirm != name:
        raise InvalidMessage(f"confirm: expected {name}, since all of it is deleted")
    [deleted], letters = removal.remove_sites(ops, [name], why=body.why, packer_wait=PACKER_WAIT)
    return answer(RemovedAnswer(**asdict(deleted), removed_dead_letters=letters))


@router.get("/sites/{domain}/searches", response_model=SiteSearches, operation_id="site_searches")
def site_searches(ops: Calling, domain: Domain) -> Response:
    """Report searches without results, and clicks, of the last 30 days."""
    return answer(searches(ops, domain))


@router.post("/index", response_model=crawls.PostedWork, operation_id="index")
def index(ops: Calling, body: IndexBody) -> Response:
    """Index a page, or with `crawl` the whole site from it."""
    return answer(crawls.index(ops, body.url, crawl=body.crawl, now=body.now, why=body.why))


@router.post("/block", response_model=removal.BlockedPage, operation_id="block")
def block(ops: Calling, body: PageBody) -> Response:
    """Remove one page from store, pack and searchers, and never request it again."""
    return answer(removal.block(ops, body.url, site=body.domain, why=body.why))


@router.post("/unblock", response_model=removal.BlockedPage, operation_id="unblock")
def unblock(ops: Calling, body: PageBody) -> Response:
    """Allow a blocked page again. The next crawl indexes it."""
    return answer(removal.unblock(ops, body.url, site=body.domain, why=body.why))


@router.get("/history", response_model=list[PastEntry], operation_id="history")
def history(ops: Calling, parameters: Annotated[HistoryParameters, Query()]) -> Response:
    """Report what each of the last crawls recorded of one URL."""
    return answer(ops.reports.history(parameters.url, parameters.domain))


def _changed(site: Site, ids: Sequence[str] = (), *, fields: Sequence[str] = ()) -> Response:
    return answer({"domain": site.domain, "fields": site.fields(), "changed": fields, "crawls": ids})
