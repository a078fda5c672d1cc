"""The frontier of a crawl in Redis: pages seen, messages open, done and dead, and the ids of its pages."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from redis import Redis

from app.broker.errors import InvalidMessage
from app.state.client import PREFIX, load_script

#: Seen pages of one crawl that a process caches, about 100 bytes each.
_CACHED_PAGES = 100_000
#: Crawls whose seen pages a process caches.
_CACHED_CRAWLS = 8

#: Marks a crawl that reached MAX_PAGES or MAX_DEPTH.
CUT_AT_LIMIT = "limit"

_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")

#: A page has one message of each kind in a crawl.
MessageKind = Literal["index", "crawl"]


@dataclass(frozen=True, slots=True)
class Crawl:
    """One crawl of a domain. `started` is when its first message was handled."""

    id: str
    domain: str
    start_url: str
    started: datetime
    #: How often the start page redirected to another host, and the crawl with it.
    moves: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts of a domain's latest crawl. `seen` and `indexed` count pages; `open`, `done` and `dead` messages.

    `open` is the sum over all crawls of the domain; `idle` is seconds since a message was completed.
    """

    crawl: Crawl | None
    seen: int
    open: int
    done: int
    dead: int
    indexed: int
    idle: float


class Frontier:
    """All crawls of one Redis. Call `note_published` only after the broker's confirm, or a crash loses links."""

    def __init__(self, redis: Redis, *, ttl: int) -> None:
        self._redis = redis
        self._ttl = ttl
        self._seen: dict[str, set[str]] = {}
        folder = Path(__file__).parent
        self._note_published = load_script(redis, folder / "published.lua")
        self._complete = load_script(redis, folder / "complete.lua")

    def begin(self, crawl: Crawl) -> Crawl:
        """Store a crawl as its domain's latest, and return it; one that is stored already keeps its first values."""
        # Each crawl renews the set's TTL, so its expired members must be removed here.
        crawls = [str(each) for each in self._redis.smembers(_crawls_key(crawl.domain))]
        pipe = self._redis.pipeline(transaction=False)
        for each in crawls:
            pipe.exists(crawl_key(each), f"{crawl_key(each)}:open")
        expired = [each for each, exists in zip(crawls, pipe.execute(), strict=True) if not exists]
        if expired:
            self._redis.srem(_crawls_key(crawl.domain), *expired)
        key = crawl_key(crawl.id)
        fields = {
            "domain": crawl.domain,
            "start": crawl.start_url,
            "began": crawl.started.isoformat(),
            "moves": str(crawl.moves),
        }
        pipe = self._redis.pipeline()
        for name, value in fields.items():
            pipe.hsetnx(key, name, value)
        pipe.expire(key, self._ttl)
        last_finished = int(crawl.started.timestamp())
        pipe.hset(_domain_key(crawl.domain), mapping={"crawl_id": crawl.id, "last_finished": last_finished})
        pipe.sadd(_crawls_key(crawl.domain), crawl.id)
        pipe.expire(_crawls_key(crawl.domain), self._ttl)
        pipe.execute()
        return self.crawl(crawl.id) or crawl

    def crawl(self, crawl_id: str) -> Crawl | None:
        """Return a crawl by its id, or None for an unknown or expired one."""
        fields = {str(name): str(value) for name, value in self._redis.hgetall(crawl_key(crawl_id)).items()}
        if not fields:
            return None
        started, moves = datetime.fromisoformat(fields["began"]), int(fields.get("moves", 0))
        return Crawl(crawl_id, fields["domain"], fields["start"], started, moves)

    def crawl_of(self, domain: str, crawl_id: str) -> Crawl | None:
        """Return a crawl of a domain, or None as `crawl` does; raises InvalidMessage for a crawl of another domain."""
        found = self.crawl(crawl_id)
        if found and found.domain != domain:
            raise InvalidMessage(foreign_crawl(crawl_id, found.domain, domain))
        return found

    def unseen(
        self, crawl_id: str, pages: Mapping[str, str], *, depth: int, max_pages: int, max_depth: int
    ) -> dict[str, str]:
        """Return those of `pages`, URLs by canonical key, that this crawl has not seen and its limits allow.

        `depth` is that of all of them. Where a limit leaves pages out, the crawl is noted as cut.
        """
        # A seen page stays seen, so the cache is never wrong; it is only bounded.
        if len(self._seen.get(crawl_id, ())) > _CACHED_PAGES:
            del self._seen[crawl_id]
        while crawl_id not in self._seen and len(self._seen) >= _CACHED_CRAWLS:
            del self._seen[next(iter(self._seen))]
        cached = self._seen.setdefault(crawl_id, set())
        unknown = {key: hashed for key in pages if (hashed := fingerprint(key)) not in cached}
        if not unknown:
            return {}
        pipe = self._redis.pipeline(transaction=False)
        pipe.smismember(f"{crawl_key(crawl_id)}:seen", list(unknown.values()))
        pipe.scard(f"{crawl_key(crawl_id)}:seen")
        flags, seen = pipe.execute()
        cached.update(hashed for hashed, flag in zip(unknown.values(), flags, strict=True) if flag)
        fresh = [key for key, flag in zip(unknown, flags, strict=True) if not flag]
        room = 0 if depth > max_depth else max(0, max_pages - int(seen))
        if len(fresh) > room:
            self.note_cut(crawl_id, CUT_AT_LIMIT)
        return {key: pages[key] for key in fresh[:room]}

    def note_published(self, crawl_id: str, canonical_keys: Sequence[str]) -> None:
        """Note that the broker has confirmed the `index` and `crawl` messages of these pages."""
        if canonical_keys:
            base = crawl_key(crawl_id)
            self._note_published(
                keys=[f"{base}:seen", f"{base}:open", f"{base}:done"],
                args=[self._ttl, *map(fingerprint, canonical_keys)],
            )

    def complete(
        self,
        crawl_id: str,
        domain: str,
        kind: MessageKind,
        canonical_key: str,
        *,
        page_id: str = "",
        dead: bool = False,
    ) -> None:
        """Note a message as done, or as dead; `page_id` is given when the page belongs in the crawl's pack."""
        base = crawl_key(crawl_id)
        self._complete(
            keys=[
                *(f"{base}:{part}" for part in ("open", "done", "dead", "members")),
                *(_domain_key(domain), base, _crawls_key(domain)),
            ],
            args=[self._ttl, message_name(kind, canonical_key), int(dead), page_id],
        )

    def note_cut(self, crawl_id: str, cut: str) -> None:
        """Note that a crawl did not follow all links: `cut` is CUT_AT_LIMIT, or a page id."""
        key = f"{crawl_key(crawl_id)}:cut"
        self._redis.sadd(key, cut)
        self._redis.expire(key, self._ttl)

    def cuts(self, crawl_id: str) -> set[str]:
        """Return the cuts of a crawl: CUT_AT_LIMIT, and the ids of pages whose links are unknown."""
        return {str(cut) for cut in self._redis.smembers(f"{crawl_key(crawl_id)}:cut")}

    def add_to_latest(self, domain: str, page_id: str) -> None:
        """Add a page that was indexed outside of a crawl to its domain's latest one, so that its full pack has it."""
        crawl_id = self._redis.hget(_domain_key(domain), "crawl_id")
        if crawl_id:
            key = f"{crawl_key(str(crawl_id))}:members"
            self._redis.sadd(key, page_id)
            self._redis.expire(key, self._ttl)

    def page_ids(self, crawl_id: str) -> set[str]:
        """Return the ids of the pages in a crawl's pack: indexed, unchanged, or failed and kept."""
        return {str(page_id) for page_id in self._redis.smembers(f"{crawl_key(crawl_id)}:members")}

    def open_messages(self, domain: str) -> int:
        """Return the number of open messages of a domain, over all its crawls."""
        crawls = [str(each) for each in self._redis.smembers(_crawls_key(domain))]
        pipe = self._redis.pipeline(transaction=False)
        for crawl_id in crawls:
            pipe.scard(f"{crawl_key(crawl_id)}:open")
        return sum(map(int, pipe.execute()))

    def open_messages_of(self, crawl_id: str) -> int:
        """Return the number of open messages of one crawl."""
        return int(self._redis.scard(f"{crawl_key(crawl_id)}:open"))

    def forget_open_messages(self, domain: str) -> None:
        """Forget the open messages of a domain, which are lost. One that arrives after all is still worked on."""
        crawls = [str(each) for each in self._redis.smembers(_crawls_key(domain))]
        if crawls:
            self._redis.delete(*(f"{crawl_key(each)}:open" for each in crawls))

    def progress(self, domain: str) -> Progress:
        """Return the counts of a domain's latest crawl."""
        fields = self._redis.hgetall(_domain_key(domain))
        crawl = self.crawl(str(fields["crawl_id"])) if "crawl_id" in fields else None
        base = crawl_key(crawl.id if crawl else "none")
        pipe = self._redis.pipeline(transaction=False)
        for part in ("seen", "done", "dead", "members"):
            pipe.scard(f"{base}:{part}")
        pipe.time()
        seen, done, dead, indexed, (seconds, _) = pipe.execute()
        idle = float(seconds) - float(fields.get("last_finished", seconds))
        return Progress(crawl, seen, self.open_messages(domain), done, dead, indexed, idle)

    def page_state(self, crawl_id: str, canonical_key: str) -> dict[str, bool]:
        """Return which sets of a crawl contain a page and its messages, for `perennial explain`."""
        base, hashed = crawl_key(crawl_id), fingerprint(canonical_key)
        pipe = self._redis.pipeline(transaction=False)
        pipe.sismember(f"{base}:seen", hashed)
        for part in ("open", "done", "dead"):
            pipe.sismember(f"{base}:{part}", f"i{hashed}")
            pipe.sismember(f"{base}:{part}", f"c{hashed}")
        names = ["seen", *(f"{kind} {part}" for part in ("open", "done", "dead") for kind in ("index", "crawl"))]
        return {name: bool(value) for name, value in zip(names, pipe.execute(), strict=True)}


