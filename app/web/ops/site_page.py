"""One site: its fields, its crawls, its pack, and the acts on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from app.broker.errors import ApplicationError
from app.cluster.protocol import Routes
from app.crawl.urls import parse_domain
from app.errors import InvalidSite
from app.operations import crawls, sites
from app.operations.site_view import CrawlFigures, RunningCrawl, ServedPack, edition, site_view
from app.sites.site import Site
from app.web.ops.requests import ActBody, Acting, Calling, Domain, Done, Reading, Subject, Visit, answer
from app.web.ops.site_form import FIELDS, changed_meanwhile, form_fields, texts_of, values_of
from app.web.paths import OPS_PAGES

subject = Subject()

Fields = Annotated[
    dict[str, Any], Field(description="Fields as `perennial site show --json` prints them.", max_length=100)
]

#: Blocked URLs that the page shows.
_SHOWN_BLOCKED: Final = 100


class ChangeBody(ActBody):
    """Fields to change; the others stay."""

    fields: Fields


class CrawlsBody(ActBody):
    """The state that the crawls of a site get."""

    state: Literal["paused", "running", "cancelled"]


class PackBody(ActBody):
    """How to pack."""

    full: bool = Field(False, description="Rebuild the pack from every stored page.")
    force: bool = Field(False, description="Replace the pack even by a much smaller one.")


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


def routes_of(request: Request) -> Routes | None:
    """Return which searchers serve which packs, or None while the orchestrator does not say so."""
    try:
        routes: Routes = request.app.state.uncounted_client.current_routes()
    except ApplicationError:
        return None
    return routes


def site_path(domain: str) -> str:
    """Return the path of a site's page."""
    return f"{OPS_PAGES}/sites/{quote(domain, safe='')}"


@subject.pages.get("/sites/{domain}", response_class=HTMLResponse)
def show(visit: Reading, domain: str) -> HTMLResponse:
    """Show a site."""
    return site_page(visit, domain)


@subject.pages.post("/sites/{domain}")
def change(visit: Acting, domain: str) -> Response:
    """Change the fields that differ; where one is invalid, show the form again with what was entered."""
    texts = {name: visit.value(name) for name in FIELDS}

    def fields_of(site: Site) -> Mapping[str, Any]:
        if edition(site) != visit.value("edition"):
            raise changed_meanwhile(texts, site)
        return values_of(texts, site)

    try:
        _, changed = sites.change(visit.ops, domain, fields_of, why=visit.value("why"))
    except InvalidSite as error:
        return site_page(visit, domain, texts=texts, refusal=error)
    note = (
        f"Changed: {', '.join(sorted(changed))}. Workers follow within ten seconds." if changed else "Nothing changes."
    )
    return visit.back(site_path(parse_domain(domain)), note)


def site_page(
    visit: Visit,
    domain: str,
    *,
    texts: Mapping[str, str] | None = None,
    refusal: InvalidSite | None = None,
    url_fault: str = "",
) -> HTMLResponse:
    """Return the page of a site; its form has the texts that were refused, or else the site's own.

    `url_fault` is why the URL was refused that the form of blocked pages has sent.
    """
    view = site_view(visit.ops, domain, routes_of(visit.request))
    site = view.site
    return visit.page(
        "site.html",
        status=400 if refusal or url_fault else 200,
        view=view,
        site=site,
        fields=form_fields(texts or texts_of(site), refusal.faults if refusal else {}) if site else [],
        edition=edition(site) if site else "",
        blocked=site.blocked[:_SHOWN_BLOCKED] if site else (),
        trouble=str(refusal) if refusal else "",
        url=visit.value("url") if url_fault else "",
        url_fault=url_fault,
        why=visit.value("why"),
        base=site_path(view.domain),
    )


@subject.api.get("/sites/{domain}", response_model=SiteAnswer, operation_id="show_site")
def show_site(request: Request, ops: Calling, domain: Domain) -> Response:
    """Show a site: its fields, its crawls, its pack and where that is served."""
    return answer(site_view(ops, domain, routes_of(request)).as_json())


@subject.api.post("/sites/{domain}", response_model=ChangedAnswer, operation_id="change_site")
def change_site(ops: Calling, domain: Domain, body: ChangeBody) -> Response:
    """Change fields of a site. Workers follow within ten seconds."""
    site, differing = sites.change(ops, domain, lambda _: body.fields, why=body.why)
    return answer(changed_site(site, fields=sorted(differing)))


@subject.act("/sites/{domain}/pause", response_model=ChangedAnswer, operation_id="pause_site")
def pause_site(ops: Calling, domain: Domain, body: ActBody) -> Done:
    """Pause a site: its crawls and its schedule."""
    site, ids = sites.pause(ops, domain, why=body.why)
    note = f"{site.domain} is paused; crawls that are paused now: {len(ids)}."
    return Done(changed_site(site, ids), site_path(site.domain), note)


@subject.act("/sites/{domain}/resume", response_model=ChangedAnswer, operation_id="resume_site")
def resume_site(ops: Calling, domain: Domain, body: ActBody) -> Done:
    """Resume a paused site and its crawls."""
    site, ids = sites.resume(ops, domain, why=body.why)
    note = f"{site.domain} is active; crawls that go on: {len(ids)}."
    return Done(changed_site(site, ids), site_path(site.domain), note)


@subject.act("/sites/{domain}/crawls", response_model=crawls.ChangedCrawls, operation_id="change_crawls")
def change_crawls(ops: Calling, domain: Domain, body: CrawlsBody) -> Done:
    """Pause, resume or cancel the crawls of a site. A cancelled one never goes on."""
    changed = crawls.change_crawls(ops, domain, body.state, why=body.why)
    note = f"Crawls of {changed.domain} that are {changed.state} now: {len(changed.crawls)}."
    return Done(changed, site_path(changed.domain), note)


@subject.act("/sites/{domain}/pack", response_model=crawls.PostedWork, operation_id="pack_site")
def pack_site(ops: Calling, domain: Domain, body: PackBody) -> Done:
    """Pack a site now."""
    work = crawls.pack(ops, domain, full=body.full, force=body.force, why=body.why)
    return Done(work, site_path(work.domain), f"{work.posted} of {work.domain} is posted.")


@subject.act("/sites/{domain}/repair", response_model=RepairAnswer, operation_id="repair_site")
def repair_site(ops: Calling, domain: Domain, body: ActBody) -> Done:
    """Compare the store with Redis, and begin again what is missing there."""
    name = parse_domain(domain)
    actions = [str(each) for each in crawls.repair(ops, name, why=body.why)]
    note = "; ".join(actions) or f"{name}: nothing was missing."
    return Done({"domain": name, "actions": actions}, site_path(name), note)


def changed_site(site: Site, ids: Sequence[str] = (), *, fields: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return a site after an act, as `ChangedAnswer` describes it."""
    return {"domain": site.domain, "fields": site.fields(), "changed": fields, "crawls": ids}
