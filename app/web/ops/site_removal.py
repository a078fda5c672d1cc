"""Pages that take a site, or one page of it, out of store, packs and searchers."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse

from app.broker.errors import InvalidMessage
from app.crawl.urls import parse_domain
from app.operations import removal
from app.web.middleware import OPS_PAGES
from app.web.ops.site_page import site_path
from app.web.ops.visits import Acting, Reading, Visit

router = APIRouter()

#: Seconds that a request waits for a packer at work on the site.
PACKER_WAIT: Final = 20.0


@router.get("/sites/{domain}/remove", response_class=HTMLResponse)
def confirm(visit: Reading, domain: str) -> HTMLResponse:
    """Show what there is of a site, and the form that deletes it."""
    return _confirm(visit, domain)


@router.post("/sites/{domain}/remove")
def remove(visit: Acting, domain: str) -> Response:
    """Delete all there is of a site whose domain was typed, and open the list."""
    name = parse_domain(domain)
    if visit.value("confirm") != name:
        return _confirm(visit, domain, fault=f"type {name} to delete all of it", status=400)
    [deleted], letters = removal.remove_sites(visit.ops, [name], why=visit.value("why"), packer_wait=PACKER_WAIT)
    note = f"{name} is deleted: {deleted}; {letters} dead letters. Workers drop its messages, searchers follow."
    return visit.back(f"{OPS_PAGES}/sites", note)


@router.post("/sites/{domain}/block")
def block(visit: Acting, domain: str) -> Response:
    """Block a page of the site."""
    name = parse_domain(domain)
    page = removal.block(visit.ops, _url(visit), site=name, why=visit.value("why"))
    text = "removed; searchers follow" if page.stored else "it was not stored"
    return visit.back(site_path(name), f"{page.url} is blocked, and {text}.")


@router.post("/sites/{domain}/unblock")
def unblock(visit: Acting, domain: str) -> Response:
    """Allow a blocked page of the site again."""
    name = parse_domain(domain)
    page = removal.unblock(visit.ops, _url(visit), site=name, why=visit.value("why"))
    return visit.back(site_path(name), f"{page.url} is no longer blocked. The next crawl indexes it.")


def _url(visit: Visit) -> str:
    url = visit.value("url")
    if not url:
        raise InvalidMessage("url: expected the address of a page")
    return url


def _confirm(visit: Visit, domain: str, *, fault: str = "", status: int = 200) -> HTMLResponse:
    name = parse_domain(domain)
    found = removal.holdings(visit.ops, name)
    return visit.page("site_remove.html", status=status, found=found, domain=name, base=site_path(name), fault=fault)
