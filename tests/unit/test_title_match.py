"""Titles that say the same as a query raise the scores of their pages."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from app.search import title_match
from app.search.query import parse
from tests.packs import page, write_pack

pytestmark = pytest.mark.unit

TITLES = ("Merge", "Merging branches", "The manual of all that is not merged", "Unrelated", "")


def shares(folder: Path, text: str) -> dict[str, float]:
    """Return by how much of its score each page is raised."""
    pages = [page(f"/{at}", title, "Merge one branch. " * at, lang="en") for at, title in enumerate(TITLES)]
    with closing(sqlite3.connect(write_pack(folder / "pack.sqlite", pages))) as pack:
        rows = {row: at for at, row in enumerate(row for (row,) in pack.execute("SELECT id FROM pages ORDER BY id"))}
        query = parse(text).with_forms(["english"])
        raised = title_match.raised(pack, query, dict.fromkeys(rows, 1.0), pages=5, stemmers=["english"])
    assert list(raised.values()) == sorted(raised.values(), reverse=True)
    return {TITLES[rows[row]]: score - 1.0 for row, score in raised.items()}


def test_the_title_that_is_the_query_raises_a_score_most(tmp_path: Path) -> None:
    found = shares(tmp_path, "merged branch")
    assert found["Merging branches"] == pytest.approx(title_match.MAX_SHARE)
    assert found["Merging branches"] > found["Merge"] > found["The manual of all that is not merged"] > 0
    assert found["Unrelated"] == found[""] == 0


def test_a_pack_without_pages_to_raise_is_no_error(tmp_path: Path) -> None:
    with closing(sqlite3.connect(write_pack(tmp_path / "pack.sqlite", []))) as pack:
        assert title_match.raised(pack, parse("x"), {}, pages=0, stemmers=[]) == {}
