"""The search page: a form, and below it results or the reason why there are none."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app.broker.errors import ApplicationError, InvalidMessage
from app.cluster.client.contract import MAX_DOMAINS, SearchClient
from app.errors import PackNotFound
from app.search.contract import Filters, SearchResult
from app.search.query import MAX_CHARACTERS
from app.web.faults import INVALID, NEVER_INDEXED, Fault, fault_of
from app.web.presenter import Choice, PackView, ResultsView, filters_view, pack_view, results_view
from app.web.search_form import SearchForm, read_asked
from app.web.state import search_client

log = logging.getLogger(__name__)

router = APIRouter(include_in_schema=False)

_templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)

#: States that stand below the form, under the page's heading; the message of any other one brings its own.
_BELOW_FORM = frozenset(
    {
        "results",
        "nothing",
        "past-end",
        "never-indexed",
        "invalid",
        "not-placed",
        "busy",
        "timeout",
        "unavailable",
        "broken",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that the template shows. `state` is start, results, nothing, past-end, or the name of a fault.

    `never` are the domains asked that have no pack.
    """

    state: str
    status: int = 200
    asked: SearchForm = field(default_factory=SearchForm)
    reason: str = ""
    retry_after: int | None = None
    packs: tuple[PackView, ...] = ()
    results: ResultsView | None = None
    never: tuple[str, ...] = ()

    @property
    def domain(self) -> str:
        """The one site that is searched; empty where there are several."""
        domains = self.asked.domains or tuple(pack.domain for pack in self.packs)
        return domains[0] if len(domains) == 1 else ""

    @property
    def choosable(self) -> tuple[tuple[str, PackView | None], ...]:
        """The sites that the form offers with their packs; those asked for too, where what there is is not known."""
        known = {pack.domain: pack for pack in self.packs}
        unknown = [domain for domain in self.asked.domains if domain not in known and domain not in self.never]
        return (*known.items(), *((domain, None) for domain in unknown))

    @property
    def chosen(self) -> str:
        """Which of several sites are searched, in a few words."""
        number, chosen = len(self.choosable), [d for d, _ in self.choosable if d in self.asked.domains]
        if not chosen:
            return f"All {number} sites" if number <= MAX_DOMAINS else f"Choose from {number} sites"
        return f"Only {' and '.join(chosen)}" if len(chosen) <= 2 else f"{len(chosen)} of {number} sites"

    @property
    def filters(self) -> tuple[Choice, ...]:
        """The filters that are set, each with the link that takes it off."""
        return filters_view(self.asked)

    @property
    def unfiltered(self) -> str:
        """The address of the same without filters."""
        return replace(self.asked, filters=Filters(), page=1).href

    @property
    def first_page(self) -> str:
        """The address of the first page of the same."""
        return replace(self.asked, page=1).href

    @property
    def sources(self) -> tuple[PackView, ...]:
        """The packs whose age the page tells: those that answered, or would answer, unless there are many."""
        if self.results:
            return self.results.sources
        return tuple(pack for pack in self.packs if pack.domain == self.domain)

    @property
    def heads_itself(self) -> bool:
        """Whether the message below the form is the page's only heading."""
        return self.state not in _BELOW_FORM


@router.get("/", response_class=HTMLResponse)
def search_page(
    finder: Annotated[SearchClient, Depends(search_client)],
    domain: Annotated[Sequence[str], Query()] = (),
    q: str = "",
    sort: str = "relevance",
    section: str = "",
    lang: str = "",
    type: str = "",
    page: str = "1",
) -> HTMLResponse:
    """Show the form and, for a query, one page of results."""
    filters = Filters(section=section, lang=lang, type=type)
    asked, fault = read_asked(text=q, domains=domain, sort=sort, filters=filters, page=page)
    packs: tuple[PackView, ...] = ()
    try:
        packs = tuple(pack_view(route) for route in finder.routes().routes)
        if len(packs) == 1 and not asked.domains:
            asked = replace(asked, domains=(packs[0].domain,))
        if fault is not None:
            raise fault
        view = _view(finder, packs, asked)
    except ApplicationError as error:
        view = _failed(error, packs, asked)
    return render(view)


def render(view: View) -> HTMLResponse:
    """Return the page."""
    html = _templates.get_template("search.html").render(
        view=view, max_characters=MAX_CHARACTERS, max_domains=MAX_DOMAINS
    )
    headers = {} if view.retry_after is None else {"Retry-After": str(view.retry_after)}
    return HTMLResponse(html, status_code=view.status, headers=headers)


def fault_page(fault: Fault, reason: str = "", *, asked: SearchForm | None = None) -> HTMLResponse:
    """Return the page that tells of a fault which no question of ours led to."""
    return render(_fault_view(fault, asked or SearchForm(), reason=reason))


def _view(finder: SearchClient, packs: tuple[PackView, ...], asked: SearchForm) -> View:
    known = [pack.domain for pack in packs]
    never = tuple(domain for domain in asked.domains if domain not in known)
    if never:
        raise PackNotFound(", ".join(never))
    if not asked.text.strip():
        return View(state="start", asked=asked, packs=packs)
    domains = asked.domains or tuple(known)
    if not domains:
        return View(state="start", packs=packs)
    if len(domains) > MAX_DOMAINS:
        raise InvalidMessage(f"there are {len(domains)} sites: choose up to {MAX_DOMAINS} of them")
    return _found_view(finder.search(asked.question(domains)), packs, asked)


def _found_view(found: SearchResult, packs: tuple[PackView, ...], asked: SearchForm) -> View:
    results = results_view(found, asked)
    state = "results" if found.hits else "past-end" if found.total else "nothing"
    status = 404 if state == "past-end" else 200
    return View(state=state, status=status, asked=asked, packs=packs, results=results)


def _failed(error: ApplicationError, packs: tuple[PackView, ...], asked: SearchForm) -> View:
    fault = fault_of(error)
    if fault.status >= 500:
        # Figures tell how often: a line for each would fill the log while searchers are away.
        log.debug("%s: %s: %s", ", ".join(asked.domains) or "all sites", type(error).__name__, error)
    known = {pack.domain for pack in packs}
    missing = tuple(domain for domain in asked.domains if domain not in known) or asked.domains
    never = missing if fault == NEVER_INDEXED else ()
    # Where only the query is wrong, the words that say so are the error's own.
    reason = str(error) if fault == INVALID else ""
    return _fault_view(fault, asked, reason=reason, packs=packs, never=never)


def _fault_view(
    fault: Fault,
    asked: SearchForm,
    *,
    reason: str,
    packs: tuple[PackView, ...] = (),
    never: tuple[str, ...] = (),
) -> View:
    return View(
        state=fault.name,
        status=fault.status,
        asked=asked,
        reason=reason or fault.title,
        retry_after=fault.retry_after,
        packs=packs,
        never=never,
    )
