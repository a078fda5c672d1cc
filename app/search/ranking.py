"""Rank the pages of a pack by bm25, promote title and phrase matches, and bound the score of any page."""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from urllib.parse import unquote

from app.search import pack_tables, passages, title_match
from app.search.contract import MAX_HITS
from app.search.pack_tables import cut
from app.search.query import Phrase, Query
from app.search.retrieval import Matches, RankingScope, best_first, number_of_matches, ranked_matches
from app.search.stems import Stems
from app.text.titles import NUMBERING, SEPARATOR
from app.text.variants import symbols_in
from app.text.words import words

#: Fields of a page, and their weights, in the order of the columns of `pages_fts`: see app/pack/schema.sql. Forms of
#: names are `names`, and those of other words have the smaller weight of `body`.
_WEIGHTS = (
    ("title", 10.0), ("headings", 5.0), ("anchors", 5.0), ("description", 3.0), ("names", 4.0), ("body", 0.4),
    ("body", 1.0),
)  # fmt: skip
#: The same of the names of pages, in `name_stems`.
_NAME_WEIGHTS = (("title", 2.0), ("headings", 1.0), ("anchors", 2.0))
#: Upper bound of bm25's term frequency factor, k1 + 1. FTS5 has k1 = 1.2
#: (https://sqlite.org/fts5.html#the_bm25_function).
_SATURATION = 2.2
#: FTS5's inverse document frequency for a word on more than half of the pages.
_MIN_IDF = 1e-6
#: Names compared with the query, and pages promoted at most. Phrase matches are promoted if there are no more than
#: that: a phrase that many pages contain does not tell them apart.
_NAME_CANDIDATES = 100
_MAX_PROMOTED = 3
#: Typed words, or names such as `--no-ff`, from which a phrase match is promoted. Fewer may be adjacent by chance:
#: then the score gets a factor instead.
_LONG_PHRASE = 4
_ADJACENT_FACTOR = 2.0
#: Share of the gap between the best ordinary score and the bound that the promoted scores use, at either end.
_PROMOTION_BAND = 0.1

#: Pages with all words below which pages with some of them are ranked, too, and the factor of those with all.
_ENOUGH = 10
_COMPLETE_FACTOR = 2.0
#: What links add to a score at most, as a share of it. A page is navigation if more than this share of all pages lead
#: to it.
_MAX_LINK_SHARE = 0.6
_NAVIGATION = 0.6

_NAME_STEM_SCORES = "SELECT rowid, rank FROM name_stems WHERE name_stems MATCH ? AND rank MATCH ?"
_NAME_STEM_SCORES_OF = f"{_NAME_STEM_SCORES} AND +rowid IN (SELECT value FROM json_each(?))"  # noqa: S608 (ours)
#: Of the rows in order of quality, and of the others.
_BEST_NAMES = """
SELECT rowid FROM (
    SELECT * FROM (SELECT rowid, rank FROM names WHERE names MATCH ?1 AND rowid <= ?2 LIMIT ?3)
    UNION ALL
    SELECT * FROM (SELECT rowid, rank FROM names WHERE names MATCH ?1 AND rowid > ?2 LIMIT ?3)
) ORDER BY rank LIMIT ?4
"""
#: What has a page's names: none is longer than a query, which has 255 characters.
_NAME_COLUMNS = f"""id, {cut("title", 1_000)}, {cut("headings", 1_000)}, {cut("path", 4_000)},
    {cut("anchors", 10_000)}"""
_NUMBERING_OF_LINES = re.compile(NUMBERING.pattern, re.MULTILINE)
#: A word between two names, where many names are compared at once.
_BETWEEN = "qzq"


@dataclass(frozen=True, slots=True)
class Ranking:
    """Scores by page id, best first. `phrases` are what matched: all of the query, or its words if `relaxed`.

    `complete` are the pages with all of the query; if they are few, pages with some of its words follow. Facets count
    `counted`, of which each stands for `factor` pages. `total` is the number of matches, an estimate if it is
    `estimated`.
    """

    scores: dict[int, float]
    phrases: tuple[Phrase, ...]
    complete: Collection[int] = ()
    counted: Collection[int] = ()
    factor: float = 1.0
    total: int = 0
    estimated: bool = False
    relaxed: bool = False


