"""The search page: a form, and below it results or the reason for their absence. The page of the search box."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from anyio import from_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool

from app.broker.errors import ApplicationError, InvalidMessage
from app.cluster.client.contract import MAX_DOMAINS, SearchClient
from app.cluster.client.corrected import search_corrected
from app.crawl.reports.first_crawls import FirstCrawl
from app.errors import InvalidQuery, PackNotFound
from app.search.contract import Filters
from app.search.query import MAX_CHARACTERS
from app.sites.search_counter import SearchCounter
from app.web.labels import label_of
from app.web.languages import VARY, languages_of
from app.web.middleware import CHARGE_AGAIN
from app.web.models import MAX_DOMAIN
from app.web.paths import CLICKS_PATH
from app.web.presenter import (
    EMPTY,
    FILTER_TITLES,
    LAST_PAGE,
    PER_PAGE,
    SORTS,
    Choice,
    PackView,
    ResultsView,
    SearchForm,
    pack_view,
    results_view,
)
from app.web.problems import public_detail
from app.web.shown_urls import parse_domains
from app.web.static_files import icon_uri, static_path

router = APIRouter(include_in_schema=False)

templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
templates.globals |= {"static": static_path, "icon_uri": icon_uri}

#: Characters of the URL of a click.
_MAX_URL = 4_000
#: Characters of a filter's value.
_MAX_FILTER = 200
#: Characters of a page number: Python refuses to read more than 4,300 digits.
_MAX_DIGITS = 9
#: States whose page has its heading above the form. In any other state the message below the form is the heading.
_HEADING_ABOVE_FORM = frozenset(
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
    """All that the template shows. `state` is start, results, nothing, past-end, or a problem type.

    `never_indexed` are the requested domains that have no pack. `names` are the display names of sites by domain.
    `first_crawls` are crawls of sites that cannot be searched yet. Clicks on pages of `counted` domains are counted.
    """

    state: str
    status: int = 200
    form: SearchForm = field(default_factory=SearchForm)
    reason: str = ""
    retry_in: int | None = None
    packs: tuple[PackView, ...] = ()
    results: ResultsView | None = None
    never_indexed: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    first_crawls: Sequence[FirstCrawl] = ()
    counted: Collection[str] = frozenset()

    @classmethod
    def of_error(cls, error: type[ApplicationError], reason: str) -> View:
        """Return the view that shows an error; without a reason, the title of its problem type."""
        problem = error.problem
        return cls(state=problem.name, status=problem.status, reason=reason or problem.title, retry_in=problem.retry_in)

    @property
    def domain(self) -> str:
        """The only site that is searched; empty if there are several."""
        domains = self.form.domains or tuple(pack.domain for pack in self.packs)
        return domains[0] if len(domains) == 1 else ""

    @property
    def site(self) -> str:
        """The display name of the only site that is searched; empty if there are several."""
        return self.name_of(self.domain)

    def name_of(self, domain: str) -> str:
        """Return the display name of a site."""
        return self.names.get(domain, domain)

    @property
    def choosable(self) -> tuple[tuple[str, PackView | None], ...]:
        """The sites that the form offers, with their packs. While routes are unknown, the requested sites."""
        packs = {pack.domain: pack for pack in self.packs}
        others = [domain for domain in self.form.domains if domain not in packs and domain not in self.never_indexed]
        return (*packs.items(), *((domain, None) for domain in others))

    @property
    def chosen(self) -> str:
        """Which of several sites are searched, in a few words."""
        sites = [domain for domain, _ in self.choosable]
        chosen = [domain for domain in sites if domain in self.form.domains]
        if not chosen:
            return f"All {len(sites)} sites" if len(sites) <= MAX_DOMAINS else f"Choose from {len(sites)} sites"
        return (
            f"Only {' and '.join(map(self.name_of, chosen))}"
            if len(chosen) <= 2
            else f"{len(chosen)} of {len(sites)} sites"
        )

    @property
    def filters(self) -> tuple[Choice, ...]:
        """The filters that are set, each with the link that removes it."""
        return tuple(
            Choice(
                label=f"{FILTER_TITLES[name]}: {label_of(name, value)}",
                href=self.form.with_filter(name, "").href,
                current=True,
            )
            for name, value in self.form.active_filters
        )

    @property
    def sources(self) -> tuple[PackView, ...]:
        """The packs whose date the page shows: those that answered, or the only one that a search would use."""
        if self.results:
            return self.results.sources
        return tuple(pack for pack in self.packs if pack.domain == self.domain)

    @property
    def has_own_heading(self) -> bool:
        """Whether the message below the form has the page's only heading."""
        return self.state not in _HEADING_ABOVE_FORM


