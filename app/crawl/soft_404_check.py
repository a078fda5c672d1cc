"""The soft-404 check: a URL that cannot exist, whose response shows whether error pages have the status 200."""

from __future__ import annotations

from dataclasses import replace

from app.crawl.frontier.values import FrontierUrl
from app.crawl.parse.classify import FetchResult
from app.crawl.record.reasons import Reason
from app.crawl.traps import error_hash, soft_404_check_url
from app.crawl.url_runs import UrlRun, UrlRuns
from app.crawl.urls import SOFT_404_CHECK, CrawlUrl, canonical_key
from app.errors import FetchError
from app.storage.layout import page_id
from config.settings import Settings


class Soft404CheckWork:
    """The work on soft-404 checks: enter, fetch, read, note the text of the site's error page, complete."""

    def __init__(self, url_runs: UrlRuns, settings: Settings) -> None:
        self._url_runs = url_runs
        self._is_on = settings.soft_404_check

    def found_at(self, start: CrawlUrl) -> tuple[FrontierUrl, ...]:
        """Return the URL that a crawl requests after its start page; nothing if that is off."""
        url = soft_404_check_url(start.url, start.crawl_id) if self._is_on else None
        return (FrontierUrl(url, canonical_key(url), 1, page_id(start.key), role=SOFT_404_CHECK),) if url else ()

    def work(self, run: UrlRun, *, too_complex: bool) -> UrlRun:
        """Request the URL without retries, and return the run with the result.

        The text of the error page is noted unless the site says by the status that it is one.
        """
        url, status = run.target.url, 0
        if too_complex:
            detail = "its response took too much CPU time"
        elif not self._is_on:
            detail = "SOFT_404_CHECK is off"
        elif not run.rules.allows(url):
            detail = run.rules.denial(url)
        else:
            try:
                result = self._url_runs.request_and_classify(run)
            except FetchError as error:
                detail = str(error)
            else:
                page, status = result.page, result.status
                detail = "the site has soft 404s" if page else ""
                if page and (text := error_hash(page.title, page.body, page.path)):
                    self._url_runs.frontier.note_soft_404(run.target.crawl_id, text)
        return replace(run, result=FetchResult("skipped", Reason.SOFT_404_CHECK, detail, status=status))
