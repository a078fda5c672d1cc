"""The policy of a domain's crawls: the settings, or in their place what the site of the domain says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from app.crawl.record.crawls import CrawlSettings
from app.crawl.record.entries import MAX_HASH
from app.crawl.traps import TrapLimits
from app.crawl.urls import MAX_REPEATED_SEGMENTS, Scope
from app.storage.page_parts import hash_of

#: Seconds that a host is left alone at most, whatever its Retry-After demands.
MAX_RETRY_AFTER = 3_600.0

_TOKEN = re.compile(r"[A-Za-z_-]+")

#: Changes when a release finds other links in the same page.
_SELECTION_VERSION = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """What the requests to one site have besides the settings.

    `headers` hold secrets: they are sent to `origins` only, such as `https://site.example`, and never shown.
    """

    user_agent: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    origins: frozenset[str] = frozenset()
    proxy: str = ""
    proxy_login: str = field(default="", repr=False)
    ca_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlPolicy:
    """What holds for the crawls and pages of one domain.

    `settings` become a part of a crawl's record. `seeds` are further URLs with which a crawl begins. `blocked` are
    canonical keys of pages that are never requested. `max_page_interval` is the longest time in seconds between two
    requests of an unchanged page; None requests each page in each crawl. `traps` are the budgets against traps.
    """

    scope: Scope
    settings: CrawlSettings
    request: RequestOptions
    traps: TrapLimits
    seeds: tuple[str, ...] = ()
    blocked: frozenset[str] = frozenset()
    max_page_interval: float | None = None

    @property
    def selection(self) -> str:
        """Hash of the rules that select the links of a page. Stored links are followed again if it is the same."""
        rules = [_SELECTION_VERSION, self.scope.mode, *self.scope.rules.include, "-", *self.scope.rules.exclude]
        if self.scope.max_repeated_segments != MAX_REPEATED_SEGMENTS:
            rules.append(str(self.scope.max_repeated_segments))
        return hash_of("\n".join(rules))[:MAX_HASH]


def product_token(user_agent: str) -> str:
    """Return the product token that robots.txt files address: `Perennial` of `Perennial/0.1 (+https://...)`."""
    found = _TOKEN.match(user_agent)
    return found[0] if found else user_agent


#: Returns the policy of a domain; raises an error of the store where that has to be read.
PolicyOfDomain = Callable[[str], CrawlPolicy]
