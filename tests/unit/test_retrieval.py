"""Queries at size: a bounded search finds what an unbounded one finds, and says what is an estimate."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.search import pack_searcher, passages, promotion, ranking, retrieval
from app.search.contract import Filters, PackHits, Sort
from app.search.pack_searcher import PackSearcher
from app.search.query import parse
from app.search.retrieval import RankingScope, ranked_matches, rounded
from app.storage.page_parts import PageLink
from tests.packs import page, write_pack

pytestmark = pytest.mark.unit

#: Pages that are ranked and counted in these tests, and the words of their packs.
RANKED, COUNTED = 20, 40
WORDS = ("merge", "merging", "branch", "tags", "tagged", "commit", "remote", "C++", "全体図")
WEIGHTS = ranking.bm25({})


@contextmanager
def bounds(ranked: int = RANKED, counted: int = COUNTED) -> Iterator[None]:
    """Search with lower bounds than those of the program."""
    with patch.object(retrieval, "MAX_COUNTED", counted):
        modules = (retrieval, ranking, promotion, passages, pack_searcher)
        patches = [patch.object(module, "MAX_HITS", ranked) for module in modules]
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                each.stop()


texts = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)
contents = st.lists(st.tuples(texts, texts), min_size=1, max_size=5)
queries = st.lists(st.sampled_from((*WORDS, "and", "mer")), min_size=1, max_size=4).map(" ".join)


def pack_of(folder: Path, found: Sequence[tuple[str, str]]) -> Path:
    """Write a pack in which few pages have each word."""
    links = (PageLink("https://site.example/1", "commit"),)
    named = [page(f"/a/{at}", title, body, lang="en", links=links) for at, (title, body) in enumerate(found)]
    return write_pack(folder / "pack.sqlite", [*named, *(page(f"/b/{at}", f"Other {at}", "Text") for at in range(30))])


@settings(max_examples=25, deadline=None)
@given(contents, st.lists(queries, min_size=1, max_size=6), st.sampled_from(["relevance", "date"]))
def test_a_search_with_few_matches_is_the_same_with_bounds_and_without(
    tmp_path_factory: pytest.TempPathFactory, found: list[tuple[str, str]], typed: list[str], sort: Sort
) -> None:
    with closing(PackSearcher(pack_of(tmp_path_factory.mktemp("pack"), found), time_limit=10)) as searcher:
        for text in typed:
            for filters in (Filters(), Filters(section="a")):
                whole = searcher.search(parse(text), sort=sort, filters=filters)
                with bounds(ranked=30):
                    bounded = searcher.search(parse(text), sort=sort, filters=filters)
                assert not bounded.estimated
                assert comparable(bounded) == comparable(whole)


def comparable(found: PackHits) -> tuple[object, ...]:
    hits = [(hit.url, hit.score, hit.snippet, hit.opens_at) for hit in found.hits]
    return found.total, found.reachable, found.relaxed, hits, found.facets, found.did_you_mean, found.score_bound


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a pack in which all of 60 pages have one word, and every third another one; the last is named by it.

    Each path is longer than the one before, so the row ids are in this order.
    """
    made = [page(f"/{'ab'[at % 2]}/{'x' * at}", f"Page {at}", "alpha" + " beta" * (at % 3 == 0)) for at in range(59)]
    pack = tmp_path_factory.mktemp("packs") / "many.sqlite"
    return write_pack(pack, [*made, page(f"/a/{'x' * 80}", "Alpha", "alpha beta")])


def ranked(pack: Path, match: str, *, ordered: int = 60, named: str = "", **fields: object) -> retrieval.Matches:
    with closing(sqlite3.connect(pack)) as connection, bounds():
        scope = RankingScope(pages=60, ordered=ordered, last=60, **fields)  # type: ignore[arg-type]
        return ranked_matches(connection, match, scope, WEIGHTS, named=named)