def fingerprint(canonical_key: str) -> str:
    """Return the 16 hex digits that stand for a canonical key in Redis; 64 bits tell a million pages apart."""
    return hashlib.blake2b(canonical_key.encode(), digest_size=8).hexdigest()


def message_name(kind: MessageKind, canonical_key: str) -> str:
    """Return the member of the sets that stands for a page's message."""
    return f"{kind[0]}{fingerprint(canonical_key)}"


def foreign_crawl(crawl_id: str, owner: str, domain: str) -> str:
    """Return the error text for a message of one domain that names a crawl of another."""
    return f"crawl_id {crawl_id!r}: it is a crawl of {owner}, not of {domain}"


def crawl_key(crawl_id: str) -> str:
    """Return the Redis key of a crawl; the keys of its sets and fetch results begin with it.

    A client chooses the id: one that could form another crawl's key, or that is very long, is replaced by its hash.
    """
    if not _PLAIN_ID.fullmatch(crawl_id):
        crawl_id = hashlib.blake2b(crawl_id.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return f"{PREFIX}crawl:{crawl_id}"


def _domain_key(domain: str) -> str:
    return f"{PREFIX}domain:{domain}"


def _crawls_key(domain: str) -> str:
    return f"{PREFIX}domain:{domain}:crawls"
