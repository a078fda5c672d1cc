"""The work on one message of a page: enter the frontier, fetch, store, and complete with the page's links."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain

from app.broker.errors import Postpone
from app.crawl.crawl_records import CrawlRecords
from app.crawl.crawler import Crawler, Probed, is_move
from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import (
    PROBE,
    SITEMAP,
    Completed,
    Entered,
    FoundPage,
    Host,
    MessageKind,
    PageMessage,
    frontier_key,
    message_name,
)
from app.crawl.policy import Policies
from app.crawl.read.classify import FetchResult, Gone, Indexed, Redirected, Skipped, Unchanged, content_hash, links_of
from app.crawl.read.page_interval import with_interval
from app.crawl.read.sitemaps import MAX_NESTING
from app.crawl.record.entries import UrlEntry, first_links
from app.crawl.record.former import READ
from app.crawl.record.reasons import Reason
from app.crawl.traps import error_hash, text_hash
from app.crawl.urls import Excluded, Target, canonical_key, host_of
from app.storage.layout import page_id

#: Seconds that a message waits whose crawl Redis lost while it was restored.
_LOST_AGAIN = 1.0


class PageWork:
    """Runs `page` messages, and completes the two messages of a start page."""

    def __init__(self, frontier: Frontier, crawler: Crawler, records: CrawlRecords, policies: Policies) -> None:
        self._frontier = frontier
        self._crawler = crawler
        self._records = records
        self._policies = policies

    def run(
        self,
        target: Target,
        *,
        referrer: str,
        message_id: str,
        redirects: int = 0,
        role: str = "",
        too_complex: bool = False,
    ) -> Completed:
        """Fetch and store a page unless nothing is left to do, and return the pages to publish next.

        `redirects` is the number of redirects in a row that led to it. With the role `sitemap`, its URLs are read. An
        earlier run of the message with this id is no longer at work. Raises Postpone while the host is busy, and
        what `Crawler.get` and the store raise; then the page leaves the admission window until its retry.
        """
        host, key = self._crawler.host(target), frontier_key(target.canonical_key, role)
        link = FoundPage(target.url, target.canonical_key, target.depth, referrer, redirects, role)
        entered = self._enter(target, link, host, message_id=message_id)
        if entered.spent:
            return self.complete(target, "page", Skipped(why=entered.spent), host, referrer=referrer)
        if entered.not_due and entered.former:
            if unchanged := self._crawler.not_due(target, entered.former):
                return self.complete(target, "page", unchanged, host, referrer=referrer, member=True)
            entered = self._enter(target, link, host, message_id=message_id, due=True)
        if not entered.fetch:
            return Completed(entered.handover, message_name("page", key))
        try:
            if role == SITEMAP:
                return self._read_sitemap(
                    target, host, entered, referrer=referrer, redirects=redirects, too_complex=too_complex
                )
            if role == PROBE:
                return self._probe(target, host, referrer=referrer, too_complex=too_complex)
            result, text = self._fetch(target, entered, redirects=redirects, too_complex=too_complex)
            member = self._crawler.store(target, result)
        except BaseException as error:
            failed = not isinstance(error, Postpone)
            reason = f"{type(error).__name__}: {error}"
            self._frontier.release(target.crawl_id, "page", key, host, failed=failed, error=reason)
            raise
        redirects = redirects + 1 if isinstance(result, Redirected) else 0
        return self.complete(
            target, "page", result, host, referrer=referrer, member=bool(member), redirects=redirects, text=text
        )

    def _enter(self, target: Target, link: FoundPage, host: Host, *, message_id: str, due: bool = False) -> Entered:
        """Begin the run of a page's message, in a crawl that Redis may have lost. Raises what `Frontier.enter` does.

        Nothing is left to do for a message of a removed site.
        """
        enter = partial(
            self._frontier.enter,
            *(target.crawl_id, target.domain, link, host),
            message_id=message_id,
            due=due,
            traps=self._policies(target.domain).traps,
        )
        entered = enter()
        if not entered.crawl_found:
            if not self._records.restore(target):
                return Entered(fetch=False)
            entered = enter()
        if not entered.crawl_found:
            raise Postpone(_LOST_AGAIN, f"Redis has lost crawl {target.crawl_id} again")
        return entered

    def _fetch(self, target: Target, entered: Entered, *, redirects: int, too_complex: bool) -> tuple[FetchResult, str]:
        """Request a page; return the result as its crawl sees it, and the hash of the text that was received."""
        result = self._crawler.get(target, too_complex=too_complex, former=entered.former)
        text = _text_of(result)
        policy = self._policies(target.domain)
        if isinstance(result, Redirected) and redirects >= policy.traps.redirects:
            result = Skipped(why=Reason.TOO_MANY_REDIRECTS, detail=f"to {result.target}", status=result.status)
        elif target.depth and entered.soft_404 and _error_hash_of(result) == entered.soft_404:
            result = Gone(why=Reason.SOFT_404, status=result.status)
        return with_interval(result, entered.former, now=time.time(), longest=policy.max_page_interval), text

    def _probe(self, target: Target, host: Host, *, referrer: str, too_complex: bool) -> Completed:
        """Request a page that cannot exist, and note the text of the site's error page if it has the status 200."""
        probed = Probed(detail="its response took too much CPU time") if too_complex else self._crawler.probe(target)
        if probed.text:
            self._frontier.note_soft_404(target.crawl_id, probed.text)
        result = Skipped(why=Reason.PROBE, detail=probed.detail, status=probed.status)
        return self.complete(target, "page", result, host, referrer=referrer)

    def _read_sitemap(
        self, target: Target, host: Host, entered: Entered, *, referrer: str, redirects: int, too_complex: bool
    ) -> Completed:
        """Add the URLs of a sitemap to the backlog, before its message is completed with further sitemaps.

        If a part of it was not read, the crawl is noted as cut: pages that only this part names are no vanished ones.
        Of a sitemap that the site may not have, this holds if an earlier crawl has read it.
        """
        if too_complex:
            self._frontier.note_cut(target.crawl_id)
            skipped = self._crawler.get(target, too_complex=True)
            return self.complete(target, "page", skipped, host, referrer=referrer, role=SITEMAP)
        read = self._crawler.read_sitemap(target)
        policy = self._policies(target.domain)
        follows = redirects < policy.traps.redirects and target.depth < MAX_NESTING
        sitemaps = read.sitemaps if follows else ()
        was_read = entered.former is not None
        partial = read.partial or sitemaps != read.sitemaps
        if partial and (was_read or not read.unproven or not entered.former_known):
            self._frontier.note_cut(target.crawl_id)
        own_id = page_id(frontier_key(target.canonical_key, SITEMAP))
        pages = (FoundPage(link.url, link.canonical_key, 1, own_id) for link in read.pages)
        self._frontier.rebuild(target.crawl_id, (), pages, max_pages=policy.settings.max_pages, traps=policy.traps)
        read_once = bool(read.pages or read.sitemaps) or (partial and was_read)
        result = Skipped(why=Reason.SITEMAP, detail=read.detail, hash=READ if read_once else "")
        return self.complete(
            target, "page", result, host, referrer=referrer, redirects=redirects + 1, role=SITEMAP, sitemaps=sitemaps
        )

    def complete(
        self,
        target: Target,
        kind: MessageKind,
        result: FetchResult,
        host: Host,
        *,
        referrer: str = "",
        member: bool = False,
        redirects: int = 0,
        role: str = "",
        sitemaps: Sequence[str] = (),
        text: str = "",
    ) -> Completed:
        """Complete a page's message; return the pages that are admitted now. `redirects` led to its links in a row.

        `sitemaps` are read next; those of a start page are found by its robots.txt. `text` is the page's `text_hash`
        where the result has none.
        The line of the record is that of `page` or `index`; the links are followed of `page` or `crawl`.
        """
        own = kind == "page" or self._records.is_own(target)
        entry = entry_of(target, result, referrer, role)
        if kind == "page":  # The frontier adds the links by which the crawl finds pages.
            entry.links = first_links(entry.links)
        line = entry.to_line().decode() if own and kind != "crawl" else ""
        links = links_of(result) if own and kind != "index" else ()
        below = target.depth + 1
        own_id, policy = page_id(frontier_key(target.canonical_key, role)), self._policies(target.domain)
        excluded = result.excluded if own and kind != "index" else ()
        probes: Sequence[str] = ()
        if own and kind != "index" and target.depth == 0 and not role and not is_move(result):
            sitemaps, probes = self._crawler.names_of_sitemaps(target), self._crawler.urls_of_probe(target)
        if below > policy.settings.max_depth:
            excluded += tuple(Excluded(link.url, link.canonical_key, Reason.MAX_DEPTH) for link in links)
            links = ()
        return self._frontier.complete(
            target.crawl_id,
            kind,
            frontier_key(target.canonical_key, role),
            host=host,
            line=line,
            indexed=member,
            links=chain(
                (FoundPage(url, canonical_key(url), below, own_id, role=PROBE) for url in probes),
                (FoundPage(url, canonical_key(url), below, own_id, redirects, SITEMAP) for url in sitemaps),
                (FoundPage(link.url, link.canonical_key, below, own_id, redirects) for link in links),
            ),
            text=text or (_text_of(result) if kind != "crawl" else ""),
            excluded=((each.reason, FoundPage(each.url, each.canonical_key, below, own_id)) for each in excluded),
            max_pages=policy.settings.max_pages,
            traps=policy.traps,
        )

    def complete_lost(self, domain: str, crawl_id: str, messages: Iterable[PageMessage]) -> None:
        """Complete messages that vanished from the broker again and again. What is stored of their pages stays."""
        for each in messages:
            complete_dead(
                self._frontier,
                Target(each.url, domain, canonical_key(each.url), crawl_id, each.depth),
                each.kind,
                role=each.role,
                lost=True,
            )

    def add_to_latest(self, target: Target, result: FetchResult) -> None:
        """Add a page that was indexed outside of a crawl to its domain's latest crawl, so that its full pack has it."""
        crawl = self._frontier.latest(target.domain)
        if crawl and crawl.own:
            self._records.add_line(crawl, entry_of(target, result))


