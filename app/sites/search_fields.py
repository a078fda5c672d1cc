"""Fields of a site that change searches of it, checked one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from app.broker.nesting import read_json
from app.crawl.urls import parse_url
from app.errors import InvalidUrl
from app.search.contract import BestBet
from app.search.query import MAX_CHARACTERS
from app.search.search_settings import FIELDS, MAX_FACTOR, MIN_FACTOR, BestBetRule
from app.search.synonyms import check_cycles, read_rule
from app.text.words import words

#: Rules of synonyms, best bets, and queries of a best bet.
MAX_SYNONYMS: Final = 1_000
MAX_BEST_BETS: Final = 1_000
_MAX_QUERIES: Final = 20
#: Characters of a best bet's title, text and URL.
_MAX_TITLE: Final = 200
_MAX_TEXT: Final = 500
_MAX_URL: Final = 2_000


def normalised_url(text: str) -> str:
    """Return a URL as crawls write it; raises ValueError."""
    try:
        return parse_url(text)
    except InvalidUrl as error:
        raise ValueError(str(error)) from None


def printable(text: str) -> str:
    """Return the text; raises ValueError for characters that cannot be printed."""
    if not text.isprintable():
        raise ValueError("it contains characters that cannot be printed")
    return text


def _query(text: str) -> str:
    if not words(text):
        raise ValueError(f"{text[:100]!r}: there is no letter or digit to search for")
    return text


def _from_json(value: Any) -> Any:
    """Return the object that a text of JSON has: so a command line names a best bet."""
    if not isinstance(value, str):
        return value
    try:
        return read_json(value)
    except ValueError as error:
        raise ValueError(f'expected JSON such as {{"queries": [...], "url": ..., "title": ...}}: {error}') from None


_Queries = Annotated[
    tuple[Annotated[str, Field(max_length=MAX_CHARACTERS), AfterValidator(_query)], ...],
    Field(max_length=_MAX_QUERIES),
]
_Line = Annotated[str, AfterValidator(printable), AfterValidator(str.strip)]


class SiteBestBet(BaseModel):
    """A page that is recommended for queries: those equal to one of `queries`, or with all words of one of `words`."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    queries: _Queries = ()
    words: _Queries = ()
    url: Annotated[str, AfterValidator(normalised_url)] = Field(max_length=_MAX_URL)
    title: _Line = Field(min_length=1, max_length=_MAX_TITLE)
    text: _Line = Field("", max_length=_MAX_TEXT)

    def rule(self) -> BestBetRule:
        """Return the rule that searchers take."""
        best_bet = BestBet(url=self.url, title=self.title, text=self.text)
        return BestBetRule.of(best_bet, queries=self.queries, containing=self.words)


def _has_query(best_bet: SiteBestBet) -> SiteBestBet:
    if not best_bet.queries and not best_bet.words:
        raise ValueError(f"{best_bet.url}: it has neither queries nor words")
    return best_bet


def _synonyms(texts: tuple[str, ...]) -> tuple[str, ...]:
    check_cycles([read_rule(text) for text in texts])
    return texts


def _weights(weights: dict[str, float]) -> dict[str, float]:
    for name, weight in weights.items():
        if name not in FIELDS:
            raise ValueError(f"{name[:100]!r} is no field: expected {', '.join(FIELDS)}")
        if not MIN_FACTOR <= weight <= MAX_FACTOR:
            raise ValueError(f"{name}: {weight:g} is not from {MIN_FACTOR:g} to {MAX_FACTOR:g}")
    return weights


SynonymRules = Annotated[tuple[str, ...], Field(max_length=MAX_SYNONYMS), AfterValidator(_synonyms)]
BestBets = Annotated[
    tuple[Annotated[SiteBestBet, BeforeValidator(_from_json), AfterValidator(_has_query)], ...],
    Field(max_length=MAX_BEST_BETS),
]
FieldWeights = Annotated[dict[str, float], AfterValidator(_weights)]


def known_best_bets(values: Sequence[Any]) -> list[Any]:
    """Return best bets without the fields of later releases."""
    return [
        {name: value for name, value in each.items() if name in SiteBestBet.model_fields}
        if isinstance(each, Mapping)
        else each
        for each in values
    ]
