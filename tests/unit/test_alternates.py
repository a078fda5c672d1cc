"""Alternates, which are one page in several languages, where many groups of them are one."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from app.pack import alternates
from app.pack.database import SCHEMA

pytestmark = pytest.mark.unit

_PAGE = """
INSERT INTO pages (id, page_id, canonical_key, url, path, lang, hidden, shown_as) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""


@pytest.fixture
def pack() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.executescript(SCHEMA)
        yield database


def insert(pack: sqlite3.Connection, page: int, path: str, lang: str, *, shown_as: int = 0) -> None:
    name = f"{lang} {page}"
    pack.execute(_PAGE, (page, name, name, name, path, lang, bool(shown_as), shown_as))


def test_groups_that_are_joined_from_the_last_to_the_first_take_time_in_proportion_to_their_number() -> None:
    # Of four times the groups: 16 times the time where each is followed through all others.
    assert seconds_of(10_000) < 9 * seconds_of(2_500)


def seconds_of(number: int) -> float:
    """Return the CPU time of as many groups of alternates, each of which leads to the one before."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as pack:
        pack.executescript(SCHEMA)
        pack.execute("BEGIN")
        for page in range(1, number + 1):
            insert(pack, page, f"/{number - page:05}", "en")
        # A copy of each page in another language is at the path of the page before.
        for page in range(2, number + 1):
            insert(pack, number + page, f"/{number - page + 1:05}", "de", shown_as=page)
        began = time.process_time()
        alternates.assign(pack)
        took = time.process_time() - began
        found = pack.execute("SELECT DISTINCT alternate_group, hidden FROM pages ORDER BY hidden").fetchall()
        assert found == [(1, 0), (0, 1)]
    return took


def test_versions_are_assigned_again_on_one_connection_without_writing_equal_rows(pack: sqlite3.Connection) -> None:
    insert(pack, 1, "/en/a", "en")
    insert(pack, 2, "/de/a", "de")
    alternates.assign(pack)
    pack.execute("CREATE TEMP TRIGGER written BEFORE UPDATE ON main.pages BEGIN SELECT raise(ABORT, 'written'); END")
    alternates.assign(pack)
    assert pack.execute("SELECT id, alternate_group FROM pages ORDER BY id").fetchall() == [(1, 1), (2, 1)]
    pack.execute("DROP TRIGGER written")
    pack.execute("UPDATE pages SET lang = 'en'")
    alternates.assign(pack)
    assert pack.execute("SELECT DISTINCT alternate_group FROM pages").fetchall() == [(0,)]
