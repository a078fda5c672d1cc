"""The frontier of crawls in Redis: each page's state, the backlog, the admission window, and lines of the record."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from redis import Redis

from app.broker.errors import InvalidMessage, Postpone
from app.crawl.frontier.cache import CrawlCache
from app.crawl.frontier.host_limits import host_is_busy
from app.crawl.frontier.values import (
    ACTIVE_CRAWLS,
    HOST_PREFIX,
    LEASE,
    MAX_ERROR,
    NEW_CRAWL,
    RESTORED_CRAWLS,
    Completed,
    Completion,
    Crawl,
    Entered,
    FetchedPage,
    FrontierUrl,
    Host,
    MessageKind,
    Refill,
    admitted_of,
    crawl_key,
    crawls_key,
    entered_of,
    fingerprint,
    foreign_crawl,
    host_keys,
    latest_key,
    message_name,
    parts_of,
    to_backlog_json,
)
from app.crawl.frontier.view import CrawlView
from app.crawl.record.crawls import CrawlState
from app.crawl.record.entries import STORED_STATES, Former, UrlEntry
from app.crawl.record.keys import plain_id
from app.crawl.record.reasons import Reason
from app.crawl.traps import TrapLimits
from app.crawl.urls import SITEMAP, canonical_key, frontier_key, host_of
from app.redis_state.client import PREFIX, connections_of, load_script
from app.redis_state.run_id import RUN_ID

#: Seconds after its last page that Redis keeps a crawl: `status` shows it for a week, and late messages meet its end.
CRAWL_TTL = 7 * 86_400

#: Pages of all crawls that are in the work queues at the same time: enough for 16 processes of 16 pages.
ADMISSION = 256

#: Seconds for which a message waits while another one of its page is worked on.
_BUSY = 5.0

#: Seconds that a crawl may need to begin: the time limit of its message.
_BEGINNING = 120

#: Seconds for which messages of other crawls have one page each, so that the first pages of a new crawl do not wait.
_NEW = 3

#: Seconds after which the end of a crawl is published again: if a process died while it published the end, and after it
#: was published. The latter is more than all retries of the message take by default.
_END_PUBLISHING, END_AGAIN = 10, 300

#: Pages of the former crawl that one command gives to Redis.
_BATCH = 1_000


class Frontier(CrawlView):
    """All crawls of one Redis.

    What `complete` and `refill` admit must be published with confirms before the message is acknowledged. A page's
    links are in the store before they are noted here.
    """

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        self._connections = connections_of(redis)
        self._cache = CrawlCache(self._connections)
        folder = Path(__file__).parent
        admit, budgets = folder / "admit.lua", folder / "traps.lua"
        self._enter = load_script(redis, admit, budgets, folder / "enter.lua")
        record = folder / "record.lua"
        self._complete = load_script(redis, admit, budgets, folder / "exclude.lua", record, folder / "complete.lua")
        self._refill = load_script(redis, admit, folder / "refill.lua")
        self._release = load_script(redis, admit, folder / "release.lua")
        self._rebuild = load_script(redis, admit, budgets, folder / "exclude.lua", folder / "rebuild.lua")
        self._add_line = load_script(redis, admit, record, folder / "add_line.lua")
        self._next_lines = load_script(redis, record, folder / "next_lines.lua")
        self._stored = load_script(redis, folder / "stored.lua")
        self._close = load_script(redis, admit, folder / "close.lua")
        self._note_published = load_script(redis, folder / "published.lua")

    def begin(self, crawl: Crawl) -> None:
        """Store a crawl as its domain's latest; one that is stored already keeps its first values."""
        # Each crawl renews the set's TTL, so its expired members must be removed here.
        crawls = self._crawls_of(crawl.domain)
        pipe = self._redis.pipeline(transaction=False)
        for each in crawls:
            pipe.exists(crawl_key(each))
        expired = [each for each, exists in zip(crawls, pipe.execute(), strict=True) if not exists]
        if expired:
            self._redis.srem(crawls_key(crawl.domain), *expired)
        key = crawl_key(crawl.id)
        fields = {
            "id": crawl.id,
            "domain": crawl.domain,
            "start": crawl.start_url,
            "began": crawl.started.isoformat(),
            "moves": str(crawl.moves),
            "recorded": str(int(crawl.recorded)),
            "moved_from": crawl.moved_from,
            "state": "running",
            "born": uuid.uuid4().hex[:8],
            "last": f"{crawl.started.timestamp():.3f}",
        }
        pipe = self._redis.pipeline()
        for name, value in fields.items():
            pipe.hsetnx(key, name, value)
        pipe.expire(key, CRAWL_TTL)
        pipe.set(NEW_CRAWL, key, ex=_NEW)
        if not (latest := self.latest(crawl.domain)) or latest.started <= crawl.started:  # A restored one may be old.
            pipe.set(latest_key(crawl.domain), crawl.id, ex=CRAWL_TTL)
        pipe.sadd(crawls_key(crawl.domain), crawl.id)
        pipe.expire(crawls_key(crawl.domain), CRAWL_TTL)
        pipe.execute()

    def enter(
        self,
        crawl_id: str,
        domain: str,
        links: Sequence[FrontierUrl],
        host: Host,
        *,
        message_id: str,
        due: bool = False,
        traps: TrapLimits | None = None,
    ) -> list[Entered]:
        """Begin the run of a message of pages. What an interrupted run of it holds is released.

        With `due`, they are requested whatever the former crawl found. `traps` are budgets in place of the usual.

        Raises Postpone while the host or another message of a page is busy, and InvalidMessage for a crawl of another
        domain.
        """
        action, *values = self._enter(
            keys=[
                *parts_of(crawl_key(crawl_id), "", "pages", "admitted", "retrying", "backlog", "unconfirmed"),
                *host_keys(host.name),
            ],
            args=[
                *(domain, f"{uuid.uuid4().hex[:8]} {message_id}", LEASE, host.concurrency, host.delay, int(host.own)),
                *((traps or TrapLimits()).identical_texts, int(due)),
                *(field for link in links for field in (link.name, to_backlog_json(link))),
            ],
        )
        match action:
            case "foreign":
                raise InvalidMessage(foreign_crawl(crawl_id, str(values[0]), domain))
            case "wait":
                raise host_is_busy(host, float(values[0]))
            case "busy":
                url = links[int(values[0]) - 1].canonical_key
                raise Postpone(_BUSY, f"another message of {url} is worked on", code="page-busy")
            case "unknown":
                return [Entered(fetch=False, crawl_found=False)] * len(links)
        soft_404, former_known, rows = values
        return [entered_of(row, soft_404=str(soft_404), former_known=bool(former_known)) for row in rows]

    def complete(
        self,
        crawl_id: str,
        completions: Sequence[Completion],
        *,
        host: Host,
        max_pages: int = 0,
        traps: TrapLimits | None = None,
        batch: int = 0,
    ) -> Completed:
        """Note the ends of a message's pages, their links as waiting, and admit the crawl's next pages.

        A crawl gets no page beyond `max_pages` and its budgets against traps; such a page and one of `max-depth` note
        it as cut. Identical texts close a pattern instead. `traps` are budgets in place of the usual ones, and `batch`
        is the number of pages that a message may have from now on.
        """
        key, connections, first = crawl_key(crawl_id), self._connections(), completions[0]
        keys = parts_of(key, "", "pages", "admitted", "retrying", "backlog", "unconfirmed", "record")
        keys += [*host_keys(host.name), ACTIVE_CRAWLS, RUN_ID]
        confirmed = ",".join(self._cache.take_confirmed(crawl_id))
        settings = [
            *(host.delay, host.concurrency if host.own else "", 0 if first.state == "x" else ADMISSION),
            *(CRAWL_TTL, max_pages, plain_id(crawl_id), confirmed, *(traps or TrapLimits()).arguments),
            batch or "",
        ]
        reply = list[Any]()
        while not reply:
            links = self._cache.unseen_links(crawl_id, completions)
            born, *reply = self._complete(keys=keys, args=[*settings, links.born, *links.arguments])
            if not reply:  # What is cached is of a crawl that Redis has lost.
                self._cache.add_seen(crawl_id, (), born=str(born))
        ended, write, wait, size, seen, *items = reply
        if connections == self._connections():  # Otherwise the Redis that has noted them may be gone.
            # Without those that a limit left out: another page may lead to them within its limits.
            followed = (names[: int(number)] for names, number in zip(links.followed, seen, strict=True))
            self._cache.add_seen(crawl_id, chain(*followed, links.excluded), born=str(born))
        name = next((each.name for each in completions if each.state != "f"), "")
        return Completed(admitted_of(items, float(wait), int(size)), name, bool(write), bool(ended))

    def note_confirmed(self, crawl_id: str, name: str) -> None:
        """Note that what this message admitted is published; the crawl's next completion here removes it."""
        self._cache.add_confirmed(crawl_id, name)

    def add_line(self, crawl_id: str, line: str) -> bool:
        """Add a line to a crawl's record: of a page that was indexed by a message outside of the crawl.

        Return whether the caller is to write a segment.
        """
        keys = parts_of(crawl_key(crawl_id), "", "record")
        return bool(self._add_line(keys=keys, args=[line, uuid.uuid4().hex, CRAWL_TTL]))

    def release(self, crawl_id: str, kind: MessageKind, key: str, host: str, *, failed: bool, error: str = "") -> None:
        """End a run that did not complete its message. One that failed leaves the admission window until its retry."""
        crawl = crawl_key(crawl_id)
        self._release(
            keys=[*parts_of(crawl, "admitted", "retrying"), host_keys(host)[1], f"{crawl}:failures"],
            args=[message_name(kind, key), int(failed), error[:MAX_ERROR]],
        )

    def refill(self, *, stalled: float) -> Iterator[Refill]:
        """Admit pages of all active crawls; yield each crawl with new pages, ended, or `stalled` seconds idle."""
        prefixes = (f"{PREFIX}crawl:", HOST_PREFIX, f"{PREFIX}domain:")
        rows = self._refill(keys=[ACTIVE_CRAWLS], args=[*prefixes, ADMISSION, stalled, CRAWL_TTL])
        for crawl_id, domain, ended, idle, wait, size, *items in rows:
            names = tuple(item[: item.index("[")] for item in items)
            admitted = admitted_of(items, float(wait), int(size))
            yield Refill(crawl_id, domain, admitted, bool(ended), float(idle), names)

    def confirm_refill(self, refill: Refill) -> None:
        """Note that the pages of a refill are published. Those that another tick has admitted since stay noted."""
        self._redis.srem(f"{crawl_key(refill.crawl_id)}:refilled", *refill.names)

    def begin_republishing(self, crawl_id: str) -> tuple[tuple[FrontierUrl, ...], int]:
        """Return the open messages of a crawl, to be published again, and how often that was since its last progress.

        The crawl's idle time begins again.
        """
        key = crawl_key(crawl_id)
        seconds, _ = self._redis.time()
        rounds = int(self._redis.hget(key, "rounds") or 0) + 1
        self._redis.hset(key, mapping={"last": seconds, "rounds": rounds})
        return self.open_urls(crawl_id), rounds

    def forget_lost_requests(self, crawl_id: str) -> tuple[FrontierUrl, ...]:
        """Return the open messages of a crawl, to be published again since Redis may have lost its last writes.

        Requests in flight to their hosts are forgotten: one that ended in the lost writes would hold its host. The note
        of the published end is forgotten, too: the end may have been recorded in the lost writes.
        """
        messages = self.open_urls(crawl_id)
        hosts = {host_of(each.url) for each in messages}
        self._redis.delete(*parts_of(crawl_key(crawl_id), "ending"), *(host_keys(host)[1] for host in hosts))
        return messages

    def set_state(self, crawl_id: str, state: CrawlState) -> None:
        """Pause, resume or cancel a crawl. Cancelling forgets its backlog and its open messages."""
        key = crawl_key(crawl_id)
        pipe = self._redis.pipeline()
        pipe.hset(key, "state", state)
        if state == "cancelled":
            pipe.hset(key, "cut", 1)
            pipe.delete(*parts_of(key, "backlog", "admitted", "retrying"))
        pipe.expire(key, CRAWL_TTL, nx=True)  # Redis may have forgotten the crawl.
        pipe.execute()

    def begin_end(self, crawl_id: str) -> bool:
        """Note that `end_crawl` of a crawl is about to be published: `refill` does not return the crawl meanwhile.

        Return False, with nothing noted, for a restored crawl, which waits for its sweep first.
        """
        pipe = self._redis.pipeline()
        pipe.sismember(RESTORED_CRAWLS, crawl_id)
        pipe.set(f"{crawl_key(crawl_id)}:ending", 1, ex=_END_PUBLISHING)
        is_restored, _ = pipe.execute()
        if is_restored:
            self.forget_end(crawl_id)
        return not is_restored

    def note_end_published(self, crawl_id: str) -> None:
        """Note that `end_crawl` is published: `refill` returns the crawl again in END_AGAIN seconds.

        Nothing is noted if the message has been handled meanwhile.
        """
        self._redis.expire(f"{crawl_key(crawl_id)}:ending", END_AGAIN)

    def forget_end(self, crawl_id: str) -> None:
        """Note that `end_crawl` came too early: `refill` returns the crawl again when nothing of it is left."""
        self._redis.delete(f"{crawl_key(crawl_id)}:ending")

    def close(self, crawl_id: str) -> bool:
        """Note that a crawl has ended and that its record is complete; return whether that is so."""
        keys = [*parts_of(crawl_key(crawl_id), "", "admitted", "retrying", "backlog", "record"), ACTIVE_CRAWLS]
        return bool(self._close(keys=keys, args=[plain_id(crawl_id), CRAWL_TTL]))

    def abandon(self, crawl_id: str) -> None:
        """Note a crawl as no longer active although its record is not complete: its `end_crawl` is dead-lettered."""
        self._redis.srem(ACTIVE_CRAWLS, plain_id(crawl_id))

    def next_lines(self, crawl_id: str) -> tuple[int, list[str]]:
        """Return the offset of the next segment of a crawl's record, and its lines; see record.lua for their bound."""
        offset, lines = self._next_lines(keys=parts_of(crawl_key(crawl_id), "", "record"))
        return int(offset), [str(line) for line in lines]

    def note_stored_lines(self, crawl_id: str, offset: int, stored: int, lines: Sequence[str]) -> int:
        """Note that the segment at `offset` has `stored` lines, which `lines` are a part of, unless this is noted.

        Return the number of lines that wait for the next segment.
        """
        size = sum(len(line.encode()) for line in lines)
        keys = parts_of(crawl_key(crawl_id), "", "record")
        return int(self._stored(keys=keys, args=[offset, stored, len(lines), size]))

    def note_beginning(self, crawl_id: str) -> None:
        """Note that a process is about to store a crawl's record, and the crawl here afterwards.

        Clients choose ids: the mark of a crawl that was removed with its site would cancel a later one of the same id.
        """
        key = crawl_key(crawl_id)
        pipe = self._redis.pipeline(transaction=False)
        pipe.hget(key, "start")
        pipe.set(f"{key}:beginning", 1, ex=_BEGINNING)
        start, _ = pipe.execute()
        if start == "":
            self._redis.delete(key)

    def is_beginning(self, crawl_id: str) -> bool:
        """Return whether a process begins a crawl, or was killed meanwhile: then the message comes again."""
        return bool(self._redis.exists(f"{crawl_key(crawl_id)}:beginning"))

    def note_restored(self, crawl_id: str, stored_lines: int) -> None:
        """Note that a crawl was restored, and that the store has these lines of its record: it waits for a sweep."""
        self._redis.hsetnx(crawl_key(crawl_id), "stored", stored_lines)
        self._redis.sadd(RESTORED_CRAWLS, crawl_id)

    def note_swept(self, crawl_ids: Collection[str]) -> None:
        """Note that a sweep of these crawls is published, or done."""
        if crawl_ids:
            self._redis.srem(RESTORED_CRAWLS, *crawl_ids)

    def rebuild(
        self,
        crawl_id: str,
        done: Iterable[FetchedPage],
        waiting: Iterable[FrontierUrl],
        dead: Iterable[str] = (),
        *,
        max_pages: int = sys.maxsize,
        traps: TrapLimits | None = None,
    ) -> int:
        """Note pages as done, others as dead or waiting, also those of a sitemap; return how many wait.

        `dead` are canonical keys. Pages that the frontier has already stay as they are. The crawl gets no page beyond
        `max_pages` and its budgets against traps.
        """
        key, added = crawl_key(crawl_id), 0
        rows = chain(
            (("d", FrontierUrl("", each.canonical_key, 0), int(each.indexed), each.text) for each in done),
            (("x", FrontierUrl("", page, 0), 0, "") for page in dead),
            (("w", link, 0, "") for link in waiting),
        )
        while batch := list(islice(rows, 500)):
            arguments = [
                field
                for state, link, indexed, text in batch
                for field in (state, link.name, indexed, to_backlog_json(link), text, len(link.canonical_key))
            ]
            added += self._rebuild(
                keys=parts_of(key, "", "pages", "backlog"),
                args=[*(traps or TrapLimits()).arguments, max_pages, *arguments],
            )
        self._redis.sadd(ACTIVE_CRAWLS, plain_id(crawl_id))
        return added

    def unseen(
        self, crawl_id: str, pages: Mapping[str, str], *, depth: int, max_pages: int, max_depth: int
    ) -> dict[str, str]:
        """Return those of `pages`, URLs by canonical key, that this crawl has not seen and its limits allow.

        `depth` is that of all of them. Where a limit leaves pages out, the crawl is noted as cut.
        """
        named = {fingerprint(each): each for each in pages}
        uncached, _ = self._cache.unseen(crawl_id, named)
        unknown = {each: name for name, each in named.items() if name in uncached}
        if not unknown:
            return {}
        key = crawl_key(crawl_id)
        pipe = self._redis.pipeline(transaction=False)
        pipe.hmget(key, "seen", "born")  # Before the states: if Redis is lost in between, those are forgotten.
        pipe.get(RUN_ID)
        pipe.hmget(f"{key}:pages", list(unknown.values()))
        (seen, born), run_id, states = pipe.execute()
        found = (name for name, state in zip(unknown.values(), states, strict=True) if state)
        self._cache.add_seen(crawl_id, found, born=f"{born or ''} {run_id or ''}")
        fresh = [each for each, state in zip(unknown, states, strict=True) if not state]
        room = 0 if depth > max_depth else max(0, max_pages - int(seen or 0))
        if len(fresh) > room:
            self._redis.hset(key, "cut", 1)
        return {key: pages[key] for key in fresh[:room]}

    def note_published(self, crawl_id: str, links: Sequence[FrontierUrl]) -> None:
        """Note that the broker has confirmed the `index` and `crawl` messages of these pages."""
        if links:
            fields = [field for link in links for field in (link.name, to_backlog_json(link))]
            self._note_published(
                keys=[*parts_of(crawl_key(crawl_id), "", "pages", "admitted"), ACTIVE_CRAWLS],
                args=[CRAWL_TTL, plain_id(crawl_id), *fields],
            )

    def note_soft_404(self, crawl_id: str, text: str) -> None:
        """Note the hash of the text with which the site answers for pages that do not exist."""
        self._redis.hset(crawl_key(crawl_id), "soft_404", text)

    def note_cut(self, crawl_id: str) -> None:
        """Note that a crawl did not follow all links."""
        self._redis.hset(crawl_key(crawl_id), "cut", 1)

    def note_former(
        self, crawl_id: str, entries: Iterable[UrlEntry], *, longest: float | None = None, scheduled: bool = False
    ) -> None:
        """Note what the former crawl's record has of its pages and sitemaps. Each is forgotten when it is completed.

        Of a page that is not stored, these are its links.

        With a `longest` interval and `scheduled`, pages that are not due are not requested.
        """
        key = f"{crawl_key(crawl_id)}:former"
        noted = (
            each for each in entries if each.links or (each.hash and (each.state in STORED_STATES or _was_read(each)))
        )
        while batch := list(islice(noted, _BATCH)):
            formers = {}
            for each in batch:
                name = fingerprint(frontier_key(canonical_key(each.url), SITEMAP if _was_read(each) else ""))
                formers[name] = Former.of(each, longest=longest, scheduled=scheduled)
            self._redis.hset(key, mapping={name: former.to_text() for name, former in formers.items()})
            self._redis.expire(key, CRAWL_TTL)
        # At last: where a part is missing, pages look into the store.
        self._redis.hset(crawl_key(crawl_id), "former", 1)

    def former(self, crawl_id: str, canonical_key: str) -> Former | None:
        """Return what the former crawl knew of a page, or None."""
        found = self._redis.hget(f"{crawl_key(crawl_id)}:former", fingerprint(canonical_key))
        return Former.from_text(str(found or ""))


def _was_read(entry: UrlEntry) -> bool:
    return entry.reason == Reason.SITEMAP