@pytest.mark.parametrize(
    ("ordered", "named", "expected"),
    [
        (60, "", {*range(1, 21)}),
        (60, '"alpha"', {*range(1, 21)}),
        (50, "", {*range(1, 21), *range(51, 61)}),
        (10, "", {*range(1, 11), *range(11, 31)}),
        (0, "", {*range(1, 21)}),
    ],
)
def test_of_many_matches_the_first_of_the_ordered_rows_and_of_the_later_ones_are_ranked(
    many: Path, ordered: int, named: str, expected: set[int]
) -> None:
    whole = ranked(many, '"alpha"', ordered=ordered, named=named)
    assert whole.scores.keys() == expected
    assert whole.estimated
    assert whole.total == 60
    with closing(sqlite3.connect(many)) as connection:
        every = ranked_matches(connection, '"alpha"', RankingScope(pages=60, ordered=60, last=60), WEIGHTS)
    assert (every.total, every.estimated, len(every.scores)) == (60, False, 60)
    assert whole.scores == {row: score for row, score in every.scores.items() if row in expected}


@settings(max_examples=25, deadline=None)
@given(contents, st.lists(st.sampled_from(WORDS[:7]), min_size=1, unique=True), st.integers(0, 40), st.booleans())
def test_ranked_matches_are_best_first_and_equal_ones_in_the_order_of_their_rows(
    tmp_path_factory: pytest.TempPathFactory,
    found: list[tuple[str, str]],
    typed: list[str],
    ordered: int,
    is_small: bool,
) -> None:
    pack = pack_of(tmp_path_factory.mktemp("pack"), [*found, (" ".join(typed), ""), ("", " ".join(typed))])
    match = " OR ".join(f'"{word}"' for word in typed)
    with closing(sqlite3.connect(pack)) as connection, bounds(ranked=50 if is_small else 5):
        scope = RankingScope(pages=40, ordered=ordered, last=40)
        scores = ranked_matches(connection, match, scope, WEIGHTS).scores
    assert len(scores) > 1
    assert list(scores) == sorted(scores, key=lambda row: (-scores[row], row))


def test_a_match_of_low_quality_is_ranked_if_its_name_is_among_the_best(many: Path) -> None:
    with bounds(ranked=5, counted=60), closing(sqlite3.connect(many)) as connection:
        scope = RankingScope(pages=60, ordered=60, last=60)
        found = ranked_matches(connection, '"alpha"', scope, WEIGHTS, named='"alpha"')
    assert found.scores.keys() == {1, 2, 3, 4, 5, 60}


def test_hidden_pages_are_not_ranked(many: Path) -> None:
    few = ranked(many, '"beta" AND "page"', hidden={1, 4}, visible=0.5)
    assert (few.total, few.estimated, min(few.scores)) == (18, False, 7)
    all_of_them = ranked(many, '"alpha"', hidden={1, 4}, visible=0.5)
    assert (all_of_them.total, all_of_them.estimated, min(all_of_them.scores)) == (30, True, 2)


def every(divisor: int) -> Callable[[Sequence[int]], list[int]]:
    return lambda rows: [row for row in reversed(rows) if row % divisor == 0]


@pytest.mark.parametrize(
    ("divisor", "expected", "total", "estimated"),
    [(1, range(21, 41), 60, True), (7, range(7, 41, 7), 8, True)],
)
def test_a_choice_is_made_among_the_counted_matches(
    many: Path, divisor: int, expected: range, total: int, estimated: bool
) -> None:
    found = ranked(many, '"alpha"', choice=every(divisor))
    assert found.scores.keys() == {*expected}
    assert (found.total, found.estimated) == (total, estimated)
    assert set(found.read) == {*range(1, 41)}
    assert found.factor == 1.5


def test_a_choice_among_all_matches_is_exact(many: Path) -> None:
    found = ranked(many, '"beta"', choice=every(2))
    assert (found.total, found.estimated, found.factor) == (len(found.scores), False, 1.0)
    assert all(row % 2 == 0 for row in found.scores)


