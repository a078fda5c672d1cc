"""The search page: a form, and below it results or the reason why there are none."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app.crawl.urls import domain_named
from app.errors import InvalidMessage, InvalidQuery, PackNotFound, PerennialError
from app.router.finder import Finder, Question
from app.search.query import MAX_CHARACTERS
from app.web.faults import fault_of
from app.web.state import finder_of
from app.web.view import LAST_PAGE, PER_PAGE, PackView, ResultsView, pack_view, results_view

log = logging.getLogger(__name__)

router = APIRouter(include_in_schema=False)

_templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that the template shows. `state` is start, results, nothing, past-end, never, invalid, broken or lost."""

    state: str
    status: int = 200
    domain: str = ""
    text: str = ""
    reason: str = ""
    packs: tuple[PackView, ...] = ()
    results: ResultsView | None = None

    @property
    def pack(self) -> PackView | None:
        """The pack of the domain that is searched."""
        return next((pack for pack in self.packs if pack.domain == self.domain), None)


@router.get("/", response_class=HTMLResponse)
def search_page(
    finder: Annotated[Finder, Depends(finder_of)],
    domain: Annotated[str, Query()] = "",
    q: Annotated[str, Query()] = "",
    page: Annotated[str, Query()] = "1",
) -> HTMLResponse:
    """Show the form and, for a query, one page of results."""
    packs: tuple[PackView, ...] = ()
    try:
        packs = tuple(pack_view(route) for route in finder.routes().routes)
        view = _view(finder, packs, domain=domain.strip(), text=q, page=page)
    except PerennialError as error:
        view = _failed(error, packs, domain=domain.strip(), text=q)
    return render(view)


def render(view: View) -> HTMLResponse:
    """Return the page."""
    html = _templates.get_template("search.html").render(view=view, max_characters=MAX_CHARACTERS)
    return HTMLResponse(html, status_code=view.status)


def _view(finder: Finder, packs: tuple[PackView, ...], *, domain: str, text: str, page: str) -> View:
    domain = _chosen(packs, domain)
    if domain and all(pack.domain != domain for pack in packs):
        raise PackNotFound(domain)
    if not text.strip():
        return View(state="start", domain=domain, packs=packs)
    if not domain and packs:
        raise InvalidMessage("choose the site to search")
    number = _page_number(page)
    question = Question(q=text, domains=(domain,), offset=(number - 1) * PER_PAGE, limit=PER_PAGE)
    found = finder.search(question)
    results = results_view(found, domain=domain, text=text, page=number)
    state = "results" if results.hits else "past-end" if found.total else "nothing"
    status = 404 if state == "past-end" else 200
    return View(state=state, status=status, domain=domain, text=text, packs=packs, results=results)


def _chosen(packs: tuple[PackView, ...], domain: str) -> str:
    if domain:
        return domain_named(domain)
    return packs[0].domain if len(packs) == 1 else ""


def _page_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= LAST_PAGE):
        raise InvalidQuery(f"there is no page “{text[:40]}”: pages are numbered from 1 to {LAST_PAGE}")
    return int(text)


def _failed(error: PerennialError, packs: tuple[PackView, ...], *, domain: str, text: str) -> View:
    status = fault_of(error).status
    state = {400: "invalid", 404: "never"}.get(status, "broken")
    if state == "broken":
        log.warning("%s: %s: %s", domain or "-", type(error).__name__, error)
    domain = _readable(domain)
    return View(state=state, status=status, domain=domain, text=text, reason=str(error), packs=packs)


def _readable(domain: str) -> str:
    try:
        return domain_named(domain)
    except InvalidMessage:
        return domain
