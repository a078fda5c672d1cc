"""Scores: no page exceeds their upper bound, forms add little, and a title that is the query adds most."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.search import title_match
from app.search.pack_searcher import PackSearcher
from app.search.query import parse
from app.search.ranking import Ranking
from app.search.score_bound import score_bound
from app.search.stems import stems_in
from app.storage.page_parts import PageLink
from tests.packs import page, write_pack

pytestmark = pytest.mark.unit

WORDS = (
    "merge",
    "merging",
    "merged",
    "branch",
    "branches",
    "C++",
    "OrderedDict",
    "ordered",
    "全体",
    "全体図",
    "全体図の管理",
    "v3.11",
    "x",
)
texts = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
pages = st.lists(st.tuples(texts, texts, texts, texts), min_size=1, max_size=9)
queries = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join)


@settings(max_examples=25, deadline=None)
@given(pages, st.lists(queries, min_size=1, max_size=8))
def test_no_score_exceeds_the_bound(
    tmp_path_factory: pytest.TempPathFactory, contents: list[tuple[str, str, str, str]], typed: list[str]
) -> None:
    link = (PageLink("https://site.example/0", "merging"),)
    made = [
        page(f"/{at}", title, body, headings=heading, description=description, links=link, lang="en")
        for at, (title, heading, description, body) in enumerate(contents)
    ]
    path = write_pack(tmp_path_factory.mktemp("pack") / "pack.sqlite", made)
    with closing(PackSearcher(path)) as searcher:
        for text in typed:
            found = searcher.search(parse(text))
            scores = [hit.score for hit in found.hits]
            assert scores == sorted(scores, reverse=True)
            assert max(scores, default=0.0) <= found.score_bound


def test_a_form_that_every_page_has_does_not_raise_the_bound(tmp_path: Path) -> None:
    made = [page(f"/{at}", "Guides", f"All guides of site {at}", lang="en") for at in range(12)]
    path = write_pack(tmp_path / "pack.sqlite", [*made, page("/guided", "Guided", "One guided tour", lang="en")])
    query = parse("guided tour")
    with closing(sqlite3.connect(path)) as pack:
        stems = stems_in(pack, query, ["english"], pages=13)
        plain, with_forms = (
            score_bound(pack, Ranking({}, each.phrases), pages=13, stems=stems)
            for each in (query, query.with_forms(["english"]))
        )
    assert with_forms == pytest.approx(plain, rel=1e-4)


TITLES = ("Merge", "Merging branches", "The manual of all that is not merged", "Unrelated", "")


def shares(folder: Path, text: str) -> dict[str, float]:
    """Return by how much of its score each page is boosted."""
    pages = [page(f"/{at}", title, "Merge one branch. " * at, lang="en") for at, title in enumerate(TITLES)]
    with closing(sqlite3.connect(write_pack(folder / "pack.sqlite", pages))) as pack:
        rows = {row: at for at, row in enumerate(row for (row,) in pack.execute("SELECT id FROM pages ORDER BY id"))}
        query = parse(text).with_forms(["english"])
        boosted = title_match.boosted(pack, query, dict.fromkeys(rows, 1.0), pages=5, stemmers=["english"], site="")
    assert list(boosted.values()) == sorted(boosted.values(), reverse=True)
    return {TITLES[rows[row]]: score - 1.0 for row, score in boosted.items()}


def test_the_title_that_is_the_query_boosts_a_score_most(tmp_path: Path) -> None:
    found = shares(tmp_path, "merged branch")
    assert found["Merging branches"] == pytest.approx(title_match.MAX_SHARE)
    assert found["Merging branches"] > found["Merge"] > found["The manual of all that is not merged"] > 0
    assert found["Unrelated"] == found[""] == 0
