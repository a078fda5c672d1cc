"""The crawls in Redis as they are: their fields, counts, open messages and states of pages. Nothing is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from redis import Redis
from redis.client import Pipeline

from app.broker.errors import InvalidMessage
from app.crawl.frontier.values import (
    ACTIVE_CRAWLS,
    LISTED,
    NAME_LENGTH,
    PAGE_STATES,
    RESTORED_CRAWLS,
    Completed,
    Crawl,
    ExcludedUrls,
    FailingCrawl,
    Failures,
    FrontierFigures,
    FrontierUrl,
    MessageKind,
    Progress,
    admitted_of,
    crawl_key,
    crawl_of_fields,
    crawls_key,
    foreign_crawl,
    from_backlog_json,
    latest_key,
    message_name,
)
from app.crawl.record.keys import plain_id
from app.crawl.record.reasons import EXCLUDED

#: How the errors of a site that does not answer begin, and the failing pages without progress that show it.
_OUTAGES = ("ConnectionFailed", "ResponseTimeout", "ServerError", "RobotsUnavailable")
_MANY = 3


class CrawlView:
    """Reads the crawls of one Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def crawl(self, crawl_id: str) -> Crawl | None:
        """Return a crawl by its id, or None for an unknown or expired one."""
        fields = {str(name): str(value) for name, value in self._redis.hgetall(crawl_key(crawl_id)).items()}
        return crawl_of_fields(crawl_id, fields)

    def crawl_of(self, domain: str, crawl_id: str) -> Crawl | None:
        """Return a crawl of a domain, or None as `crawl` does; raises InvalidMessage for a crawl of another domain."""
        found = self.crawl(crawl_id)
        if found and found.domain != domain:
            raise InvalidMessage(foreign_crawl(crawl_id, found.domain, domain))
        return found

    def latest(self, domain: str) -> Crawl | None:
        """Return the latest crawl of a domain, or None for a domain without one."""
        crawl_id = self._redis.get(latest_key(domain))
        return self.crawl(str(crawl_id)) if crawl_id else None

    def state(self, crawl_id: str) -> str | None:
        """Return the state of a crawl in Redis, or None for an unknown or expired one."""
        state = self._redis.hget(crawl_key(crawl_id), "state")
        return None if state is None else str(state)

    def active_domains(self) -> list[str]:
        """Return the domains with a crawl that has pages left, or whose end is not recorded yet."""
        return sorted({crawl.domain for crawl in self.active()})

    def active(self) -> list[Crawl]:
        """Return the crawls that have pages left, or whose end is not recorded yet."""
        crawls = map(self.crawl, sorted(str(crawl_id) for crawl_id in self._redis.smembers(ACTIVE_CRAWLS)))
        return [crawl for crawl in crawls if crawl is not None]

    def active_figures(self) -> dict[str, tuple[str, int]]:
        """Return the state, and the number of dead messages, of the crawls that `active` returns, by domain.

        Of several crawls of a domain, that of the largest id. One round trip after the ids, however many crawls.
        """
        ids = sorted(str(crawl_id) for crawl_id in self._redis.smembers(ACTIVE_CRAWLS))
        pipe = self._redis.pipeline(transaction=False)
        for crawl_id in ids:
            pipe.hmget(crawl_key(crawl_id), ["domain", "state", "dead"])
        rows = pipe.execute()
        return {str(domain): (str(state or "running"), int(dead or 0)) for domain, state, dead in rows if domain}

    def open_urls(self, crawl_id: str) -> tuple[FrontierUrl, ...]:
        """Return the URLs of a crawl whose messages are published and not completed, also while they wait."""
        key = crawl_key(crawl_id)
        pipe = self._redis.pipeline(transaction=False)
        pipe.hgetall(f"{key}:admitted")
        pipe.hgetall(f"{key}:retrying")
        admitted, retrying = pipe.execute()
        return admitted_of((f"{name}{entry}" for name, entry in {**admitted, **retrying}.items()), 0.0).urls

    def restored(self) -> list[str]:
        """Return the ids of the restored crawls that wait for a sweep."""
        return sorted(str(crawl_id) for crawl_id in self._redis.smembers(RESTORED_CRAWLS))

    def crawled(self, domains: Collection[str]) -> set[str]:
        """Return the domains with a crawl that has pages left, or whose end is not recorded yet.

        So has a crawl that was restored and waits for a sweep, which may find more of its pages.
        """
        pipe = self._redis.pipeline(transaction=False)
        for domain in domains:
            pipe.smembers(crawls_key(domain))
        domain_of = {str(each): domain for domain, ids in zip(domains, pipe.execute(), strict=True) for each in ids}
        if not domain_of:
            return set()
        active = self._redis.smismember(ACTIVE_CRAWLS, list(map(plain_id, domain_of)))
        restored = self._redis.smismember(RESTORED_CRAWLS, list(domain_of))
        left = map(sum, self._open_and_waiting(domain_of))
        return {domain for domain, *held in zip(domain_of.values(), active, restored, left, strict=True) if any(held)}

    def is_active(self, domain: str) -> bool:
        """Return whether a crawl of a domain has pages left, or its end is not recorded yet."""
        crawls = self._crawls_of(domain)
        return bool(crawls) and any(self._redis.smismember(ACTIVE_CRAWLS, [plain_id(each) for each in crawls]))

    def unconfirmed(self, crawl_id: str, kind: MessageKind, canonical_key: str) -> Completed:
        """Return the pages that a completed message admitted, and that may not be published yet."""
        key, name = crawl_key(crawl_id), message_name(kind, canonical_key)
        names = str(self._redis.hget(f"{key}:unconfirmed", name) or "")
        pages = [names[at : at + NAME_LENGTH] for at in range(0, len(names), NAME_LENGTH)]
        entries = self._redis.hmget(f"{key}:admitted", pages) if pages else []
        items = [f"{page}{entry!s}" for page, entry in zip(pages, entries, strict=True) if entry]
        return Completed(admitted_of(items, 0.0), name)

    def failures(self, crawl_id: str, kind: MessageKind, canonical_key: str) -> Failures | None:
        """Return the failures of a message since it was published, or None without any."""
        found = self._redis.hget(f"{crawl_key(crawl_id)}:failures", message_name(kind, canonical_key))
        return _failures_of(found) if found else None

    def last_attempt(self, crawl_id: str, *, retry_ms: int) -> float:
        """Return when the last next attempt of a crawl's failed messages may begin; see `Failures`; 0 without any."""
        noted = self._redis.hvals(f"{crawl_key(crawl_id)}:failures")
        return max((_failures_of(each).next_attempt(retry_ms) for each in noted), default=0.0)

    def unreachable(self) -> list[FailingCrawl]:
        """Return the running crawls whose site does not answer.

        That is so after two failed attempts at a page of a crawl without any content, or at three pages without
        progress since. A failure is a failed connection, a response that is too late, or a server error.
        """
        found = []
        for crawl in self.active():
            pipe = self._redis.pipeline(transaction=False)
            pipe.hmget(crawl_key(crawl.id), "state", "last", "indexed")
            pipe.hgetall(f"{crawl_key(crawl.id)}:failures")
            (state, last, indexed), noted = pipe.execute()
            failures = {name: _failures_of(each) for name, each in noted.items()}
            recent = {
                name: each
                for name, each in failures.items()
                if each.at >= int(float(last or 0)) and each.error.startswith(_OUTAGES)
            }
            pages = {name[-NAME_LENGTH:] for name in recent}  # A start page has two messages.
            is_many = len(pages) >= (_MANY if int(indexed or 0) else 1)
            if (state or "running") == "running" and is_many and any(each.number > 1 for each in recent.values()):
                latest = max(recent.values(), key=lambda each: each.at)
                found.append(FailingCrawl(crawl.id, crawl.domain, len(pages), latest.error))
        return found

    def buffered_lines(self, crawl_id: str, limit: int) -> tuple[int, list[str]]:
        """Return the offset of the first line of the record that is not in the store, and up to `limit` such lines.

        A `limit` of -1 returns all of them.
        """
        key = crawl_key(crawl_id)
        pipe = self._redis.pipeline()
        pipe.hget(key, "stored")
        pipe.lrange(f"{key}:record", 0, max(-1, limit - 1))
        stored, lines = pipe.execute()
        return int(stored or 0), [str(line) for line in lines]

    def figures(self, crawl_id: str) -> FrontierFigures:
        """Return what Redis has of a crawl, in one round trip; zeros for an unknown one."""
        key, names = crawl_key(crawl_id), ("seen", "indexed", "done", "dead", "cut")
        pipe = self._redis.pipeline()
        pipe.hmget(key, names)
        _ask_open_and_waiting(pipe, key)
        pipe.sismember(RESTORED_CRAWLS, crawl_id)
        pipe.smembers(f"{key}:closed")
        values, *left, is_restored, closed = pipe.execute()
        return FrontierFigures(
            counts={name: int(value or 0) for name, value in zip(names, values, strict=True)},
            left=sum(left),
            is_restored=bool(is_restored),
            closed=frozenset(map(str, closed)),
        )

    def open_messages(self, domain: str) -> int:
        """Return the number of open messages and waiting pages of a domain, over all its crawls."""
        return sum(map(sum, self._open_and_waiting(self._crawls_of(domain))))

    def progress(self, domain: str) -> Progress:
        """Return the counts of a domain's latest crawl."""
        crawl_id = str(self._redis.get(latest_key(domain)) or "")
        pipe = self._redis.pipeline(transaction=False)
        pipe.hgetall(crawl_key(crawl_id))
        pipe.time()
        fields, (seconds, _) = pipe.execute()
        crawls = self._crawls_of(domain)
        counts = dict(zip(crawls, self._open_and_waiting(crawls), strict=True))
        seen, done, dead, indexed = (int(fields.get(name, 0)) for name in ("seen", "done", "dead", "indexed"))
        return Progress(
            crawl=crawl_of_fields(crawl_id, fields),
            seen=seen,
            open=sum(open_messages for open_messages, _ in counts.values()),
            waiting=counts.get(crawl_id, (0, 0))[1],
            waiting_elsewhere=sum(waiting for each, (_, waiting) in counts.items() if each != crawl_id),
            done=done,
            dead=dead,
            indexed=indexed,
            idle=max(0.0, float(seconds) - float(fields.get("last", seconds))),
            state=fields.get("state", "running"),
            delay=float(fields.get("delay", 0)),
        )

    def page_state(self, crawl_id: str, canonical_key: str) -> dict[MessageKind, str]:
        """Return the states of a page's messages in a crawl, for `perennial explain`; empty for an unseen page."""
        kinds: tuple[MessageKind, ...] = ("page", "index", "crawl")
        states = self._redis.hmget(
            f"{crawl_key(crawl_id)}:pages", [message_name(kind, canonical_key) for kind in kinds]
        )
        return {kind: PAGE_STATES[str(state)] for kind, state in zip(kinds, states, strict=True) if state}

    def excluded(self, crawl_id: str) -> ExcludedUrls:
        """Return the URLs that a crawl found and never requests, without those that are pages of it by another link."""
        key = crawl_key(crawl_id)
        pipe = self._redis.pipeline(transaction=False)
        pipe.hgetall(f"{key}:excluded")
        for code in EXCLUDED:
            pipe.pfcount(f"{key}:excluded:{code}")
        entries, *counted = pipe.execute()
        names = list(entries)
        states = self._redis.hmget(f"{key}:pages", names) if names else []
        listed = []
        for name, state in zip(names, states, strict=True):
            if state is None:
                reason, bracket, entry = str(entries[name]).partition("[")
                listed.append((reason, from_backlog_json(bracket + entry)))
        exact = Counter(reason for reason, _ in listed)
        counts = {
            str(code): number if number > LISTED else exact[code]
            for code, number in zip(EXCLUDED, counted, strict=True)
        }
        return ExcludedUrls({reason: number for reason, number in counts.items() if number}, tuple(listed))

    def _crawls_of(self, domain: str) -> list[str]:
        return [str(each) for each in self._redis.smembers(crawls_key(domain))]

    def _open_and_waiting(self, crawl_ids: Iterable[str]) -> list[tuple[int, int]]:
        pipe = self._redis.pipeline(transaction=False)
        for key in map(crawl_key, crawl_ids):
            _ask_open_and_waiting(pipe, key)
        counts = iter(pipe.execute())
        return [
            (admitted + retrying, waiting) for admitted, retrying, waiting in zip(counts, counts, counts, strict=True)
        ]


def _ask_open_and_waiting(pipe: Pipeline, key: str) -> None:
    """Ask for a crawl's open messages, in two numbers, and its waiting pages."""
    pipe.hlen(f"{key}:admitted")
    pipe.hlen(f"{key}:retrying")
    pipe.llen(f"{key}:backlog")


def _failures_of(text: object) -> Failures:
    number, at, error = str(text).split(" ", 2)
    return Failures(int(number), float(at), error)