def rank(
    connection: sqlite3.Connection,
    query: Query,
    scope: RankingScope,
    *,
    stems: Stems,
    factors: Mapping[str, float],
) -> Ranking:
    """Rank the pages that match the query; if no page does, those with at least one of its words.

    Unless the scope has a choice, few pages are followed by those that match a part of the query. So are pages that
    match a whole question: its answer may have other words. `factors` of the fields change their weights. `stems` are
    those of the query.
    """
    weights = bm25(factors)
    found = ranked_matches(connection, query.match, scope, weights, named=stems.all_in_names(query.phrases))
    scores, complete, counted, alone = found.scores, found.read, found, query.phrases_alone
    if not complete and len(query.relaxed_terms) > 1:
        found = _ranked_any(connection, query, query.relaxed_terms, scope, weights)
        scores, counted = found.scores, found
    elif len(alone) > 1 and scope.choice is None and (len(complete) < _ENOUGH or query.is_sentence):
        found = _ranked_any(connection, query, alone, scope, weights)
        boosted = {page: _COMPLETE_FACTOR * found.scores.get(page, score) for page, score in scores.items()}
        scores = best_first(found.scores | boosted)
    relaxed = bool(counted.read) and not complete
    name_weights = bm25(factors, _NAME_WEIGHTS)
    scores = _add_name_scores(connection, stems, scores, name_weights, scope)
    phrases = query.relaxed_terms if relaxed else query.phrases
    return Ranking(scores, phrases, complete, counted.read, counted.factor, found.total, found.estimated, relaxed)


def _ranked_any(
    connection: sqlite3.Connection, query: Query, phrases: Sequence[Phrase], scope: RankingScope, weights: str
) -> Matches:
    """Rank the pages with at least one of the phrases; if they are too many, those with one of the rarest ones.

    Without a rare phrase, no page has a high score.
    """
    every = query.any_of(phrases)
    if scope.is_small or pack_tables.count_matches(connection, every, most=MAX_HITS + 1) <= MAX_HITS:
        return ranked_matches(connection, every, scope, weights)
    docs = {each: pack_tables.count_matches(connection, each.match, most=MAX_HITS + 1) for each in phrases}
    by_rarity = sorted((each for each in docs if docs[each]), key=docs.__getitem__)
    sums = accumulate(map(docs.__getitem__, by_rarity))
    rarest = [each for each, sum_of_docs in zip(by_rarity, sums, strict=True) if sum_of_docs <= MAX_HITS]
    rarest = rarest or by_rarity[:1]
    either = " OR ".join(each.match for each in rarest)
    others = " OR ".join(each.match for each in by_rarity if each not in rarest)
    # FTS5 reads the frequent ones only where a rare one is.
    match = f"{either} OR (({either}) AND ({others}))" if others else either
    found = ranked_matches(connection, query.excluding(match), scope, weights)
    if scope.choice is not None or not found.scores:
        # The choice may return none of the pages with a rare phrase, or all of them are hidden.
        chosen = ranked_matches(connection, every, scope, weights)
        return replace(chosen, scores=best_first(chosen.scores | found.scores))
    total = number_of_matches(connection, every, scope)
    read = pack_tables.first_matches(connection, every, hidden=scope.hidden, limit=MAX_HITS)
    return replace(found, total=total, estimated=True, read=read, factor=max(1.0, total / max(1, len(read))))


def bm25(factors: Mapping[str, float], weights: Sequence[tuple[str, float]] = _WEIGHTS) -> str:
    """Return FTS5's ranking function with the weights of columns, each multiplied by the factor of its field."""
    return f"bm25({', '.join(f'{weight * factors.get(field, 1.0):.6g}' for field, weight in weights)})"


def _add_name_scores(
    connection: sqlite3.Connection, stems: Stems, scores: dict[int, float], weights: str, scope: RankingScope
) -> dict[int, float]:
    """Return the scores plus those of the stems in each page's names alone, best first.

    bm25 divides by the length of the whole page, so on a long page a match in the title would hardly count.
    """
    if not scores or not stems.in_names:
        return scores
    if scope.is_small:
        found = connection.execute(_NAME_STEM_SCORES, (stems.in_names, weights))
    else:
        found = connection.execute(_NAME_STEM_SCORES_OF, (stems.in_names, weights, json.dumps([*scores])))
    boosted = {page: scores[page] - score for page, score in found.fetchall() if page in scores}
    if not boosted:
        return scores
    return best_first(scores | boosted)


