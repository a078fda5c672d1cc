"""Suggestions, did-you-mean and arbitrary text, on real packs."""

from __future__ import annotations

from collections.abc import Iterator
from sqlite3 import Connection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import InvalidQuery
from app.search.pack_searcher import PackSearcher
from app.search.pack_tables import words_of_length
from app.search.query import MAX_CHARACTERS, parse
from app.text.words import words
from tests.packs import page, searching

pytestmark = pytest.mark.integration

PAGES = [
    *(page(f"/benefits/{number}", f"Benefits {number} | The Site", "the benefits of work") for number in range(20)),
    *(page(f"/forms/{number}", f"Forms {number} | The Site", "the form to fill in") for number in range(6)),
    page("/open", "Opening files | The Site", "open files with care", headings="Reading a file\nWriting a file"),
    page("/open/2", "Elsewhere | The Site", "open fires and then some files"),
    page("/zurich", "Zürich | The Site", "Zürich is a town"),
    page("/structure", "Data structures | The Site", "one data structure", headings="3.1. Trees\nChapter 4. Lists"),
    page("/typo", "A typo | The Site", "benifits"),
    *(page(f"/folder/{number}", f"Folder {number} | The Site", "a temporary directory") for number in range(5)),
    *(page(f"/straight/{number}", "Straight | The Site", "directly there") for number in range(8)),
    *(page(f"/operator/{number}", "Operators | The Site", "an operator") for number in range(60)),
    *(page(f"/separator/{number}", "Separators | The Site", "a separator") for number in range(7)),
    page("/straight/9", "Straight | The Site", "temporary, then directly there; bennefitz"),
    page("/twin", "Twin | The Site", "onlyhidden", canonical="https://site.example/open"),
    page("/twin/2", "Twin | The Site", "onlyhidden", canonical="https://site.example/open"),
]


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackSearcher]:
    with searching(tmp_path_factory.mktemp("packs") / "pack.sqlite", PAGES) as opened:
        yield opened


def did_you_mean(searcher: PackSearcher, text: str) -> str:
    return searcher.search(parse(text)).did_you_mean


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("bennefits", "benefits"),
        ("benifits", "benefits"),
        ("Benfeits of work", "Benefits of work"),
        ('the "benefits of wrok" -forms', 'the "benefits of work" -forms'),
        ("“Benfeits of” -wrok", "“Benefits of” -wrok"),
        ("zurihc", "zurich"),
        ("datastructure", "data structure"),
        ("opne fiels", "open files"),
        ("temporary directry", "temporary directory"),
        ("seperator", "separator"),
    ],
)
def test_a_misspelt_word_is_respelled_and_the_rest_stays_as_typed(
    searcher: PackSearcher, typed: str, expected: str
) -> None:
    assert did_you_mean(searcher, typed) == expected
    found = searcher.search(parse(typed))
    assert searcher.search(parse(expected)).total > (0 if found.relaxed else found.total)


@pytest.mark.parametrize(
    "typed", ["benefits", "form", "qqqqqqqqqq", "bennefitz", "onlyhiden", "bx", "benefits forms", "2026 1x3"]
)
def test_a_frequent_or_unrecognisable_word_is_not_respelled(searcher: PackSearcher, typed: str) -> None:
    assert did_you_mean(searcher, typed) == ""


@pytest.mark.parametrize(
    ("typed", "scans"), [("bennefitz wrok fiels", 3), ("benfits wrok fiels seperatr directry", 0), ("qqqq " * 31, 0)]
)
def test_a_query_with_many_rare_words_is_not_respelled(
    searcher: PackSearcher, monkeypatch: pytest.MonkeyPatch, typed: str, scans: int
) -> None:
    lengths = []

    def counted(connection: Connection, shortest: int, longest: int, *, least: int) -> list[str]:
        lengths.append(longest)
        return words_of_length(connection, shortest, longest, least=least)

    monkeypatch.setattr("app.search.pack_tables.words_of_length", counted)
    searcher.search(parse(typed))
    assert len(lengths) == scans