@router.get("/", response_class=HTMLResponse)
def search_page(
    request: Request,
    domain: Annotated[Sequence[str], Query()] = (),
    q: str = "",
    sort: str = "relevance",
    section: str = "",
    lang: str = "",
    type: str = "",
    page: str = "1",
    exact: str = "",
) -> HTMLResponse:
    """Show the form and, for a query, one page of results."""
    client: SearchClient = request.app.state.search_client
    filters = Filters(section=section, lang=lang, type=type)
    form, invalid = read_form(q=q, domains=domain, sort=sort, filters=filters, page=page)
    languages = languages_of(request)
    form = replace(form, exact=exact == "1", request=replace(form.request, languages=languages))
    names: Mapping[str, str] = request.app.state.site_names()
    packs: tuple[PackView, ...] = ()
    try:
        packs = tuple(pack_view(route, names) for route in client.routes().routes)
        if len(packs) == 1 and not form.domains:
            form = replace(form, request=replace(form.request, domains=(packs[0].domain,)))
        if invalid is not None:
            raise invalid
        view = _search(client, packs, form, names, may_repeat=request.scope.get(CHARGE_AGAIN))
        view = _counted(request.app.state.search_counter, view)
    except ApplicationError as error:
        view = _error_view(error, packs, form)
    if view.never_indexed or (view.state == "start" and not packs):
        view = replace(view, first_crawls=request.app.state.first_crawls(view.never_indexed))
    return render(replace(view, names=names))


@router.get("/search-box", response_class=HTMLResponse)
async def search_box(request: Request) -> HTMLResponse:
    """Show the search box for other sites at work, and how a site includes it."""
    base = f"{request.url.scheme}://{request.url.netloc}"
    return HTMLResponse(templates.get_template("search_box.html").render(base=base))


@router.post(CLICKS_PATH, status_code=204)
async def count_click(
    request: Request,
    domain: Annotated[str, Query(max_length=MAX_DOMAIN)],
    q: Annotated[str, Query(max_length=MAX_CHARACTERS)],
    url: Annotated[str, Query(max_length=_MAX_URL)],
) -> Response:
    """Count a click of the search page. The answer is always the same; other sites' pages count nothing."""
    counter: SearchCounter | None = request.app.state.search_counter
    # Browsers name the origin of a request (https://www.w3.org/TR/fetch-metadata/).
    if counter is not None and request.headers.get("Sec-Fetch-Site", "same-origin") == "same-origin":
        await run_in_threadpool(counter.count_click, domain, q, url)
    return Response(status_code=204)