def test_a_search_with_many_matches_says_about_how_many_and_its_facets_are_estimates(many: Path) -> None:
    with bounds(), closing(PackSearcher(many, time_limit=10)) as searcher:
        found = searcher.search(parse("alpha "), limit=60)
        filtered = searcher.search(parse("alpha "), filters=Filters(section="a"))
        newest = searcher.search(parse("alpha "), sort="date")
        question = searcher.search(parse("how is the alpha of beta in page "))
    assert (found.total, found.estimated, found.reachable, len(found.hits)) == (60, True, 20, 20)
    assert found.facets[0].counts == (("a", 30), ("b", 30))
    assert (filtered.total, filtered.estimated) == (30, True)
    assert {hit.section for hit in filtered.hits} == {"a"}
    assert newest.estimated
    assert question.hits


@pytest.mark.parametrize("rare", [0, 2])
def test_pages_with_some_of_the_words_are_filtered_counted_and_have_facets_of_all_of_them(
    tmp_path: Path, rare: int
) -> None:
    """No page has all words. Those in the section have only a frequent one."""
    texts = [("a", "gamma"), ("b", "alpha")] * 30 + [("b", "rare")] * rare
    made = [page(f"/{section}/{'x' * at}", f"Page {at}", text) for at, (section, text) in enumerate(texts)]
    pack = write_pack(tmp_path / "pack.sqlite", made)
    query = parse("alpha gamma rare ")
    with bounds(), closing(PackSearcher(pack, time_limit=10)) as searcher:
        found = searcher.search(query)
        filtered = searcher.search(query, filters=Filters(section="a"), limit=60)
        newest = searcher.search(query, sort="date", limit=60)
        nothing = searcher.search(query, filters=Filters(section="c"))
    assert (nothing.total, nothing.relaxed, nothing.facets) == (0, True, found.facets)
    assert (found.total, found.relaxed) == (60 + rare, True)
    assert found.facets[0].counts in {(("a", 30), ("b", 30)), (("a", 31), ("b", 31))}
    assert (filtered.total, filtered.relaxed, filtered.reachable) == (30 + rare // 2, True, 20)
    assert {hit.section for hit in filtered.hits} == {"a"}
    assert newest.total == found.total
    assert newest.facets == found.facets


def test_pages_with_a_frequent_word_are_found_where_only_a_hidden_page_has_the_rare_one(tmp_path: Path) -> None:
    shown = [page(f"/{'x' * at}", f"Page {at}", "alpha") for at in range(30)]
    hidden = page("/copy", "Copy", "rare", canonical="https://site.example/")
    pack = write_pack(tmp_path / "pack.sqlite", [*shown, hidden])
    with bounds(), closing(PackSearcher(pack, time_limit=10)) as searcher:
        found = searcher.search(parse("alpha rare "), limit=60)
    assert (found.total, len(found.hits), found.relaxed) == (30, 20, True)


def test_a_filtered_number_is_an_estimate_of_the_pages_that_are_shown(tmp_path: Path) -> None:
    """Hidden pages come last, after all matches that are read."""
    made = [page(f"/{'ab'[at % 2]}/{'x' * at}", f"Page {at}", "alpha") for at in range(60)]
    copies = [page(f"/copy/{at}", "Copy", "alpha", canonical=made[0].canonical_key) for at in range(60)]
    pack = write_pack(tmp_path / "pack.sqlite", [*made, *copies])
    with bounds(), closing(PackSearcher(pack, time_limit=10)) as searcher:
        found = searcher.search(parse("alpha "))
        filtered = searcher.search(parse("alpha "), filters=Filters(section="a"))
        newest = searcher.search(parse("alpha "), sort="date")
    assert (found.total, filtered.total, newest.total) == (60, 30, 60)


def test_an_unfinished_word_that_many_pages_have_stands_for_itself(many: Path) -> None:
    with bounds(ranked=5), closing(PackSearcher(many, time_limit=10)) as searcher:
        for text in ("alpha", "alph"):
            found = searcher.search(parse(text))
            assert found.estimated
            assert [hit.snippet.marks for hit in found.hits[:1]] == [((0, 5),)]


@given(st.floats(0, 1e12))
def test_a_rounded_number_is_near_and_has_two_digits(number: float) -> None:
    assert abs(rounded(number) - number) <= max(0.5, 0.051 * number)
    assert len(str(rounded(number)).rstrip("0")) <= 2
