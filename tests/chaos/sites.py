"""Generated sites: a seed decides pages, links and texts, so that a wrong text in a pack is recognised."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from tests.servers.site import Answer, Request, Site, Wire, failure, in_turn, late, page, redirect, robots

#: `flaky` fails twice and then succeeds, `dead` always fails, `missing` is a 404.
PageKind = Literal["plain", "flaky", "slow", "dead", "redirect", "missing"]

#: Kinds whose text belongs in the pack.
FETCHABLE: frozenset[PageKind] = frozenset({"plain", "flaky", "slow"})

#: Failed answers of a flaky page before the first good one.
FLAKY_FAILURES = 2
#: Seconds before a slow page answers.
SLOW = 0.5
#: Words of a page.
WORDS = 30
#: Seconds between two requests to a site, which its robots.txt asks for. Without one, its pages share messages.
DELAY = 0.08
#: A site without a delay has this many times the pages, so that its crawl does not end long before the others.
MORE_PAGES = 4
#: A page that only a redirect leads to.
REDIRECT_TARGET = "/moved"

#: Ports of the sites so far.
_used_ports: set[int] = set()

_SYLLABLES = ("ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ru", "sa", "te", "vi", "zo")


@dataclass(frozen=True, slots=True)
class PlannedPage:
    """One page: what it answers, and what a pack must hold of it."""

    path: str
    kind: PageKind
    title: str
    text: str
    links: tuple[str, ...]

    @property
    def content(self) -> str:
        """Title and body as a pack holds them: the body begins with the heading and ends with the links' texts."""
        return f"{self.title}\n{' '.join((self.title, self.text, *self.links))}"


@dataclass(frozen=True, slots=True)
class SitePlan:
    """The pages of one site by path; the start page is `/`. `delay` is in seconds."""

    pages: dict[str, PlannedPage]
    delay: float = DELAY

    def of_kind(self, *kinds: PageKind) -> frozenset[str]:
        """Return the paths of the pages of these kinds."""
        return frozenset(path for path, planned in self.pages.items() if planned.kind in kinds)

    @property
    def fetchable(self) -> frozenset[str]:
        """The paths of the pages that belong in the pack."""
        return self.of_kind(*FETCHABLE)


@dataclass(frozen=True, slots=True)
class Get:
    """A request for a page that a site has answered; `at` is when it arrived, in monotonic seconds."""

    domain: str
    path: str
    status: int
    at: float


def plan_sites(seed: str, *, number: int, pages: int) -> list[SitePlan]:
    """Return sites of `pages` pages. The first one has no delay, and more pages."""
    first = plan_site(f"{seed}:0", pages=MORE_PAGES * pages)
    others = [plan_site(f"{seed}:{each}", pages=pages) for each in range(1, number)]
    return [replace(first, delay=0.0), *others]


def plan_site(seed: str, *, pages: int) -> SitePlan:
    """Return a site of `pages` pages and a redirect's target: a tree of links, in which one lost message loses pages.

    One leaf always fails, one is missing and one redirects. Two pages with links are flaky, two are slow. Only its
    parent links to a leaf: two referrers at the same moment publish a page twice, and a dead page is then dead twice.
    """
    chance = random.Random(seed)
    inner, leaves = range(1, (pages - 1) // 2), range(pages // 2, pages)
    flaky_1, flaky_2, slow_1, slow_2 = chance.sample(inner, 4)
    dead, missing, redirecting = chance.sample(leaves, 3)
    kinds: dict[int, PageKind] = {flaky_1: "flaky", flaky_2: "flaky", slow_1: "slow", slow_2: "slow"}
    kinds |= {dead: "dead", missing: "missing", redirecting: "redirect"}
    planned = [_planned_page(chance, number, pages, kinds.get(number, "plain")) for number in range(pages)]
    target = PlannedPage(REDIRECT_TARGET, "plain", "Moved page", _words(chance), ("/",))
    return SitePlan({each.path: each for each in (*planned, target)})


def _planned_page(chance: random.Random, number: int, pages: int, kind: PageKind) -> PlannedPage:
    children = [child for child in (2 * number + 1, 2 * number + 2) if child < pages]
    links = dict.fromkeys(_path(each) for each in (*children, chance.randrange(pages // 2)) if each != number)
    targets = (REDIRECT_TARGET,) if kind == "redirect" else tuple(links)
    return PlannedPage(_path(number), kind, f"Page {number}", _words(chance), targets)


def _path(number: int) -> str:
    return f"/{number}" if number else "/"


def _words(chance: random.Random) -> str:
    return " ".join("".join(chance.choices(_SYLLABLES, k=4)) for _ in range(WORDS))


@contextmanager
def served(plans: list[SitePlan], journal: list[Get], *, named: bool = False) -> Iterator[dict[str, SitePlan]]:
    """Serve each plan on a port of its own during the block; yield the plans by domain.

    A domain is an address, or with `named` a name that a DNS server of this harness knows.
    Every answer to a request for a page is noted in the journal.
    """
    with ExitStack() as stack:
        domains = {}
        for plan in plans:
            site = _on_new_port(stack)
            domain = f"site{site.port}.test:{site.port}" if named else site.domain
            if plan.delay:
                site.set("/robots.txt", robots(f"User-agent: *\nCrawl-delay: {plan.delay:g}\n"))
            for planned in plan.pages.values():
                site.set(planned.path, answer_of(planned, domain, journal.append))
            domains[domain] = plan
        yield domains


def _on_new_port(stack: ExitStack) -> Site:
    """Return a site on a port that no earlier round had: its records would be taken for those of this round."""
    while (site := stack.enter_context(Site())).port in _used_ports:
        pass
    _used_ports.add(site.port)
    return site


def answer_of(planned: PlannedPage, domain: str, note: Callable[[Get], None]) -> Answer:
    """Return how a site answers a request for a page, which notes each answer."""

    def noted(status: int, answer: Answer) -> Answer:
        def answer_and_note(request: Request, wire: Wire) -> None:
            answer(request, wire)
            note(Get(domain, planned.path, status, request.at))

        return answer_and_note

    good = noted(200, page(planned.title, planned.text, links=planned.links))
    match planned.kind:
        case "flaky":
            return in_turn(*[noted(503, failure(503))] * FLAKY_FAILURES, good)
        case "slow":
            return late(SLOW, good)
        case "dead":
            return noted(500, failure(500))
        case "redirect":
            return noted(302, redirect(planned.links[0]))
        case "missing":
            return noted(404, failure(404))
        case _:
            return good
