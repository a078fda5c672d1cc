"""The steps of the demo: crawl, pack, list the dead set, repair, replay, search."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from urllib.parse import urlencode

from app import private_services as services
from app.broker.dead_letters import DeadSets, LetterSummary, ReplayOptions
from app.broker.publishing import get_publisher
from app.cluster.client.cluster import ClusterSearchClient
from app.cluster.client.contract import SearchClient
from app.errors import DemoFailed, ObjectNotFound, SearchUnavailable, StoreError
from app.messages.dead_sets import domain_of, labels_of
from app.messages.envelopes import site_message
from app.pack.manifest import Manifest
from app.search.contract import SearchRequest, SearchResult
from app.storage.layout import Page, content_key, content_of, page_id
from app.storage.marker import read_marker
from app.storage.open import store_of
from app.text.words import words
from app.topology.retry_policies import site_policy
from demo.display import Display
from demo.monitor import BrokerMonitor, DomainMonitor, Snapshot
from demo.plan import Plan
from demo.site import DemoSite
from demo.supervisor import Supervisor

#: Seconds between two snapshots, and seconds without any change after which the demo gives up.
_INTERVAL, _STALLED = 0.2, 120.0
#: Seconds that the services may take to start: they may have to be installed first.
_SERVICES_TIMEOUT = 900.0
_HTTP_TIMEOUT = 5.0
#: Hits to print of each query.
_HITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSummary:
    """The result of a demo: `pages` in the pack, `seconds` to the first result, `hits` of the first query.

    `retried` counts hops through a delay queue after a failure, and `dead` the dead letters after the crawl. `replayed`
    counts those that were replayed and succeeded, `searchers` the searchers that loaded the pack.
    """

    domain: str
    pages: int
    seconds: float
    hits: int
    pack: Manifest
    retried: int
    dead: int
    replayed: int
    searchers: int

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self) | {"seconds": round(self.seconds, 1)}, ensure_ascii=False)


class DemoRun:
    """A run on started processes. `site` is the demo's own site, None for a site that the user named."""

    def __init__(
        self, plan: Plan, *, display: Display, supervisor: Supervisor, broker: BrokerMonitor, site: DemoSite | None
    ) -> None:
        self.plan = plan
        self.site = site
        self.display = display
        self._supervisor = supervisor
        self._monitor = DomainMonitor(plan.settings, plan.start.domain, broker)
        self._publisher = get_publisher(plan.settings.broker)
        self._search_client = ClusterSearchClient.of(plan.settings)

    def close(self) -> None:
        """Close the search client's connection."""
        self._search_client.close()

    def crawl(self) -> None:
        """Publish `index+crawl` as a producer without Celery would, and wait for the full pack."""
        start = self.plan.start
        self._wait("a worker", lambda now: now.consumers > 0)
        self._publisher.publish([site_message("index+crawl", url=start.url, domain=start.domain)])
        self._wait("the end of the crawl", lambda now: now.seen > 0 and now.open == 0)
        self._wait("the pack", lambda now: now.pack is not None)

    def replay_dead_letters(self) -> tuple[int, int]:
        """Repair the demo's broken page and replay its dead letters.

        Return the number of the domain's dead letters, and of those that were replayed and succeeded.
        """
        settings = self.plan.settings
        dead_sets = DeadSets(site_policy(settings), settings.broker, self._publisher, labels=labels_of)
        dead = dead_sets.letters(self._is_of_domain)
        if not dead or self.site is None:
            return len(dead), 0
        for letter in dead:
            attempts = f"{letter.reason} after {letter.cause.attempts} attempts"
            self.display.say(f"Dead letter {letter.id} from {letter.queue}: {attempts}")
        self.display.say(f"The demo repairs the page and replays dead letters: {len(dead)}.")
        self.site.repair()
        before = self._monitor.snapshot().pack
        replayed = dead_sets.replay(self._is_of_domain, ReplayOptions(budget="fresh")).done
        self._monitor.forget_dead_pages()
        self._wait(
            "the pack with the repaired page",
            lambda now: bool(before and now.pack and now.pack.generation > before.generation) and now.open == 0,
        )
        return len(dead), len(replayed) - len(dead_sets.letters(self._is_of_domain))

    def search(self) -> tuple[list[tuple[str, SearchResult]], int]:
        """Search once searchers have loaded the pack: the plan's query, and for the repaired page of the demo's site.

        Return queries with results, and the number of searchers that have the pack.
        """
        domain = self.plan.start.domain
        searchers: tuple[str, ...] = ()

        def is_loaded(now: Snapshot) -> bool:
            nonlocal searchers
            searchers = searchers_with(self._search_client, now.pack) if now.pack else ()
            return bool(searchers)

        self._wait("searchers to load the pack", is_loaded)
        names = ", ".join(searcher[:8] for searcher in searchers)
        self.display.say(f"  {len(searchers)} searchers have loaded the pack: {names}")
        first = self.plan.query or start_word(self.plan)
        queries = [first, "broken repaired"] if self.site else [first]
        requests = [SearchRequest(q=query, domains=(domain,), limit=_HITS) for query in queries]
        return [(request.q, self._search_client.search(request)) for request in requests], len(searchers)

    def summary(self, *, seconds: float, hits: int, dead: int, replayed: int, searchers: int) -> DemoSummary:
        """Return the summary; raises DemoFailed if the pack lacks a page of the demo's own site."""
        now, domain = self._monitor.snapshot(), self.plan.start.domain
        if now.pack is None:
            raise DemoFailed(f"{domain} has no pack")
        if self.site is not None and now.pack.pages != self.site.pages:
            raise DemoFailed(f"the pack has {now.pack.pages} pages, the site {self.site.pages}")
        return DemoSummary(
            domain=domain,
            pages=now.pack.pages,
            seconds=seconds,
            hits=hits,
            pack=now.pack,
            retried=now.retried,
            dead=dead,
            replayed=replayed,
            searchers=searchers,
        )

    def addresses(self, query: str) -> tuple[str, str]:
        """Return the URLs of the results page and of Flower, once both answer."""
        settings = self.plan.settings
        parameters = urlencode({"domain": self.plan.start.domain, "q": query})
        results = f"http://{settings.web_address}/?{parameters}"
        flower = f"http://{settings.flower_address}/"
        for name, url in (("the search page", results), ("Flower", f"{flower}healthcheck")):
            wait_for(name, partial(is_up, url), self._supervisor, seconds=_STALLED)
        return results, flower

    def _wait(self, event: str, condition: Callable[[Snapshot], bool]) -> None:
        """Show the domain until the condition holds; raises DemoFailed after _STALLED seconds without any change."""
        progress, changed = None, time.monotonic()
        while not condition(now := self._monitor.snapshot()):
            self.display.show(now)
            self._supervisor.check()
            if (failure := now.dead_letter_text("pack_full") or now.dead_letter_text("pack_incremental")) is not None:
                raise DemoFailed(failure)
            if now.progress != progress:
                progress, changed = now.progress, time.monotonic()
            elif time.monotonic() - changed > _STALLED:
                raise DemoFailed(
                    f"no change for {_STALLED:.0f} s while waiting for {event}; {self._supervisor.last_lines()}"
                )
            time.sleep(_INTERVAL)
        self.display.show(now)

    def _is_of_domain(self, letter: LetterSummary) -> bool:
        return domain_of(letter) == self.plan.start.domain


