"""What operators read of crawls, for the command and for the API: explanations, totals, broken links, all URLs."""

from __future__ import annotations

from app.crawl.frontier.frontier import Frontier
from app.crawl.reports.crawl_report import BrokenLinks, CrawlReport, broken_links, read_report
from app.crawl.reports.explanation import Explanation, PastEntry, explain_url, url_history
from app.crawl.urls import Target, parse_domain, parse_target
from app.errors import ResourceNotFound
from app.redis_state.client import get_redis
from app.sites.status import Status, status
from app.storage.open import store_of
from config.settings import Settings


class CrawlQueries:
    """The crawls of the store and of the Redis of the settings. Each method raises InvalidUrl for an invalid name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._store = store_of(settings)
        self._frontier = Frontier(get_redis(settings.redis))

    def explain(self, url: str, domain: str = "") -> Explanation:
        """Return the state of one URL; `domain` is its site, if that is not its host."""
        page = self._page(url, domain)
        return explain_url(self._frontier, self._store, page, retry_ms=self._settings.retry_timeout_ms)

    def history(self, url: str, domain: str = "") -> list[PastEntry]:
        """Return what each recorded crawl says of one URL, the latest crawl first."""
        return url_history(self._frontier, self._store, self._page(url, domain))

    def status(self, domain: str) -> Status:
        """Return the status of a domain, with the totals of its latest crawl by reason."""
        return status(domain, settings=self._settings)

    def latest(self, domain: str) -> CrawlReport:
        """Return the states and reasons of the URLs of a domain's latest crawl; raises ResourceNotFound."""
        name = parse_domain(domain)
        report = read_report(self._frontier, self._store, name)
        if report is None:
            raise ResourceNotFound(f"{name} has no crawl record")
        return report

    def broken_links(self, report: CrawlReport) -> BrokenLinks:
        """Return the broken links of a crawl. Reads the crawl's stored pages."""
        return broken_links(report, self._store)

    def _page(self, url: str, domain: str) -> Target:
        return parse_target({"url": url, "domain": domain or None})
