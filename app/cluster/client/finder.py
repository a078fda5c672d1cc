"""The contract of whoever finds: what is asked, what is found, and which errors tell that nothing could be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from app.cluster.protocol import Filters, Routes, Sort
from app.search.results import Facet, Hit, PackInfo

#: Domains of one question.
MAX_DOMAINS = 16
#: Hits of several domains are merged as far as this: each domain has to be asked for all that come before.
MAX_MERGED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What somebody wants to know: `q` as it was typed, asked of `domains`."""

    q: str
    domains: tuple[str, ...]
    offset: int = 0
    limit: int = 10
    sort: Sort = "relevance"
    filters: Filters = field(default_factory=Filters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One page of hits of `total`, over all domains that answered.

    `sources` are the packs asked, in the order of the question's domains; `silent` the domains that did not answer in
    time, with the reason, where others did. `reachable` is the number of hits that can be paged through. The other
    fields are as app/search/results.py has them. `seconds` is from question to answer.
    """

    total: int
    capped: bool
    relaxed: bool
    hits: tuple[Hit, ...]
    reachable: int
    seconds: float
    sources: tuple[PackInfo, ...]
    silent: tuple[tuple[str, str], ...] = ()
    facets: tuple[Facet, ...] = ()
    did_you_mean: str = ""


class Finder(Protocol):
    """Finds, from any thread."""

    def routes(self) -> Routes:
        """Return what has a pack and who answers for it, at most a second or so old; raises SearchUnavailable."""

    def search(self, question: Question) -> Found:
        """Search.

        Raises InvalidQuery and InvalidMessage for what cannot be asked, PackNotFound where a domain was never indexed,
        and where nobody answers NotPlaced, SearcherBusy, SearchTimeout, RequestTimedOut, SearchUnavailable or
        PackCorrupt. Of several domains, those that do not answer are `silent` while one does.
        """

    def suggest(self, domains: Sequence[str], q: str, *, limit: int = 8) -> tuple[str, ...]:
        """Return queries that `q` may be the beginning of, best first; errors as of `search`."""

    def close(self) -> None:
        """Let go of connections and files."""


@runtime_checkable
class AsyncFinder(Finder, Protocol):
    """A finder that an event loop can ask: a reply wakes it, and no thread stands in between."""

    async def asearch(self, question: Question) -> Found:
        """As `search`."""