def await_services(plan: Plan, supervisor: Supervisor) -> None:
    """Wait until RabbitMQ and Redis answer and the supervisor has made the store; raises DemoFailed."""
    store = store_of(plan.settings)

    def are_ready() -> bool:
        if any(service.state not in {"up", "given"} for service in services.status(plan.settings)):
            return False
        try:
            return bool(read_marker(store))
        except StoreError:
            return False

    wait_for("RabbitMQ, Redis and the store", are_ready, supervisor, seconds=_SERVICES_TIMEOUT)


def wait_for(event: str, condition: Callable[[], bool], supervisor: Supervisor, *, seconds: float) -> None:
    """Wait for a condition; raises DemoFailed when a process ends or the time is over."""
    deadline = time.monotonic() + seconds
    while not condition():
        supervisor.check()
        if time.monotonic() > deadline:
            raise DemoFailed(f"waited {seconds:.0f} s for {event}; {supervisor.last_lines()}")
        time.sleep(_INTERVAL)


def searchers_with(client: SearchClient, pack: Manifest) -> tuple[str, ...]:
    """Return the searchers that serve this pack, once all its replicas are loaded; until then none."""
    try:
        route = next((route for route in client.routes().routes if route.domain == pack.domain), None)
    except SearchUnavailable:
        return ()
    if route is None or route.sha256 != pack.sha256 or route.missing:
        return ()
    return route.searchers[: route.newest]


def start_word(plan: Plan) -> str:
    """Return the longest word of the start page's title as a query; the domain's first word for one without a title."""
    start, title = plan.start, ""
    key = content_key(start.domain, page_id(start.canonical_key))
    with suppress(ObjectNotFound):
        page = content_of(key, store_of(plan.settings).get(key).data)
        title = page.title if isinstance(page, Page) else ""
    return max(filter(str.isalpha, words(title)), key=len, default=start.domain.partition(".")[0])


def is_up(url: str) -> bool:
    """Return whether a GET of the URL, without a proxy, answers 200."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_HTTP_TIMEOUT) as response:
            return bool(response.status == 200)
    except OSError:
        return False
