"""The page of one site: its fields, its crawls, its pack, and the acts on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from app.broker.errors import ApplicationError, InvalidMessage
from app.cluster.protocol import Routes
from app.crawl.record.crawls import CrawlState
from app.crawl.urls import parse_domain
from app.errors import InvalidSite
from app.operations import crawls, sites
from app.operations.site_view import edition, site_view
from app.sites.site import Site
from app.web.middleware import OPS_PAGES
from app.web.ops.site_form import FIELDS, form_fields, texts_of, values_of
from app.web.ops.visits import Acting, Reading, Visit

router = APIRouter()

#: Blocked URLs that the page shows.
_SHOWN_BLOCKED: Final = 100


def routes_of(request: Request) -> Routes | None:
    """Return which searchers serve which packs, or None while the orchestrator does not say so."""
    try:
        routes: Routes = request.app.state.search_client.routes()
    except ApplicationError:
        return None
    return routes


def site_path(domain: str) -> str:
    """Return the path of a site's page."""
    return f"{OPS_PAGES}/sites/{quote(domain, safe='')}"


@router.get("/sites/{domain}", response_class=HTMLResponse)
def show(visit: Reading, domain: str) -> HTMLResponse:
    """Show a site."""
    return show_site(visit, domain)


@router.post("/sites/{domain}")
def change(visit: Acting, domain: str) -> Response:
    """Change the fields that differ; where one is invalid, show the form again with what was entered."""
    texts = {name: visit.value(name) for name in FIELDS}

    def fields_of(site: Site) -> Mapping[str, Any]:
        if edition(site) != visit.value("edition"):
            raise InvalidSite(f"{site.domain} was changed after this form was opened: compare, and send it again")
        return values_of(texts, site)

    try:
        _, changed = sites.change(visit.ops, domain, fields_of, why=visit.value("why"))
    except InvalidSite as error:
        return show_site(visit, domain, texts=texts, faults=error.faults, trouble=str(error), status=400)
    note = (
        f"Changed: {', '.join(sorted(changed))}. Workers follow within ten seconds." if changed else "Nothing changes."
    )
    return visit.back(site_path(parse_domain(domain)), note)


@router.post("/sites/{domain}/act")
def act(visit: Acting, domain: str) -> Response:
    """Do what the button says."""
    name, kind = parse_domain(domain), visit.value("act")
    if kind not in _ACTS:
        raise InvalidMessage(f"act: {kind[:40]!r} is unknown: expected one of {', '.join(_ACTS)}")
    return visit.back(site_path(name), _ACTS[kind](visit, name, visit.value("why")))


def _change_crawls(state: CrawlState) -> Callable[[Visit, str, str], str]:
    def change_state(visit: Visit, domain: str, why: str) -> str:
        if state == "cancelled" and not visit.value("sure"):
            raise InvalidMessage("sure: a cancelled crawl never goes on; tick the box to cancel it")
        changed = crawls.change_crawls(visit.ops, domain, state, why=why)
        return f"{len(changed.crawls)} crawls of {domain} are {state}."

    return change_state


def _pause(visit: Visit, domain: str, why: str) -> str:
    _, changed = sites.pause(visit.ops, domain, why=why)
    return f"{domain} is paused, and {len(changed)} crawls of it."


def _resume(visit: Visit, domain: str, why: str) -> str:
    _, changed = sites.resume(visit.ops, domain, why=why)
    return f"{domain} is active, and {len(changed)} crawls of it go on."


def _pack(visit: Visit, domain: str, why: str) -> str:
    full, force = visit.value("full") == "on", visit.value("force") == "on"
    return f"{crawls.pack(visit.ops, domain, full=full, force=force, why=why).posted} of {domain} is posted."


def _repair(visit: Visit, domain: str, why: str) -> str:
    actions = crawls.repair(visit.ops, domain, why=why)
    return "; ".join(map(str, actions)) or f"{domain}: nothing was missing."


_ACTS: Final[Mapping[str, Callable[[Visit, str, str], str]]] = {
    "pause-crawls": _change_crawls("paused"),
    "resume-crawls": _change_crawls("running"),
    "cancel-crawls": _change_crawls("cancelled"),
    "pause-site": _pause,
    "resume-site": _resume,
    "pack": _pack,
    "repair": _repair,
}


def show_site(
    visit: Visit,
    domain: str,
    *,
    texts: Mapping[str, str] | None = None,
    faults: Mapping[str, str] | None = None,
    trouble: str = "",
    status: int = 200,
) -> HTMLResponse:
    """Return the page of a site; its form has these texts, or else the site's own."""
    view = site_view(visit.ops, domain, routes_of(visit.request))
    site = view.site
    return visit.page(
        "site.html",
        status=status,
        view=view,
        site=site,
        fields=form_fields(texts or texts_of(site), faults or {}) if site else [],
        edition=edition(site) if site else "",
        start_url=site.seeds[0] if site else f"https://{view.domain}/",
        blocked=site.blocked[:_SHOWN_BLOCKED] if site else (),
        trouble=trouble,
        base=site_path(view.domain),
    )
