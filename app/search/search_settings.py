"""What an operator sets for searches of one site: synonyms, best bets, hidden paths, weights of fields, and meaning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from app.search.contract import BestBet
from app.search.synonyms import NO_SYNONYMS, Synonyms
from app.text.words import words

#: Fields of a page that have a weight, and the factors of weights that may be set.
FIELDS: Final = ("title", "headings", "anchors", "description", "body")
MIN_FACTOR: Final = 0.1
MAX_FACTOR: Final = 10.0
#: Best bets of a site that one search shows.
MAX_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class BestBetRule:
    """A best bet, shown for a query that equals one of `queries`, or that has all words of one element of `words`."""

    best_bet: BestBet
    queries: frozenset[tuple[str, ...]]
    words: tuple[frozenset[str], ...] = ()

    @classmethod
    def of(cls, best_bet: BestBet, *, queries: Iterable[str], containing: Iterable[str]) -> BestBetRule:
        """Return the rule for whole `queries`, and for those `containing` all words of a text."""
        sets = (frozenset(words(text)) for text in containing)
        return cls(best_bet, frozenset(map(words, queries)), tuple(each for each in sets if each))

    def holds(self, query: tuple[str, ...]) -> bool:
        """Return whether the best bet is shown for a query, given its folded words."""
        return query in self.queries or any(each.issubset(query) for each in self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """The settings of one site. `hides` returns whether pages with a path are never shown; None hides none.

    `factors` multiply the weights of fields. With `meaning`, questions are ranked by it, too.
    """

    synonyms: Synonyms = NO_SYNONYMS
    best_bets: tuple[BestBetRule, ...] = ()
    hides: Callable[[str], bool] | None = None
    factors: Mapping[str, float] = field(default_factory=dict)
    meaning: bool = False

    def best_bets_for(self, text: str) -> tuple[BestBet, ...]:
        """Return the first best bets for a query."""
        query = words(text)
        return tuple(islice((rule.best_bet for rule in self.best_bets if rule.holds(query)), MAX_SHOWN))


def factors_of(field_weights: Mapping[str, float]) -> dict[str, float]:
    """Return the factor of each field and of the forms of names, so that only their ratios count.

    Their geometric mean is 1. A site whose weights are all higher must not rank above other sites.
    """
    weights = {name: field_weights.get(name, 1.0) for name in FIELDS}
    if len(set(weights.values())) == 1:
        return {}
    mean = math.prod(weights.values()) ** (1 / len(weights))
    factors = {name: weight / mean for name, weight in weights.items()}
    return factors | {"names": (factors["title"] * factors["headings"] * factors["anchors"]) ** (1 / 3)}


#: The settings of a site that sets nothing.
NO_SETTINGS: Final = SearchSettings()
