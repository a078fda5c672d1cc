"""The work on a probe, a URL that cannot exist: enter, fetch, read, note the site's error page, complete."""

from __future__ import annotations

from dataclasses import replace

from app.crawl.read.classify import FetchResult
from app.crawl.record.reasons import Reason
from app.crawl.steps import Steps, UrlRun
from app.crawl.traps import error_hash, probe_url
from app.crawl.urls import CrawlUrl
from app.errors import FetchError
from config.settings import Settings


class ProbeWork:
    """The work on probes: a site whose error pages have the status 200 is recognised by its response."""

    def __init__(self, steps: Steps, settings: Settings) -> None:
        self._steps = steps
        self._probes = settings.soft_404_probe

    def urls(self, start: CrawlUrl) -> tuple[str, ...]:
        """Return the URL that a crawl requests to know the error page of its start page's site; none if that is off."""
        url = probe_url(start.url, start.crawl_id) if self._probes else None
        return (url,) if url else ()

    def work(self, run: UrlRun, *, too_complex: bool) -> UrlRun:
        """Request the URL, note the text of an error page, and return the run with the result."""
        skipped = FetchResult("skipped", Reason.PROBE, "its response took too much CPU time")
        return replace(run, result=skipped if too_complex else self._read(run))

    def _read(self, run: UrlRun) -> FetchResult:
        """Request the URL without retries, and note the text of the error page unless the site says that it is one."""
        url = run.target.url
        if not self._probes:
            return FetchResult("skipped", Reason.PROBE, "SOFT_404_PROBE is off")
        if not run.rules.allows(url):
            return FetchResult("skipped", Reason.PROBE, run.rules.denial(url))
        try:
            result = self._steps.request_and_classify(run)
        except FetchError as error:
            return FetchResult("skipped", Reason.PROBE, str(error))
        page = result.page
        if not page:
            return FetchResult("skipped", Reason.PROBE, status=result.status)
        if text := error_hash(page.title, page.body, page.path):
            self._steps.frontier.note_soft_404(run.target.crawl_id, text)
        return FetchResult("skipped", Reason.PROBE, "the site has soft 404s", status=result.status)
