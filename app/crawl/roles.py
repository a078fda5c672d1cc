"""The work on URLs that are no pages: sitemaps, the robots.txt that names them, and the soft-404 check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.host_limits import is_pause
from app.crawl.frontier.values import FrontierUrl
from app.crawl.parse.classify import FetchResult, without_content
from app.crawl.parse.cpu_limit import cpu_limit
from app.crawl.parse.sitemaps import DEFAULT_PATH, MAX_BYTES, MAX_NESTING, ReadSitemap, sitemap_of
from app.crawl.record.entries import READ
from app.crawl.record.reasons import Reason
from app.crawl.traps import error_hash, soft_404_check_url
from app.crawl.url_runs import TOO_COMPLEX, UrlRun, UrlRuns, hash_of_text, request
from app.crawl.urls import SITEMAP, SOFT_404_CHECK, CrawlUrl, allows_port, canonical_key, host_of, resolve, robots_url
from app.errors import FetchError
from app.storage.layout import page_id
from config.settings import Settings

#: Statuses by which a site says that there is no sitemap.
_NO_SITEMAP = frozenset({404, 410})


class RoleWork:
    """The work on URLs with a role.

    A soft-404 check requests a URL that cannot exist: the response shows whether error pages have the status 200.
    """

    def __init__(self, frontier: Frontier, url_runs: UrlRuns, settings: Settings) -> None:
        self._frontier = frontier
        self._url_runs = url_runs
        self._checks_soft_404 = settings.soft_404_check

    def work(self, run: UrlRun, *, too_complex: bool) -> UrlRun:
        """Request a sitemap or the URL of a check, and return its run with the result. Raises as `read`."""
        if run.target.role == SITEMAP:
            return self._add_pages(run, too_complex=too_complex)
        return self._note_error_page(run, too_complex=too_complex)

    def of_robots_txt(self, start: UrlRun) -> UrlRun:
        """Return the run of the robots.txt of a start page, with the sitemaps that it names. It needs no request."""
        url, own_id = robots_url(start.target.url), page_id(start.target.key)
        key, below = canonical_key(url), start.target.depth + 1
        target = replace(start.target, url=url, canonical_key=key, depth=below, referrer=own_id, role=SITEMAP)
        run = replace(start, target=target, kind="page", text="")
        return self._add_pages(run, too_complex=False)

    def _add_pages(self, run: UrlRun, *, too_complex: bool) -> UrlRun:
        """Add the pages of a sitemap to the backlog, and return its run with further sitemaps.

        If a part of it was not read, the crawl is noted as cut: pages that only this part names are no vanished ones.
        Of a sitemap that the site may not have, this holds if an earlier crawl has read it.
        """
        frontier, target, policy, own_id = self._frontier, run.target, run.policy, page_id(run.target.key)
        if too_complex:
            frontier.note_cut(target.crawl_id)
            return replace(run, result=TOO_COMPLEX)
        read = self.read(run)
        follows = target.redirects < policy.traps.redirects and target.depth < MAX_NESTING
        sitemaps = read.sitemaps if follows else ()
        was_read = run.entered.former is not None
        partial = read.partial or sitemaps != read.sitemaps
        if partial and (was_read or not read.unproven or not run.entered.former_known):
            frontier.note_cut(target.crawl_id)
        if read.pages:
            pages = (FrontierUrl(link.url, link.canonical_key, 1, own_id) for link in read.pages)
            frontier.rebuild(target.crawl_id, (), pages, max_pages=policy.settings.max_pages, traps=policy.traps)
        read_once = bool(read.pages or read.sitemaps) or (partial and was_read)
        return replace(
            run,
            result=FetchResult("skipped", Reason.SITEMAP, read.detail, hash=READ if read_once else ""),
            is_last=read.pauses,
            found=[
                FrontierUrl(url, canonical_key(url), target.depth + 1, own_id, target.redirects + 1, SITEMAP)
                for url in sitemaps
            ],
        )

    def read(self, run: UrlRun) -> ReadSitemap:
        """Return the content of a sitemap, or the sitemaps that a robots.txt names, without a request of its own.

        The caller has waited for the host. Raises what `UrlRuns.fetch` raises. `/sitemap.xml` that no robots.txt names
        is requested once, without retries. An index file may name sitemaps of its own host and of the crawl's scope.
        """
        target, rules, robots_txt = run.target, run.rules, robots_url(run.target.url)
        default = robots_txt.removesuffix("/robots.txt") + DEFAULT_PATH
        named = tuple(url for each in rules.sitemaps if (url := resolve(robots_txt, each)))
        if target.url == robots_txt:
            found = ReadSitemap(sitemaps=named or (default,), detail=f"{len(rules.sitemaps)} sitemaps")
            return self._limited_to(found.sitemaps, found, target.domain)
        is_named = target.url != default or default in named
        if not rules.allows(target.url):
            return ReadSitemap(detail=rules.denial(target.url))
        try:
            response = request(run, max_bytes=MAX_BYTES)
            result = without_content(response, scope=run.policy.scope, limits=self._url_runs.limits)
        except FetchError as error:
            self._url_runs.host_limits.pause_after(run.host, error)
            if is_named:
                raise
            return ReadSitemap(detail=f"none: {error}", partial=True, unproven=True, pauses=is_pause(error))
        if result is None:
            host, scope = host_of(target.url), run.policy.scope
            with cpu_limit():
                found = sitemap_of(response, scope=scope)
                near = [url for url in found.sitemaps if host_of(url) == host or scope.contains(url, any_path=True)]
                return self._limited_to(near, found, target.domain)
        if result.state == "redirected":
            return ReadSitemap(sitemaps=(result.detail,), detail=f"to {result.detail}")
        partial = response.status not in _NO_SITEMAP
        return ReadSitemap(detail=f"none: {response.status}", partial=partial, unproven=not is_named)

    def _limited_to(self, urls: Sequence[str], found: ReadSitemap, domain: str) -> ReadSitemap:
        """Return what was found with these further sitemaps only, except those on a forbidden port.

        The detail has the number of those that are left out.
        """
        allowed = tuple(url for url in urls if allows_port(domain, url, self._url_runs.limits.ports))
        number = len(found.sitemaps) - len(allowed)
        detail = f"{found.detail}; {number} on other hosts or ports are left out" if number else found.detail
        return found._replace(sitemaps=allowed, detail=detail)

    def soft_404_check_of(self, start: CrawlUrl) -> tuple[FrontierUrl, ...]:
        """Return the URL that a crawl requests after its start page; nothing if that is off."""
        url = soft_404_check_url(start.url, start.crawl_id) if self._checks_soft_404 else None
        return (FrontierUrl(url, canonical_key(url), 1, page_id(start.key), role=SOFT_404_CHECK),) if url else ()

    def _note_error_page(self, run: UrlRun, *, too_complex: bool) -> UrlRun:
        """Request the URL without retries, and return the run with the result.

        The text of the error page is noted unless the site says by the status that it is one.
        """
        url, status = run.target.url, 0
        if too_complex:
            detail = "its response took too much CPU time"
        elif not self._checks_soft_404:
            detail = "SOFT_404_CHECK is off"
        elif not run.rules.allows(url):
            detail = run.rules.denial(url)
        else:
            try:
                result = self._url_runs.request_and_classify(run)
            except FetchError as error:
                detail = str(error)
            else:
                status, detail = result.status, "the site has soft 404s" if result.page else ""
                if text := hash_of_text(result, error_hash):
                    self._frontier.note_soft_404(run.target.crawl_id, text)
        return replace(run, result=FetchResult("skipped", Reason.SOFT_404_CHECK, detail, status=status))