def read_form(
    *, q: str, domains: Sequence[str], sort: str, filters: Filters, page: str
) -> tuple[SearchForm, ApplicationError | None]:
    """Return the form that shows the valid parameters again, and the error of the last invalid one."""
    request = replace(EMPTY, q=q)
    error: ApplicationError | None = None
    too_long = [label for name, label in FILTER_TITLES.items() if len(getattr(filters, name)) > _MAX_FILTER]
    if sort not in SORTS:
        error = InvalidQuery(f"results are not sorted by “{sort[:40]}”: by {' or '.join(SORTS)}")
    elif not (len(page) <= _MAX_DIGITS and page.isascii() and page.isdigit() and 1 <= int(page) <= LAST_PAGE):
        error = InvalidQuery(f"there is no page “{page[:40]}”: pages are numbered from 1 to {LAST_PAGE}")
    elif too_long:
        error = InvalidQuery(f"{too_long[0].lower()}: expected at most {_MAX_FILTER} characters")
    else:
        request = replace(request, sort=sort, offset=(int(page) - 1) * PER_PAGE, filters=filters)
    try:
        names = parse_domains(domains)
    except InvalidMessage as invalid:
        return SearchForm(request), invalid
    if len(names) > MAX_DOMAINS:
        error = InvalidMessage(f"{len(names)} sites are too many to search at once: choose {MAX_DOMAINS} at most")
    else:
        request = replace(request, domains=names)
    return SearchForm(request), error


def render(view: View) -> HTMLResponse:
    """Return the page."""
    html = templates.get_template("search.html").render(
        view=view, max_characters=MAX_CHARACTERS, max_domains=MAX_DOMAINS
    )
    headers = VARY | ({} if view.retry_in is None else {"Retry-After": str(view.retry_in)})
    return HTMLResponse(html, status_code=view.status, headers=headers)


def error_page(error: type[ApplicationError], reason: str = "") -> HTMLResponse:
    """Return the page for an error that is not about a search."""
    return render(View.of_error(error, reason))


def _search(
    client: SearchClient,
    packs: tuple[PackView, ...],
    form: SearchForm,
    names: Mapping[str, str],
    *,
    may_repeat: Callable[[], Awaitable[bool]] | None,
) -> View:
    """Return the view of the results, or of the start page if there is nothing to search; raises search errors."""
    indexed = [pack.domain for pack in packs]
    if never_indexed := [domain for domain in form.domains if domain not in indexed]:
        raise PackNotFound(", ".join(never_indexed))
    if not form.text.strip():
        return View(state="start", form=form, packs=packs)
    domains = form.domains or tuple(indexed)
    if not domains:
        return View(state="start", packs=packs)
    if len(domains) > MAX_DOMAINS:
        raise InvalidMessage(f"there are {len(domains)} sites: choose up to {MAX_DOMAINS} of them")
    request = replace(form.request, domains=domains)
    if form.exact:
        result = client.search(request)
    else:
        result = from_thread.run(partial(search_corrected, client, request, may_repeat=may_repeat))
    state = "results" if result.hits else "past-end" if result.total else "nothing"
    status = 404 if state == "past-end" else 200
    return View(state=state, status=status, form=form, packs=packs, results=results_view(result, form, names))


def _counted(counter: SearchCounter | None, view: View) -> View:
    """Count a search by the first page of its results, and return the view with the domains whose clicks count."""
    results, form = view.results, view.form
    if counter is None or results is None:
        return view
    domains = [source.domain for source in results.sources]
    if form.page == 1 and form.request.sort == "relevance" and not form.active_filters:
        # A page with some of the words, or with the words of another spelling, is not what was searched for.
        found = bool(results.hits) and not results.relaxed and not results.corrected
        counter.count_search(domains, form.text, found=found or bool(results.best_bets))
    return replace(view, counted=counter.counted(domains))


def _error_view(error: ApplicationError, packs: tuple[PackView, ...], form: SearchForm) -> View:
    never_indexed: tuple[str, ...] = ()
    if isinstance(error, PackNotFound):
        indexed = {pack.domain for pack in packs}
        never_indexed = tuple(domain for domain in form.domains if domain not in indexed) or form.domains
    # Only the text of an error about the request is meant for the person who typed it.
    detail = public_detail(error)
    reason = detail if error.problem == InvalidMessage.problem else ""
    view = View.of_error(type(error), reason)
    return replace(view, form=form, packs=packs, never_indexed=never_indexed)
