"""The contract of a search: the request, the hits of one pack, and the merged result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, TypeAlias
from urllib.parse import quote

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer

from app.search.snippet import Snippet

#: Pages with a match that are ranked. If more match, their number is an estimate.
MAX_HITS = 2_000
#: Hits of one reply.
MAX_LIMIT = 1_000
#: Languages of one visitor.
MAX_LANGUAGES = 10
#: Suggestions of one reply.
MAX_SUGGESTIONS = 20

#: Characters of a fragment that are not encoded (RFC 3986 section 3.5), besides letters and digits.
_FRAGMENT = "!$&'()*+,;=:@/?-._~"

#: Text of a message. Pydantic rejects a lone surrogate only where it counts characters, and no JSON could carry one.
MessageText = Annotated[str, Field(max_length=100_000)]
Sort = Literal["relevance", "date"]

#: Fields that a later release adds to a message are ignored.
_MESSAGE = ConfigDict(extra="ignore", strict=True, serialize_by_alias=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Restrict a search to a path section (`library` of /library/os.html), a language and a type. Empty: any."""

    __pydantic_config__: ClassVar[ConfigDict] = _MESSAGE

    section: MessageText = ""
    lang: MessageText = ""
    type: MessageText = ""


#: A message names one domain, because it goes to a searcher of that domain: `"domain": "site.example"`.
_Domains: TypeAlias = Annotated[
    tuple[MessageText, ...],
    Field(alias="domain"),
    BeforeValidator(lambda domain: (domain,)),
    PlainSerializer(lambda domains: domains[0], return_type=str),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """Search `domains` for `q`, the text that a person typed; return `limit` hits from `offset` on.

    Of identical pages, one in the first of `languages` is shown: tags of what the visitor reads, best first. The web,
    the CLI and the search client use a request as it is; as a message to a searcher it has one domain.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _MESSAGE

    domains: _Domains
    q: MessageText
    offset: Annotated[int, Field(ge=0, lt=MAX_HITS)] = 0
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 10
    sort: Sort = "relevance"
    filters: Filters = field(default_factory=Filters)
    languages: Annotated[tuple[MessageText, ...], Field(max_length=MAX_LANGUAGES)] = ()

    @property
    def domain(self) -> str:
        """The only domain of a request to one searcher."""
        (domain,) = self.domains
        return domain


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestRequest:
    """Ask one domain for queries that start with `q`."""

    __pydantic_config__: ClassVar[ConfigDict] = _MESSAGE

    domain: MessageText
    q: MessageText
    limit: Annotated[int, Field(ge=1, le=MAX_SUGGESTIONS)] = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Subsection:
    """A heading of a page, and the fragment of the page's URL that leads to it."""

    fragment: str
    heading: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternate:
    """The same page in another language."""

    lang: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One page that matches. `headings` are those with a word of the query; a higher score is a better match.

    `section` is the first part of its path, `type` the content type without parameters, `modified` the date that the
    page gives itself (`2026-11-21`). Each is empty where the page has none.

    `opens_at` is the subsection that matches better than the title; None for the page as a whole. `subsections` are
    others that match. `copies` is the number of other pages with the same text, and `copy_urls` are the first ones.
    `alternates` are the page in other languages. `coverage` is the share of the query in title, section and snippet.
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
    opens_at: Subsection | None = None
    subsections: tuple[Subsection, ...] = ()
    copies: int = 0
    copy_urls: tuple[str, ...] = ()
    alternates: tuple[Alternate, ...] = ()
    coverage: float = 1.0

    @property
    def link(self) -> str:
        """The URL at which the hit opens."""
        return self.url_at(self.opens_at) if self.opens_at else self.url

    def url_at(self, subsection: Subsection) -> str:
        """Return the URL of a subsection. Its fragment is encoded: it may have any characters."""
        return f"{self.url}#{quote(subsection.fragment, safe=_FRAGMENT)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BestBet:
    """A page that an operator recommends for a query. It is shown above the hits and not counted."""

    url: str
    title: str
    text: str = ""
    domain: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """Count the hits by the values of a property: (value, pages), most pages first.

    The properties are `section`, `lang` and `type`, and `domain` in a result of several domains.
    """

    name: str
    counts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOfHits:
    """One page of hits of `total`: of one pack, or of several.

    `estimated`: about as many pages match, and facets are estimates, too. `relaxed`: no page has all the words. Facets
    count the matching pages as if the facet's own filter were not set; languages and types are lower case. `reachable`
    is the number of hits that can be paged through. `did_you_mean` is a query that finds more, or empty.
    """

    total: int
    estimated: bool
    reachable: int
    relaxed: bool
    hits: tuple[Hit, ...]
    facets: tuple[Facet, ...] = ()
    did_you_mean: str = ""
    best_bets: tuple[BestBet, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PackHits(PageOfHits):
    """The hits of one pack. Sorted by relevance, scores fall from hit to hit.

    No page of the pack has a higher score than `score_bound` for this query: scores of several packs can be compared
    after division by it.
    """

    score_bound: Annotated[float, Field(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackInfo:
    """Describe a pack by its own metadata; `built_at` is UTC in ISO 8601."""

    domain: str
    generation: str
    built_at: str
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchReply:
    """A searcher's reply to a search: the pack that was searched, and its hits."""

    info: PackInfo
    results: PackHits


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult(PageOfHits):
    """The hits merged from the packs of all domains that answered.

    `sources` are these packs, in the order of the request's domains. `silent` are the domains that did not answer in
    time while others did, each with the reason. `seconds` is the time from request to result. `corrected` is the query
    that the hits are for, if it is not the typed one.
    """

    sources: tuple[PackInfo, ...]
    seconds: float
    silent: tuple[tuple[str, str], ...] = ()
    corrected: str = ""