def _text_of(result: FetchResult) -> str:
    return (
        text_hash(result.page.title, result.page.body, result.page.path)
        if isinstance(result, Indexed | Unchanged)
        else ""
    )


def _error_hash_of(result: FetchResult) -> str:
    return (
        error_hash(result.page.title, result.page.body, result.page.path)
        if isinstance(result, Indexed | Unchanged)
        else ""
    )


def entry_of(target: Target, result: FetchResult, referrer: str = "", role: str = "") -> UrlEntry:
    """Return the entry of the crawl record for the result of a page, or of a sitemap."""
    entry = UrlEntry(
        url=target.url,
        page_id=page_id(frontier_key(target.canonical_key, role)),
        state="indexed",
        at=time.time(),
        depth=target.depth,
        referrer=referrer,
        status=result.status,
        etag=result.etag,
        last_modified=result.last_modified,
        interval=result.interval,
        due=result.due,
    )
    match result:
        case Indexed(page=page):
            entry.hash = content_hash(page)
            if page.canonical:
                entry.reason, entry.detail = Reason.CANONICAL, page.canonical
        case Unchanged(page=page, why=why):
            entry.state, entry.hash = "unchanged", content_hash(page)
            entry.reason, entry.detail = (Reason.CANONICAL, page.canonical) if page.canonical else (why, "")
        case Gone(why=why, detail=detail, links=links):
            entry.state, entry.reason, entry.detail = "gone", why, detail
            entry.links = tuple(link.url for link in links)
        case Redirected(target=onward, in_scope=in_scope, why=why):
            entry.state, entry.reason, entry.detail = "redirected", why, onward
            entry.links = (onward,) if in_scope else ()
        case Skipped(why=why, detail=detail, links=links, hash=read):
            entry.links, entry.hash = tuple(link.url for link in links), read
            entry.state = "unchanged" if why == Reason.NOT_MODIFIED else "skipped"
            entry.reason, entry.detail = why, detail
    return entry


