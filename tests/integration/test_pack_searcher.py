"""Searches of real packs: order, filters, facets, scores and errors."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from app.errors import PackCorrupt, PackNotFound, SearchTimeout
from app.search.contract import Filters
from app.search.pack_searcher import PackSearcher
from app.search.query import parse
from app.search.ranking import rank
from app.search.retrieval import RankingScope
from app.search.stems import stems_in
from app.storage.layout import Page, language_tag
from tests.packs import page, searching, write_pack

pytestmark = pytest.mark.integration

#: Seconds of a search whose time is not the matter.
PATIENCE = 30.0

RANDOM = random.Random(11)
LEXICON = [f"w{number}" for number in range(2_000)]


def prose(count: int = 120) -> str:
    return " ".join(RANDOM.choices(LEXICON, k=count))


PAGES: list[Page] = [
    *(page(f"/filler/{number}.html", f"Filler {number}", prose()) for number in range(300)),
    page("/library/json.html", "json — encoder and decoder", f"{prose(400)} json"),
    page("/library/json.decoder.html", "json.decoder", "json json json json decoder json"),
    page("/all.html", "All of json, json and json", "json " * 20),
    page("/titled.html", "quick brown fox fox quick brown", "brown quick fox " * 10),
    page("/phrase.html", "Elsewhere", f"{prose(300)} the quick brown fox {prose(300)}"),
    page("/accents.html", "Café", "Ein Café in Zürich"),
    page("/described.html", "Described", "nothing", description="A rhubarb recipe", headings="First\nStewed rhubarb"),
]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pack(tmp_path_factory.mktemp("packs") / "pack.sqlite", PAGES)


@pytest.fixture(scope="module")
def searcher(pack: Path) -> Iterator[PackSearcher]:
    with closing(PackSearcher(pack, time_limit=PATIENCE)) as searcher:
        yield searcher


def paths(searcher: PackSearcher, text: str, *, offset: int = 0, limit: int = 10) -> list[str]:
    return [hit.path for hit in searcher.search(parse(text), offset=offset, limit=limit).hits]


def test_a_page_is_the_first_hit_for_its_name(searcher: PackSearcher) -> None:
    assert paths(searcher, "json")[0] == "/library/json.html"
    assert paths(searcher, "json.decoder")[0] == "/library/json.decoder.html"
    assert paths(searcher, "filler 17")[0] == "/filler/17.html"


def test_a_page_is_the_first_hit_for_a_phrase_that_only_it_contains(searcher: PackSearcher) -> None:
    assert paths(searcher, "the quick brown fox")[0] == "/phrase.html"
    assert paths(searcher, "quick brown fox ")[:2] == ["/titled.html", "/phrase.html"]
    for expected in RANDOM.sample(PAGES[:300], 40):
        body = expected.body.split()
        start = RANDOM.randrange(len(body) - 4)
        assert paths(searcher, " ".join(body[start : start + 4]))[0] == expected.path


def test_two_words_that_are_adjacent_by_chance_do_not_put_a_page_first(tmp_path: Path) -> None:
    chance = page("/chance", "Other", f"{prose(200)} merging branches {prose(200)}", lang="en")
    named = page("/merge", "Merging two branches", f"How merging two branches works. {prose()}", lang="en")
    with searching(tmp_path / "pack.sqlite", [chance, named, *PAGES[:100]]) as searcher:
        assert paths(searcher, "merging branches ") == ["/merge", "/chance"]
        assert paths(searcher, '"merging branches"') == ["/chance"]


def test_quotes_exclusions_prefixes_and_accents(searcher: PackSearcher) -> None:
    assert set(paths(searcher, '"quick brown fox"')) == {"/titled.html", "/phrase.html"}
    assert paths(searcher, "quick -the") == ["/titled.html"]
    assert paths(searcher, "zur") == paths(searcher, "CAFE") == paths(searcher, "café zürich") == ["/accents.html"]
    assert paths(searcher, "zur ") == []


def test_pages_with_all_of_the_words_and_with_some_are_ranked_by_their_scores(tmp_path: Path) -> None:
    long = page("/long", "Long", f"larch willow {prose(300)}")
    short = [
        page(f"/short/{word}{at}x", f"Short {at}", f"{word} " * 9) for at in range(8) for word in ("larch", "willow")
    ]
    pack = write_pack(tmp_path / "pack.sqlite", [long, *short, *PAGES[:100]])
    with closing(sqlite3.connect(pack)) as connection:
        query = parse("larch willow ")
        stems = stems_in(connection, query, [], pages=117)
        ranking = rank(connection, query, RankingScope(pages=117, ordered=0, last=117), stems=stems, factors={})
    assert len(ranking.complete) == 1
    assert list(ranking.scores.values()) == sorted(ranking.scores.values(), reverse=True)


def test_the_answer_to_a_question_may_lack_a_word_of_it(tmp_path: Path) -> None:
    mentions = [page(f"/{at}x", f"Other {at}", f"{prose()} cat {prose()} sleep {prose()} hat") for at in range(20)]
    answer = page("/answer", "Hats for cats", "Where a cat has its hat: cat, hat, cat, hat.")
    with searching(tmp_path / "pack.sqlite", [*mentions, answer, *PAGES[:100]]) as searcher:
        assert paths(searcher, "where does a cat with a hat sleep ")[0] == "/answer"
        assert "/answer" not in paths(searcher, "cat hat sleep ", limit=100)
        assert "/answer" not in paths(searcher, 'where does a cat with a "hat" sleep ', limit=100)


def test_description_and_headings_are_searched_and_shown(searcher: PackSearcher) -> None:
    (hit,) = searcher.search(parse("rhubarb")).hits
    assert hit.snippet.text == "A rhubarb recipe"
    assert hit.headings == ("Stewed rhubarb",)


def test_pages_of_hits_are_slices_of_one_order(searcher: PackSearcher) -> None:
    total = searcher.search(parse("filler"), limit=1).total
    assert total == 300
    whole = paths(searcher, "filler", limit=300)
    assert len(set(whole)) == total
    assert [path for at in range(0, 350, 50) for path in paths(searcher, "filler", offset=at, limit=50)] == whole


def test_a_search_beyond_its_time_limit_raises_search_timeout(pack: Path) -> None:
    with closing(PackSearcher(pack, time_limit=0.0)) as searcher, pytest.raises(SearchTimeout, match="longer than 0 s"):
        searcher.search(parse("w* w1 " + "w2 " * 20 + "fi"))


def test_many_threads_share_a_searcher(searcher: PackSearcher) -> None:
    texts = ["json", "filler", "quick brown", "rhubarb"] * 20
    expected = [paths(searcher, text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda text: paths(searcher, text), texts)) == expected


def test_a_pack_is_opened_read_only(searcher: PackSearcher) -> None:
    with searcher._connections.connection(1.0) as connection, pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM meta")


def test_a_missing_or_invalid_pack_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(PackNotFound, match=r"none\.sqlite: no such file"):
        PackSearcher(tmp_path / "none.sqlite")
    (tmp_path / "text.sqlite").write_text("this is no database " * 100)
    with pytest.raises(PackCorrupt, match=r"text\.sqlite: file is not a database"):
        PackSearcher(tmp_path / "text.sqlite")
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as database:
        database.execute("CREATE TABLE t (x)")
    with pytest.raises(PackCorrupt, match="not a pack"):
        PackSearcher(tmp_path / "other.sqlite")


# Filters, facets, dates and scores


def dated(number: int, section: str, lang: str, modified: str, **fields: str) -> Page:
    return page(
        f"/{section}/{number}", f"Report {number}", f"report {prose(20)}", lang=lang, modified=modified, **fields
    )


REPORTS = [
    *(dated(number, "news", "en", f"2026-11-{number + 10}") for number in range(8)),
    *(dated(number, "docs", "de", "") for number in range(4)),
    *(dated(number, "docs", "EN", f"2025-01-0{number - 3}", content_type="text/plain") for number in range(4, 7)),
    page("/report.html", "The report", "about every report report", modified="soon"),
]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackSearcher]:
    pack = write_pack(tmp_path_factory.mktemp("packs") / "reports.sqlite", REPORTS)
    with closing(PackSearcher(pack, time_limit=PATIENCE)) as searcher:
        yield searcher


def counts(searcher: PackSearcher, filters: Filters) -> dict[str, dict[str, int]]:
    return {facet.name: dict(facet.counts) for facet in searcher.search(parse("report "), filters=filters).facets}


def test_facets_count_with_all_filters_but_their_own(reports: PackSearcher) -> None:
    sections, langs, types = {"news": 8, "docs": 7}, {"en": 11, "de": 4}, {"text/html": 13, "text/plain": 3}
    assert counts(reports, Filters()) == {"section": sections, "lang": langs, "type": types}
    assert counts(reports, Filters(section="docs")) == {
        "section": sections,
        "lang": {"de": 4, "en": 3},
        "type": {"text/html": 4, "text/plain": 3},
    }
    both = Filters(section="docs", lang="En")
    assert counts(reports, both) == {"section": {"news": 8, "docs": 3}, "lang": {"de": 4, "en": 3}}
    found = reports.search(parse("report "), filters=both)
    assert (found.total, {hit.section for hit in found.hits}, {hit.type for hit in found.hits}) == (
        3,
        {"docs"},
        {"text/plain"},
    )
    assert reports.search(parse("report "), filters=Filters(section="none")).total == 0


def test_a_filter_does_not_relax_a_search(reports: PackSearcher) -> None:
    found = reports.search(parse('"report 7" report'), filters=Filters(section="docs"))
    assert (found.total, found.relaxed) == (0, False)


def test_sorted_by_date_pages_without_one_come_last_in_order_of_relevance(reports: PackSearcher) -> None:
    by_rank = [hit.path for hit in reports.search(parse("report "), limit=100).hits]
    found = reports.search(parse("report "), limit=100, sort="date")
    assert [hit.modified for hit in found.hits] == sorted((hit.modified for hit in found.hits[:-5]), reverse=True) + [
        hit.modified for hit in found.hits[-5:]
    ]
    undated = [hit.path for hit in found.hits if hit.modified in ("", "soon")]
    assert [hit.path for hit in found.hits[-5:]] == undated == [path for path in by_rank if path in undated]


def test_a_hit_has_its_domain_section_type_and_date(reports: PackSearcher) -> None:
    hit = reports.search(parse('"report 3"'), filters=Filters(lang="en")).hits[0]
    assert (hit.domain, hit.section, hit.type, hit.modified) == ("site.example", "news", "text/html", "2026-11-13")


def test_a_long_page_with_the_words_in_its_title_precedes_short_pages_that_mention_them(tmp_path: Path) -> None:
    mentions = [page(f"/{number}", f"Other {number}", "argument parsing " * 3) for number in range(10)]
    named = page("/guide", "Argument parsing, and options", f"argument parsing {prose(2_000)}")
    with searching(tmp_path / "pack.sqlite", [*mentions, named, *PAGES]) as searcher:
        assert paths(searcher, "parsing argument")[0] == "/guide"


def test_a_language_finds_its_regions_and_the_facet_counts_them_with_it(tmp_path: Path) -> None:
    langs = ("en", "en-US", "en_gb", "zh-Hant-TW", "zh-hans", "eng")
    pages = [page(f"/{lang}", f"Page {lang}", "amber", lang=language_tag(lang)) for lang in langs]
    with searching(tmp_path / "pack.sqlite", pages) as searcher:

        def found(lang: str) -> set[str]:
            return {hit.lang for hit in searcher.search(parse("amber"), filters=Filters(lang=lang)).hits}

        assert found("en") == {"en", "en-US", "en-gb"}
        assert (found("EN-us"), found("zh"), found("e")) == ({"en-US"}, {"zh-Hant-TW", "zh-hans"}, set())
        (facet,) = [each for each in searcher.search(parse("amber")).facets if each.name == "lang"]
    assert dict(facet.counts) == {"en": 3, "zh-hant": 1, "zh-hans": 1, "eng": 1}


def test_facets_count_the_alternates_of_a_page_in_several_languages_as_one(tmp_path: Path) -> None:
    addresses = {lang: f"/docs/a.{lang}.html" for lang in ("en", "de", "fr")}
    alternates = tuple(f"https://site.example{path}" for path in addresses.values())
    pages = [page(path, "Amber", "amber", lang=lang, alternates=alternates) for lang, path in addresses.items()]
    with searching(tmp_path / "pack.sqlite", [*pages, page("/guide/b", "B", "amber")]) as pack:
        found = pack.search(parse("amber"))
        assert (found.total, {each.name: dict(each.counts) for each in found.facets}) == (
            2,
            {"section": {"docs": 1, "guide": 1}, "lang": {"en": 1, "de": 1, "fr": 1}},
        )
        assert pack.search(parse("amber"), filters=Filters(section="docs")).total == 1
