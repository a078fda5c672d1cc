"""The frontier of a crawl in Redis: what was seen, what is open, what is done, and who belongs to the crawl."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from redis import Redis

from app.state.client import PREFIX, load_script

#: Pages, and crawls, that a process remembers as seen: some 100 bytes a page.
_REMEMBERED, _CRAWLS = 100_000, 8

#: Where a crawl is cut that came to MAX_PAGES or MAX_DEPTH.
LIMIT = "limit"

_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")

#: The two messages that a page has in a crawl.
Kind = Literal["index", "crawl"]


@dataclass(frozen=True, slots=True)
class Crawl:
    """One crawl of a domain. `began` is when its first message was handled; `start` is the start page's URL."""

    id: str
    domain: str
    start: str
    began: datetime
    #: How many other hosts the start page was sent on from.
    moves: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts of a domain's latest crawl; `open` is of all its crawls, `idle` is seconds without a finished page."""

    crawl: Crawl | None
    seen: int
    open: int
    done: int
    dead: int
    members: int
    idle: float


class Frontier:
    """All crawls of one Redis. A message's publication is noted after it was confirmed, so a crash loses no link."""

    def __init__(self, redis: Redis, *, ttl: int) -> None:
        self._redis = redis
        self._ttl = ttl
        self._seen: dict[str, set[str]] = {}
        here = Path(__file__).parent
        self._published = load_script(redis, here / "published.lua")
        self._finished = load_script(redis, here / "finished.lua")

    def begin(self, crawl: Crawl) -> Crawl:
        """Remember a crawl and make it its domain's latest; one that began before keeps its beginning."""
        self._forget_old(crawl.domain)
        key = crawl_name(crawl.id)
        fields = {
            "domain": crawl.domain,
            "start": crawl.start,
            "began": crawl.began.isoformat(),
            "moves": str(crawl.moves),
        }
        pipe = self._redis.pipeline()
        for name, value in fields.items():
            pipe.hsetnx(key, name, value)
        pipe.expire(key, self._ttl)
        pipe.hset(_domain(crawl.domain), mapping={"crawl_id": crawl.id, "last_finished": int(crawl.began.timestamp())})
        pipe.sadd(_crawls(crawl.domain), crawl.id)
        pipe.expire(_crawls(crawl.domain), self._ttl)
        pipe.execute()
        return self.crawl(crawl.id) or crawl

    def _forget_old(self, domain: str) -> None:
        """Take the crawls that Redis forgot off their domain's list, which every new crawl keeps alive."""
        crawls = [str(each) for each in self._redis.smembers(_crawls(domain))]
        pipe = self._redis.pipeline(transaction=False)
        for each in crawls:
            pipe.exists(crawl_name(each), f"{crawl_name(each)}:open")
        gone = [each for each, there in zip(crawls, pipe.execute(), strict=True) if not there]
        if gone:
            self._redis.srem(_crawls(domain), *gone)

    def crawl(self, crawl_id: str) -> Crawl | None:
        """Return a crawl by its id, or None when it is unknown or forgotten."""
        fields = {str(name): str(value) for name, value in self._redis.hgetall(crawl_name(crawl_id)).items()}
        if not fields:
            return None
        began, moves = datetime.fromisoformat(fields["began"]), int(fields.get("moves", 0))
        return Crawl(crawl_id, fields["domain"], fields["start"], began, moves)

    def unseen(self, crawl_id: str, keys: Sequence[str], *, max_pages: int) -> list[int]:
        """Return the indices of the keys not seen in this crawl, no more than its page limit leaves room for."""
        known = self._known(crawl_id)
        asked = [(index, mark) for index, mark in enumerate(map(digest, keys)) if mark not in known]
        if not asked:
            return []
        pipe = self._redis.pipeline(transaction=False)
        pipe.smismember(f"{crawl_name(crawl_id)}:seen", [mark for _, mark in asked])
        pipe.scard(f"{crawl_name(crawl_id)}:seen")
        flags, seen = pipe.execute()
        known.update(mark for (_, mark), flag in zip(asked, flags, strict=True) if flag)
        fresh = [index for (index, _), flag in zip(asked, flags, strict=True) if not flag]
        room = max(0, max_pages - int(seen))
        if len(fresh) > room:
            self.cut(crawl_id, LIMIT)
        return fresh[:room]

    def _known(self, crawl_id: str) -> set[str]:
        """Return what this process knows to be seen in a crawl: once seen, always seen."""
        if crawl_id not in self._seen or len(self._seen[crawl_id]) > _REMEMBERED:
            while len(self._seen) >= _CRAWLS:
                del self._seen[next(iter(self._seen))]
            self._seen[crawl_id] = set()
        return self._seen[crawl_id]

    def published(self, crawl_id: str, keys: Sequence[str]) -> None:
        """Note that the `index` and `crawl` messages of these canonical keys stand in the broker."""
        if keys:
            base = crawl_name(crawl_id)
            self._published(
                keys=[f"{base}:seen", f"{base}:open", f"{base}:done"], args=[self._ttl, *(digest(key) for key in keys)]
            )

    def finished(
        self, crawl_id: str, domain: str, kind: Kind, key: str, *, member: str = "", dead: bool = False
    ) -> None:
        """Note a message as worked on, or dead. `member` is the page's id when the page belongs to the crawl's pack."""
        base = crawl_name(crawl_id)
        self._finished(
            keys=[
                *(f"{base}:{part}" for part in ("open", "done", "dead", "members")),
                *(_domain(domain), base, _crawls(domain)),
            ],
            args=[self._ttl, message_name(kind, key), int(dead), member],
        )

    def cut(self, crawl_id: str, where: str) -> None:
        """Note that a crawl did not follow all links: at a limit (LIMIT), or of the page with this id, which failed."""
        key = f"{crawl_name(crawl_id)}:cut"
        self._redis.sadd(key, where)
        self._redis.expire(key, self._ttl)

    def cuts(self, crawl_id: str) -> set[str]:
        """Return where a crawl did not follow all links."""
        return {str(where) for where in self._redis.smembers(f"{crawl_name(crawl_id)}:cut")}

    def adopt(self, domain: str, member: str) -> None:
        """Make a page that was indexed on its own a member of its domain's latest crawl, whose pack it would miss."""
        crawl_id = self._redis.hget(_domain(domain), "crawl_id")
        if crawl_id:
            key = f"{crawl_name(str(crawl_id))}:members"
            self._redis.sadd(key, member)
            self._redis.expire(key, self._ttl)

    def members(self, crawl_id: str) -> set[str]:
        """Return the ids of the pages that belong to a crawl: indexed, unchanged, or failed and kept."""
        return {str(member) for member in self._redis.smembers(f"{crawl_name(crawl_id)}:members")}

    def outstanding(self, domain: str) -> int:
        """Return how many messages of a domain were published and not finished, over all its crawls."""
        return sum(self._open_by_crawl(domain).values())

    def open_of(self, crawl_id: str) -> int:
        """Return how many messages of one crawl were published and not finished."""
        return int(self._redis.scard(f"{crawl_name(crawl_id)}:open"))

    def give_up(self, domain: str) -> None:
        """Forget what is open of a domain's crawls: nobody works on it. What comes after all is still worked on."""
        crawls = [str(each) for each in self._redis.smembers(_crawls(domain))]
        if crawls:
            self._redis.delete(*(f"{crawl_name(each)}:open" for each in crawls))

    def progress(self, domain: str) -> Progress:
        """Return the counts that a person asks for."""
        fields = self._redis.hgetall(_domain(domain))
        crawl = self.crawl(str(fields["crawl_id"])) if "crawl_id" in fields else None
        base = crawl_name(crawl.id) if crawl else crawl_name("none")
        pipe = self._redis.pipeline(transaction=False)
        for part in ("seen", "done", "dead", "members"):
            pipe.scard(f"{base}:{part}")
        pipe.time()
        seen, done, dead, members, (now, _) = pipe.execute()
        idle = float(now) - float(fields.get("last_finished", now))
        return Progress(crawl, seen, self.outstanding(domain), done, dead, members, idle)

    def state_of(self, crawl_id: str, key: str) -> dict[str, bool]:
        """Return which sets of a crawl hold a page, for `perennial explain`."""
        base, mark = crawl_name(crawl_id), digest(key)
        pipe = self._redis.pipeline(transaction=False)
        pipe.sismember(f"{base}:seen", mark)
        for part in ("open", "done", "dead"):
            pipe.sismember(f"{base}:{part}", f"i{mark}")
            pipe.sismember(f"{base}:{part}", f"c{mark}")
        names = ["seen", *(f"{kind} {part}" for part in ("open", "done", "dead") for kind in ("index", "crawl"))]
        return {name: bool(value) for name, value in zip(names, pipe.execute(), strict=True)}

    def _open_by_crawl(self, domain: str) -> dict[str, int]:
        """Return the number of open messages of each crawl of a domain."""
        crawls = sorted(str(each) for each in self._redis.smembers(_crawls(domain)))
        if not crawls:
            return {}
        pipe = self._redis.pipeline(transaction=False)
        for crawl_id in crawls:
            pipe.scard(f"{crawl_name(crawl_id)}:open")
        return {crawl_id: int(count) for crawl_id, count in zip(crawls, pipe.execute(), strict=True)}


def digest(key: str) -> str:
    """Return the 16 hex digits under which a canonical key stands in the sets: 64 bits keep a million pages apart."""
    return hashlib.blake2b(key.encode(), digest_size=8).hexdigest()


def now() -> datetime:
    """Return the present moment in UTC."""
    return datetime.now(UTC)


def message_name(kind: Kind, key: str) -> str:
    """Return the name under which a page's message stands in the sets."""
    return f"{kind[0]}{digest(key)}"


def crawl_name(crawl_id: str) -> str:
    """Return the key of a crawl in Redis; its sets and visits stand below it.

    An id comes from a client: one that could name another crawl's set, or fill pages, goes by its hash.
    """
    if not _PLAIN_ID.fullmatch(crawl_id):
        crawl_id = hashlib.blake2b(crawl_id.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return f"{PREFIX}crawl:{crawl_id}"


def _domain(domain: str) -> str:
    return f"{PREFIX}domain:{domain}"


def _crawls(domain: str) -> str:
    return f"{PREFIX}domain:{domain}:crawls"
