"""Indexes of stems, names of programmers' things, and the order of pages that follows from them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.search.contract import Filters
from app.search.pack_searcher import PackSearcher
from app.search.query import parse
from app.search.stems import stems_in
from app.storage.layout import Page
from app.text.languages import ALGORITHMS
from app.text.variants import Variants, index_stems_of
from tests.packs import page, searching, write_pack

pytestmark = pytest.mark.unit

DOMAIN = "site.example"
FILLER = [
    *("amber", "birch", "cedar", "dogwood", "elder", "fir", "gorse", "hazel"),
    *("ivy", "juniper", "larch", "maple", "oak", "pine", "rowan", "spruce"),
]


def filler(words: int, *, at: int = 0) -> str:
    return " ".join(FILLER[(at + 7 * number) % len(FILLER)] for number in range(words))


def first(tmp_path: Path, pages: Sequence[Page], q: str) -> str:
    with searching(tmp_path / "pack.sqlite", pages) as searcher:
        result = searcher.search(parse(q))
        assert result.hits[0].score <= result.score_bound
        return result.hits[0].path


def test_a_page_with_the_words_of_a_query_in_one_passage_precedes_one_that_has_them_far_apart(tmp_path: Path) -> None:
    def long(path: str, *parts: str) -> Page:
        return page(path, "Page", filler(70).join(parts), lang="en")

    apart = long("/apart", "", " quartz ", " violin ", "")
    together = long("/together", "", " a violin of quartz ", "", "")
    others = [page(f"/{name}", name, filler(150, at=at)) for at, name in enumerate(FILLER)]
    for pages in ([apart, together, *others], [together, apart, *others]):
        (tmp_path / "pack.sqlite").unlink(missing_ok=True)
        assert first(tmp_path, pages, "quartz violins ") == "/together"


def test_a_title_with_another_form_of_a_word_precedes_texts_with_its_typed_form(tmp_path: Path) -> None:
    named = page("/sorting", "Sorting how-to", f"How lists are sorted. {filler(200)}", lang="en")
    mentions = [
        page(f"/{name}", name, f"To sort a list. {filler(200, at=at)}", lang="en") for at, name in enumerate(FILLER)
    ]
    assert first(tmp_path, [*mentions, named], "sort list ") == "/sorting"


def test_of_two_pages_that_differ_in_a_form_the_one_with_the_typed_form_is_first(tmp_path: Path) -> None:
    others = [page(f"/{name}", name, filler(150, at=at), lang="en") for at, name in enumerate(FILLER)]
    for at, (typed, other) in enumerate([("kernel", "kernels"), ("kernels", "kernel"), ("merged", "merging")]):
        forms = [page(f"/{word}", f"The {word}", f"Of the {word}, quartz.", lang="en") for word in (other, typed)]
        for number, pages in enumerate((forms, forms[::-1])):
            folder = tmp_path / f"{at}{number}"
            folder.mkdir()
            assert first(folder, [*pages, *others], f"{typed} ") == f"/{typed}"


def test_a_word_of_which_no_stem_is_left_is_its_own_stem(tmp_path: Path) -> None:
    pages = [page(f"/{at}", f"ΙΚΑ {at}", "το ΙΚΑ και ο φόρος εις την πόλη", lang="el") for at in range(3)]
    with searching(tmp_path / "pack.sqlite", pages) as searcher:
        for q in ("ΙΚΑ", "ίδια ΙΚΑ", "εις "):
            assert searcher.search(parse(q)).total == 3


@pytest.mark.parametrize("lang", ["en", "", "es"])
def test_a_page_in_a_language_that_queries_are_not_stemmed_by_has_the_stems_of_a_query(
    tmp_path: Path, lang: str
) -> None:
    english = [page(f"/{at}", f"About {at}", filler(40, at=at), lang="en") for at in range(30)]
    titled = page("/title", "Merging branches", "Merging branches. " + filler(40), lang=lang)
    path = write_pack(tmp_path / "pack.sqlite", [*english, titled])
    with closing(sqlite3.connect(path)) as pack:
        for table, ids in {"name_stems": "name_stems.rowid", "passages": "passages.rowid >> 12"}.items():
            stems = stems_in(pack, parse("merging branches "), ["english"], pages=31)
            matches = " AND ".join(stems.each)
            found = pack.execute(f"SELECT path FROM {table}, pages WHERE id = {ids} AND {table} MATCH ?", (matches,))
            assert found.fetchall() == [("/title",)]


def test_at_most_three_algorithms_stem_queries_in_an_order_that_no_row_changes(tmp_path: Path) -> None:
    orders = (("en", "de", "fr", "es"), ("es", "fr", "de", "en"))
    found = []
    for number, languages in enumerate(orders):
        pages = [page(f"/{lang}{at}", f"{lang} {at}", filler(20), lang=lang) for lang in languages for at in range(3)]
        with closing(sqlite3.connect(write_pack(tmp_path / f"{number}.sqlite", pages))) as pack:
            found += pack.execute("SELECT value FROM meta WHERE key = 'stemmers'").fetchall()
    assert found == [("english french german",)] * 2


def test_a_last_word_counts_as_unfinished_only_if_no_page_has_it(tmp_path: Path) -> None:
    pack = write_pack(
        tmp_path / "pack.sqlite", [page("/a", "Kernels", "config configuration " + filler(50), lang="en")]
    )
    with closing(sqlite3.connect(pack)) as connection:

        def unfinished(q: str) -> str:
            return stems_in(connection, parse(q), ["english"], pages=1).unfinished

        assert unfinished("kernels configurat") == '"configurat" *'
        assert unfinished("kernels config") == unfinished("kernels configurat ") == ""


def test_passages_are_looked_for_by_the_rarer_words_of_a_query(tmp_path: Path) -> None:
    pages = [page(f"/{name}", name, f"common {name} thing") for name in FILLER]
    with closing(sqlite3.connect(write_pack(tmp_path / "pack.sqlite", pages))) as connection:

        def match(q: str) -> str:
            return stems_in(connection, parse(q), [], pages=len(pages)).in_passages

        assert match("larch maple ") == '"larch" OR "maple"'
        assert match("common larch ") == '"larch" OR (("larch") AND ("common"))'
        assert match("larch ") == match("common thing ") == match('"larch maple" oak ') == ""


@given(st.text(max_size=80), st.sampled_from(sorted({"", *ALGORITHMS.values()})))
def test_a_name_is_indexed_under_the_stems_by_which_its_words_are_looked_for(name: str, algorithm: str) -> None:
    indexed = Variants(algorithm).stems_in_name(name)
    for word in name.split():
        if word.isalnum() and word.isascii():
            assert set(index_stems_of(word, [algorithm] if algorithm else [])) <= set(indexed)


PAGES = [
    page("/cpp", "Templates", "Templates of (C++), are found here"),
    page("/c", "Structures", "The language C has structures, no templates. C is small. C is old."),
    page("/csharp", "Generics", "C#, and .NET. have generics"),
    page("/network", "Sockets", "The net of example.net has sockets"),
    page("/amend", "Commit", "With --amend, the last commit is replaced, with -m its message"),
    page("/sqlite", "Timeouts", "Call sqlite3_busy_timeout() before all else"),
    page("/busy", "Other timeouts", "A busy server has a timeout. SQLite3 has none"),
    page("/admin", "Lists", "ModelAdmin.list_display, names the columns"),
    page("/ordered", "Orders", "An OrderedDict? It keeps its order"),
    page("/3.11", "News", "Much is new in version 3.11.2."),
    page("/3.1", "Old news", "New in version 3.1 is 11 things"),
]


def found(folder: Path, text: str) -> list[str]:
    path = folder / "pack.sqlite"
    with closing(PackSearcher(path if path.exists() else write_pack(path, PAGES))) as searcher:
        return [hit.path for hit in searcher.search(parse(text)).hits]


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("C++", ["/cpp"]),
        ("c++ templates", ["/cpp", "/c"]),
        ("C#", ["/csharp"]),
        (".NET", ["/csharp"]),
        ("--amend", ["/amend"]),
        ("commit -m", ["/amend"]),
        ("sqlite3_busy_timeout", ["/sqlite"]),
        ("busy_timeout", ["/sqlite"]),
        ("ModelAdmin.list_display", ["/admin"]),
        ("list_display", ["/admin"]),
        ("OrderedDict", ["/ordered"]),
        ("ordered dict", ["/ordered"]),
        ("3.11.2", ["/3.11"]),
        ("3.11", ["/3.11"]),
        ("v3.11", ["/3.11"]),
        ("sockets++", ["/network"]),  # No page has the name with its signs.
    ],
)
def test_a_word_of_programmers_finds_the_page_that_has_it(tmp_path: Path, text: str, paths: list[str]) -> None:
    assert found(tmp_path, text)[: len(paths)] == paths


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ('"sort" ', {"/sort"}),
        ('"sort', {"/sort", "/sorting"}),
        ('"dict" ', set()),
        ("list -sort ", {"/sorting", "/ordered"}),
        ("list -sorting ", {"/sort", "/ordered"}),
        ("list -dict ", {"/sort", "/sorting", "/ordered"}),
        ("list -C# ", {"/sort", "/sorting"}),
    ],
)
def test_a_quoted_or_excluded_word_is_no_other_form_of_a_word(tmp_path: Path, query: str, found: set[str]) -> None:
    texts = {"/sort": "list and sort", "/sorting": "list by sorting", "/ordered": "list of OrderedDict in C#"}
    made = [page(path, path.strip("/").upper(), text, lang="en") for path, text in texts.items()]
    with searching(tmp_path / "pack.sqlite", made) as searcher:
        assert {hit.path for hit in searcher.search(parse(query)).hits} == found


def test_facets_count_the_page_that_defines_a_name_without_all_words_of_the_query(tmp_path: Path) -> None:
    others = [page(f"/a/{at}", f"Page {at}", "The class is a subclass of tuple.") for at in range(12)]
    pages = [*others, page("/b/tuple", "tuple", "A sequence.", headings="tuple")]
    with searching(tmp_path / "pack.sqlite", pages) as searcher:
        found = searcher.search(parse("class tuple "), limit=20)
        filtered = searcher.search(parse("class tuple "), filters=Filters(section="b"))
    assert found.hits[0].path == "/b/tuple"
    assert found.facets[0].counts == (("a", 12), ("b", 1))
    assert (found.total, filtered.total) == (13, 1)


def test_quoted_words_find_no_page_that_only_defines_the_last_of_them(tmp_path: Path) -> None:
    pages = [
        page("/git", "git", "The tool.", headings="git\ngit log"),
        page("/docs", "Documentation", "mkdir doc git and cd doc git git clone"),
    ]
    with searching(tmp_path / "pack.sqlite", pages) as searcher:
        assert [hit.path for hit in searcher.search(parse('"cd doc git git"')).hits] == ["/docs"]
        assert searcher.search(parse('"git log"')).hits[0].path == "/git"