def boosted_by_links(scores: dict[int, float], inlinks: Sequence[int], *, pages: int) -> dict[int, float]:
    """Return the scores, each with a factor by the number of pages that lead to its page, best first.

    `inlinks` has that number by row id, for a pack with `pages` pages.
    """
    most = _NAVIGATION * pages
    scale = _MAX_LINK_SHARE / math.log1p(most) if most else 0.0

    def factor(number: int) -> float:
        return 1 + scale * math.log1p(number) if 0 < number <= most else 1.0

    # Pages share few numbers, and a logarithm takes longer than a look-up.
    factors = {number: factor(number) for number in set(map(inlinks.__getitem__, scores))}
    return best_first({page: score * factors[inlinks[page]] for page, score in scores.items()})


# Promoted pages


@dataclass(frozen=True, slots=True)
class Promoted:
    """Pages to show first, best first: those whose name is the query, then those with all its words adjacent.

    `boosted` are pages with all words of a short query adjacent, whose score is boosted.
    """

    by_name: Sequence[int]
    by_phrase: Sequence[int] = ()
    boosted: Sequence[int] = ()


def promoted_pages(
    connection: sqlite3.Connection,
    query: Query,
    ranking: Ranking,
    scope: RankingScope,
    *,
    defining: Collection[int] = (),
) -> Promoted:
    """Return the pages of a ranking to promote. Those `defining` the name that the query is come first."""
    bounds = (Phrase(query.typed).match, scope.ordered, MAX_HITS, _NAME_CANDIDATES)
    candidates = [page for (page,) in connection.execute(_BEST_NAMES, bounds)]
    ranked = [page for page in candidates if page in ranking.scores]
    rows = {page: names for page, *names in pack_tables.read_rows(connection, _NAME_COLUMNS, ranked)}
    typed = words(" ".join(query.typed))
    symbols = tuple(phrase.symbol for phrase in query.phrases if phrase.symbol)

    named = [page for page in candidates if page in rows and _has_name(*rows[page], typed=typed, symbols=symbols)]
    by_name = list(dict.fromkeys((*defining, *named)))[:_MAX_PROMOTED]
    if query.phrase_match is None:
        return Promoted(by_name)
    adjacent = pack_tables.first_matches(
        connection,
        query.phrase_match,
        hidden=scope.hidden,
        limit=_MAX_PROMOTED + 1,
        last=max(ranking.scores, default=0),
    )
    if len(adjacent) > _MAX_PROMOTED:
        return Promoted(by_name)
    others = [page for page in adjacent if page not in by_name and page in ranking.scores]
    stop_words = len(query.typed) - len(query.words)
    if len(query.phrases) + stop_words < _LONG_PHRASE:
        return Promoted(by_name, boosted=others)
    return Promoted(by_name, sorted(others, key=ranking.scores.__getitem__, reverse=True))


def promote(promoted: Promoted, scores: dict[int, float], *, bound: float) -> dict[int, float]:
    """Return the scores with promoted pages first: those by name just below the bound, by phrase just above the rest.

    The scores of `boosted` pages are boosted before. Across several packs, a page with the query as its name then ranks
    above pages that only mention it.
    """
    if promoted.boosted:
        # With synonyms, scores may be above the bound until `bounded` cuts them.
        boosted = {page: min(max(bound, scores[page]), _ADJACENT_FACTOR * scores[page]) for page in promoted.boosted}
        scores = best_first(scores | boosted)
    best = next((score for page, score in scores.items() if page not in promoted.by_name), 0.0)
    top = max(bound, best)
    step = _PROMOTION_BAND * (top - best) / (len(promoted.by_name) + len(promoted.by_phrase) + 1)
    ordered = dict.fromkeys([*promoted.by_name, *promoted.by_phrase], 0.0) | scores
    ordered.update((page, top - step * (at + 1)) for at, page in enumerate(promoted.by_name))
    ordered.update((page, best + step * (at + 1)) for at, page in enumerate(reversed(promoted.by_phrase)))
    return ordered


