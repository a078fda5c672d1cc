"""Synonyms of a site: rules as people write them, and queries with the phrases that stand for others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Final, TypeAlias

from app.errors import InvalidQuery
from app.search.query import Phrase, Query, parse
from app.text.words import words as _words

#: Between the phrases of one side of a rule, and between its sides if it holds in one direction only.
_COMMA: Final = ","
_ARROW: Final = "=>"
#: Phrases of a rule, and characters and words of one of them.
MAX_PHRASES: Final = 20
MAX_CHARACTERS: Final = 100
MAX_WORDS: Final = 8
#: Phrases that are added to a query: each costs about as much as a word of it.
_MAX_ADDED: Final = 24

#: The words of a phrase as they are compared: folded, and a name with signs such as `C++` in one piece.
Key: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SynonymRule:
    """A search for one of `phrases` finds each of `found`, too. The two sides of a group are the same."""

    phrases: tuple[str, ...]
    found: tuple[str, ...]


@lru_cache(maxsize=2_000)
def read_rule(text: str) -> SynonymRule:
    """Return the rule of `tv, television` or `tv => television`; raises ValueError with the text and the reason."""
    before, arrow, after = text.partition(_ARROW)
    phrases = tuple(each.strip() for each in before.split(_COMMA))
    found = tuple(each.strip() for each in after.split(_COMMA)) if arrow else phrases
    rule = repr(text[:100])
    for phrase in dict.fromkeys((*phrases, *found)):
        if len(phrase) > MAX_CHARACTERS or '"' in phrase or _ARROW in phrase or not phrase.isprintable():
            raise ValueError(
                f"{rule}: {phrase[:100]!r} is no word or phrase: at most {MAX_CHARACTERS} characters, no quotes"
            )
        try:
            key = key_of(phrase)
        except InvalidQuery as error:
            raise ValueError(f"{rule}: {error}") from None
        if parse(phrase).excluded:
            raise ValueError(f"{rule}: {phrase!r} excludes words: remove the minus before them")
        if len(key) > MAX_WORDS:
            raise ValueError(f"{rule}: {phrase!r} has {len(key)} words; expected at most {MAX_WORDS}")
    keys, found_keys = set(map(key_of, phrases)), set(map(key_of, found))
    if len(keys | found_keys) < 2:
        raise ValueError(f"{rule}: expected two different words or phrases at least, with commas between")
    if arrow and keys & found_keys:
        raise ValueError(f"{rule}: the same phrase is on both sides")
    if len(keys | found_keys) > MAX_PHRASES:
        raise ValueError(f"{rule}: expected at most {MAX_PHRASES} words or phrases")
    return SynonymRule(phrases, found)


def check_cycles(rules: Iterable[SynonymRule]) -> None:
    """Raise ValueError if rules of one direction lead from a phrase back to it."""
    following: dict[Key, dict[Key, None]] = {}
    named: dict[Key, str] = {}
    for rule in rules:
        named |= {key_of(phrase): phrase for phrase in (*rule.phrases, *rule.found)}
        if rule.phrases != rule.found:
            for phrase in rule.phrases:
                following.setdefault(key_of(phrase), {}).update(dict.fromkeys(map(key_of, rule.found)))
    try:
        TopologicalSorter(following).prepare()
    except CycleError as error:
        # The sorter takes keys for predecessors, so its cycle runs against the arrows.
        texts = f" {_ARROW} ".join(named[key] for key in reversed(error.args[1]))
        raise ValueError(f"{texts} is a cycle: write a group, with commas between the phrases") from None


@lru_cache(maxsize=20_000)
def key_of(text: str) -> Key:
    """Return the words of a phrase; raises InvalidQuery for a text without words or with too many."""
    return tuple(word for phrase in parse(text, keep_stop_words=True).phrases for word in _tokens(phrase))


def _tokens(phrase: Phrase) -> tuple[str, ...]:
    return (phrase.symbol,) if phrase.symbol else tuple(word for each in phrase.words for word in _words(each))


@dataclass(frozen=True, slots=True)
class Synonyms:
    """The phrases that stand for others, by the words of the others."""

    by_key: Mapping[Key, tuple[Phrase, ...]]
    longest: int

    @classmethod
    def of(cls, rules: Iterable[SynonymRule]) -> Synonyms:
        """Return the synonyms by rules. A phrase is found with and without its stop words."""
        found: dict[Key, dict[Key, Phrase]] = {}
        for rule in rules:
            phrases = {}
            for text in rule.found:
                parsed = parse(text, keep_stop_words=True).phrases
                # All words adjacent, or the form of a name with signs.
                all_words = Phrase(tuple(word for phrase in parsed for word in phrase.words))
                phrases[key_of(text)] = replace(parsed[0], prefix=False) if len(parsed) == 1 else all_words
            for text in rule.phrases:
                own = key_of(text)
                without_stop_words = tuple(word for phrase in parse(text).phrases for word in _tokens(phrase))
                others = {key: phrase for key, phrase in phrases.items() if key != own}
                for key in {own, without_stop_words}:
                    found.setdefault(key, {}).update(others)
        by_key = {key: tuple(phrases.values()) for key, phrases in found.items()}
        return cls(by_key, max(map(len, by_key), default=0))

    def expanded(self, query: Query) -> Query:
        """Return the query in which the synonyms of its words stand for these; words in quotes have none."""
        if not self.by_key:
            return query
        added: dict[int, dict[Phrase, None]] = {}
        left = _MAX_ADDED
        for first in range(len(query.phrases)):
            key: Key = ()
            for last, phrase in enumerate(query.phrases[first:], first):
                key += _tokens(phrase)
                if phrase.quoted or len(key) > self.longest:
                    break
                run = range(first, last + 1)
                # Each phrase of the run gets them: (A or S) and (B or S) is S or (A and B).
                new = self.by_key.get(key, ())[: max(0, left // len(run))]
                left -= len(new) * len(run)
                for at in run if new else ():
                    added.setdefault(at, {}).update(dict.fromkeys(new))
        phrases = (replace(phrase, synonyms=tuple(added.get(at, ()))) for at, phrase in enumerate(query.phrases))
        return replace(query, phrases=tuple(phrases)) if added else query


#: No synonyms.
NO_SYNONYMS: Final = Synonyms({}, 0)
