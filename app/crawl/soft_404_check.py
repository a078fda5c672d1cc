"""The soft-404 check: a URL that cannot exist, whose response shows whether error pages have the status 200."""

from __future__ import annotations

from dataclasses import replace

from app.crawl.frontier.values import FrontierUrl
from app.crawl.read.classify import FetchResult
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
        """Request the URL, note the text of an error page, and return the run with the result."""
        skipped = FetchResult("skipped", Reason.SOFT_404_CHECK, "its response took too much CPU time")
        return replace(run, result=skipped if too_complex else self._read(run))

    def _read(self, run: UrlRun) -> FetchResult:
        """Request the URL without retries, and note the text of the error page unless the site says that it is one."""
        url = run.target.url
        if not self._is_on:
            return FetchResult("skipped", Reason.SOFT_404_CHECK, "SOFT_404_CHECK is off")
        if not run.rules.allows(url):
            return FetchResult("skipped", Reason.SOFT_404_CHECK, run.rules.denial(url))
        try:
            result = self._url_runs.request_and_classify(run)
        except FetchError as error:
            return FetchResult("skipped", Reason.SOFT_404_CHECK, str(error))
        page = result.page
        if not page:
            return FetchResult("skipped", Reason.SOFT_404_CHECK, status=result.status)
        if text := error_hash(page.title, page.body, page.path):
            self._url_runs.frontier.note_soft_404(run.target.crawl_id, text)
        return FetchResult("skipped", Reason.SOFT_404_CHECK, "the site has soft 404s", status=result.status)