def test_a_respelling_with_too_many_words_is_left_out(searcher: PackSearcher) -> None:
    typed = "datastructure " + "work " * 31
    assert len(parse(typed).words) == 32
    assert searcher.search(parse(typed)).did_you_mean == ""


def test_a_search_without_time_for_respelling_returns_its_hits(
    searcher: PackSearcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(connection: object, *_: object, **__: object) -> dict[str, int]:
        rows = connection.execute("WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT max(x) FROM n")  # type: ignore[attr-defined]
        return dict(rows)

    monkeypatch.setattr("app.search.pack_tables.words_of_length", endless)
    # Enough for the search before that, also on a busy machine.
    monkeypatch.setattr(searcher, "_time_limit", 2.0)
    found = searcher.search(parse("benifits"))
    assert (found.total, found.did_you_mean) == (1, "")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("ben", ("benefits", "benifits", "Benefits 1")),
        ("Ben", ("Benefits", "Benifits", "Benefits 1")),
        ("open fi", ("open files", "open fires")),
        ("files op", ("files open", "Opening files")),
        ("“data str", ("“data structure", "“data structures")),
        ("zür", ("zürich", )),
        ("reading ", ("Reading a file",)),
        ("lis", ("lists",)),
        ("benefits -fo", ()),
        ("onlyh", ()),
        ("-fo", ()),
        ("-o", ()),
        ("open -f", ()),
        ("", ()),
        ("?!", ()),
        ("w " * 40, ()),
        ("x" * 300, ()),
    ],
)  # fmt: skip
def test_an_unfinished_query_is_completed_with_words_and_names(
    searcher: PackSearcher, typed: str, expected: tuple[str, ...]
) -> None:
    found = searcher.suggest(typed)
    assert set(expected) <= set(found)
    assert found[: len(expected)] == expected or len(expected) > 1
    assert bool(found) == bool(expected) or typed == "benefits -fo"


def test_suggestions_are_distinct_and_find_pages(searcher: PackSearcher) -> None:
    for typed in ["b", "t", "be", "the", "f", "fo", "open f", "1", "a fi", "data "]:
        found = searcher.suggest(typed, limit=5)
        assert 0 < len(found) <= 5
        assert len({words(text) for text in found}) == len(found)
        for text in found:
            assert words(text) != words(typed)
            results = searcher.search(parse(text))
            assert not results.relaxed
            assert results.total


#: Words of the pack, FTS5's syntax, the query syntax, and any character.
TYPED = st.text(
    st.one_of(st.sampled_from('bfenoit -"“”*+^:(){}_.,AND OR NOT NEAR\0\u0301éü'), st.characters()),
    max_size=MAX_CHARACTERS + 5,
) | st.lists(
    st.sampled_from(
        ["benefits", "form", "fill", '"the', 'form"', "-open", "zür", "NEAR(", "*", "title:", "a", "benifits"]
    ),
    max_size=40,
).map(" ".join)


@pytest.mark.parametrize("texts", [250, pytest.param(2_000, marks=pytest.mark.long)])
def test_any_text_is_searched_for_or_refused(searcher: PackSearcher, texts: int) -> None:
    @settings(max_examples=texts, deadline=None)
    @given(TYPED)
    def check(text: str) -> None:
        suggested = searcher.suggest(text)
        assert len(suggested) <= 8
        try:
            query = parse(text)
        except InvalidQuery:
            assert suggested == ()
            return
        found = searcher.search(query)
        assert len(found.hits) == min(found.total, 10)
        if found.did_you_mean:
            # Totals differ in pages with some of the words.
            better = searcher.search(parse(found.did_you_mean), sort="date")
            assert not better.relaxed
            assert better.total > (0 if found.relaxed else searcher.search(query, sort="date").total)

    check()
