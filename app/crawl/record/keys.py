"""Where the store holds a crawl and its URLs."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from app.errors import InvalidKey

#: Keys of crawl records begin with this.
CRAWLS_PREFIX: Final = "crawls/"

_PLAIN_ID = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class CrawlRef:
    """One crawl of a domain; a key of the store is formed from both."""

    domain: str
    crawl_id: str

    @property
    def prefix(self) -> str:
        """The prefix of all objects of the crawl: `crawls/<domain>/<crawl id>/`."""
        return f"{domain_prefix(self.domain)}{plain_id(self.crawl_id)}/"

    @property
    def key(self) -> str:
        """The object key of the crawl."""
        return f"{self.prefix}crawl.json"

    @property
    def excluded_key(self) -> str:
        """The object key of the list of its excluded URLs."""
        return f"{self.prefix}excluded.jsonl.zst"

    @property
    def urls_prefix(self) -> str:
        """The prefix of the object keys of the segments with its URLs."""
        return f"{self.prefix}urls/"

    def segment_key(self, offset: int) -> str:
        """Return the object key of the segment whose first entry has this number, counted from 0."""
        return f"{self.urls_prefix}{offset:012}.jsonl.zst"


def plain_id(crawl_id: str) -> str:
    """Return the form of a crawl's id in keys of the store and of Redis.

    A client chooses the id: one that is no plain name of a folder, or is very long, is replaced by its hash.
    """
    if _PLAIN_ID.fullmatch(crawl_id):
        return crawl_id
    return hashlib.blake2b(crawl_id.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def domain_prefix(domain: str) -> str:
    """Return the prefix of the object keys of a domain's crawls; raises InvalidKey for a name that is no domain."""
    return f"{CRAWLS_PREFIX}{checked_domain(domain)}/"


def checked_domain(domain: str) -> str:
    """Return a domain that may be a part of a key; raises InvalidKey for a name that is no domain."""
    if not domain or "/" in domain:
        raise InvalidKey(f"domain {domain!r}: not a host name with an optional port")
    return domain
