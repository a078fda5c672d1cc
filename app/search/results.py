"""What a search finds: hits, counts, and the pack that they come from."""

from __future__ import annotations

from dataclasses import dataclass

from app.search.snippet import Snippet

#: Hits that are ranked and counted; beyond, the total is "more than".
MAX_HITS = 10_000
#: Hits of one answer, and suggestions.
MAX_LIMIT = 1_000
MAX_SUGGESTIONS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One page found. `headings` are those with a word of the query; a higher score is a better match.

    `section` is the first part of its path, `type` the content type without parameters, `modified` the date that the
    page gives itself (`2026-11-21`), each empty where it has none.
    """

    url: str
    path: str
    title: str
    snippet: Snippet
    headings: tuple[str, ...]
    lang: str
    score: float
    domain: str = ""
    section: str = ""
    type: str = ""
    modified: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """How the pages found are spread over a property: `section`, `lang` or `type`, and (value, pages), most first."""

    name: str
    counts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """One page of hits of `total`; `capped`: there are more than that; `relaxed`: no page has all the words.

    Each of the `facets` counts the pages found as if there were no filter of its own, of those ranked where the total
    is capped; languages and types are lower case. `did_you_mean` is a query that finds more, or empty. `ideal` is the
    score that no page of the pack exceeds for this query: divided by it, scores of several packs can be compared.
    Sorted by relevance, scores fall from hit to hit.
    """

    total: int
    capped: bool
    relaxed: bool
    hits: tuple[Hit, ...]
    seconds: float
    facets: tuple[Facet, ...] = ()
    did_you_mean: str = ""
    ideal: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackInfo:
    """What a pack says of itself; `built_at` is UTC in ISO 8601."""

    domain: str
    generation: str
    built_at: str
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a searcher replies to `search`: the pack it asked, and what it found there."""

    info: PackInfo
    results: Results