def _has_name(
    title: str, headings: str, path: str, anchors: str, *, typed: Sequence[str], symbols: Sequence[str]
) -> bool:
    """Return whether a name of a page has the typed words only, with the signs of names such as `C++`.

    `os` is a name for the title "os - Miscellaneous", and for /library/os.html and /os/; so is what links call a page.
    """
    segments = [segment for segment in unquote(path.partition("?")[0]).split("/") if segment]
    if segments and segments[-1].partition(".")[0] in {"index", "default"}:
        segments.pop()
    file = segments[-1] if segments else ""
    stem = file.rpartition(".")[0]
    names = {title, *SEPARATOR.split(title), headings.partition("\n")[0], file, stem, *anchors.splitlines()}
    # To search all names at once for these words is much faster than to compare each.
    lines = "\n".join(names)
    without_numbers = _NUMBERING_OF_LINES.sub("", lines)
    different = {lines, without_numbers}  # Mostly one text.
    both = "\n".join(("", *different, "")).replace("\n", f" {_BETWEEN} ")
    if f" {_BETWEEN} {' '.join(typed)} {_BETWEEN} " not in f" {' '.join(words(both))} ":
        return False
    alternatives = names | {NUMBERING.sub("", name) for name in names}
    return any(words(name) == typed and symbols_in(name) == symbols for name in alternatives)


# Upper bound of scores


def score_bound(connection: sqlite3.Connection, ranking: Ranking, *, pages: int, stems: Stems) -> float:
    """Return a score that no page exceeds, in a pack with `pages` rows: every word with its maximum frequency.

    Synonyms do not raise it, so that a site with many is not ranked below others; `bounded` cuts the scores to it.
    """
    factors = _COMPLETE_FACTOR * (1 + _MAX_LINK_SHARE) * (1 + title_match.MAX_SHARE)
    if stems.in_passages:
        factors *= 1 + passages.MAX_SHARE
    return factors * _SATURATION * sum(_phrase_bound(connection, phrase, pages, stems) for phrase in ranking.phrases)


def bounded(scores: dict[int, float], phrases: Iterable[Phrase], *, bound: float) -> dict[int, float]:
    """Return the scores, in the same order, none above the bound: pages may have a word and its synonyms."""
    if not any(phrase.synonyms for phrase in phrases):
        return scores
    return {page: min(score, bound) for page, score in scores.items()}


def _phrase_bound(connection: sqlite3.Connection, phrase: Phrase, pages: int, stems: Stems) -> float:
    """Return the bound of one phrase, or that of its strongest synonym if only synonyms are in the pack."""
    if phrase.synonyms:
        own = replace(phrase, synonyms=())
        alternatives = [each for each in (own, *phrase.synonyms) if pack_tables.count_matches(connection, each.match)]
        if own in alternatives or not alternatives:
            return _phrase_bound(connection, own, pages, stems)
        return max(_phrase_bound(connection, each, pages, stems) for each in alternatives)
    if len(phrase.words) == 1:
        (word,) = words(phrase.words[0])
        exact = pack_tables.doc_frequency(connection, word)
        with_prefix = pack_tables.max_doc_frequency(connection, word) if phrase.prefix else 0
    else:
        exact = with_prefix = pack_tables.count_matches(connection, Phrase(phrase.words).match)
    idf = _idf(exact, pages)
    bound = idf + _idf(max(exact, with_prefix), pages) if phrase.prefix else idf
    for word in (*chain.from_iterable(phrase.forms), phrase.symbol):
        # The vocabulary has no stems: a word on no page would have the highest weight.
        bound += _idf(pack_tables.count_matches(connection, Phrase((word,)).match), pages) if word else 0.0
    in_names = (pack_tables.count_matches(connection, match, table="name_stems") for match in stems.of(phrase))
    return bound + sum(_idf(docs, pages) for docs in in_names)


def _idf(docs: int, pages: int) -> float:
    """Return FTS5's inverse document frequency of a word or phrase on `docs` of `pages` pages."""
    return max(math.log((pages - docs + 0.5) / (docs + 0.5)) if docs < pages else 0.0, _MIN_IDF)