def complete_dead(frontier: Frontier, target: Target, kind: MessageKind, *, role: str = "", lost: bool = False) -> None:
    """Complete a message that is dead-lettered, or lost. What is stored of its page stays in the crawl's pack.

    The crawl is noted as cut if the pages that the message leads to are unknown then.
    """
    key = frontier_key(target.canonical_key, role)
    crawl = frontier.crawl(target.crawl_id)
    if crawl and crawl.domain != target.domain:  # The reason why it is dead; the crawl has nothing to do with it.
        return
    entry = UrlEntry(url=target.url, page_id=page_id(key), state="failed", at=time.time())
    entry.state, entry.reason = ("lost", Reason.LOST) if lost else ("failed", Reason.DEAD_LETTERED)
    entry.depth = target.depth
    failures = frontier.failures(target.crawl_id, kind, key)
    entry.detail = str(failures) if failures else ""
    if kind == "crawl" or role == SITEMAP:
        frontier.note_cut(target.crawl_id)
    own = crawl is not None and crawl.own
    line = entry.to_line().decode() if own and kind != "crawl" else ""
    # Without a look at robots.txt: this runs in the event loop of the worker's main process.
    host = Host(host_of(target.url), delay=0, concurrency=1)
    frontier.complete(target.crawl_id, kind, key, host=host, line=line, dead=True)
