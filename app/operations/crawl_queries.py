"""What operators read of crawls, for the command and for the API: explanations, states and reasons of all URLs.

Each function raises InvalidUrl for an invalid name.
"""

from __future__ import annotations

from app.crawl.reports.crawl_report import CrawlReport, read_report
from app.crawl.reports.explanation import Explanation, PastEntry, explain_url, url_history
from app.crawl.urls import CrawlUrl, parse_crawl_url, parse_domain, parse_url
from app.errors import ResourceNotFound
from app.operations.context import OperatorContext


def explain(ops: OperatorContext, url: str, domain: str = "") -> Explanation:
    """Return the state of one URL; `domain` is its site, if that is not its host."""
    return explain_url(ops.frontier, ops.store, page_of(url, domain), retry_ms=ops.settings.retry_timeout_ms)


def history(ops: OperatorContext, url: str, domain: str = "") -> list[PastEntry]:
    """Return what each recorded crawl says of one URL, the latest crawl first."""
    return url_history(ops.frontier, ops.store, page_of(url, domain))


def latest(ops: OperatorContext, domain: str) -> CrawlReport:
    """Return the states and reasons of the URLs of a domain's latest crawl; raises ResourceNotFound."""
    name = parse_domain(domain)
    report = read_report(ops.frontier, ops.store, name)
    if report is None:
        raise ResourceNotFound(f"{name} has no crawl record")
    return report


def page_of(url: str, domain: str = "") -> CrawlUrl:
    """Return a page; `domain` is its site, if that is not its host. Raises InvalidUrl and OutOfScope."""
    # An empty URL is an error here, though a message could name its page by other fields.
    return parse_crawl_url({"url": parse_url(url), "domain": domain or None})
