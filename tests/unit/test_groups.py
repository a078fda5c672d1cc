"""Groups of identical pages, by their definition and after an update; and of alternates in several languages."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.pack import alternates
from app.pack.database import CHANGES, SCHEMA
from app.pack.groups import assign, assign_changed, targets_of

pytestmark = pytest.mark.unit

KEYS = st.sampled_from("abcdefgh")


def target_by_definition(key: str, canonical: dict[str, str]) -> str:
    """Follow one page alone, for more steps than there are pages: one that is then still under way is in a ring."""
    at = key
    for _ in range(len(canonical) + 2):
        following = canonical.get(at, "")
        if following in ("", at):
            return at
        at = following
    return key


@given(st.dictionaries(KEYS, st.one_of(st.just(""), KEYS)))
@example({"a": "b", "b": "c", "c": "b", "d": "a"})
@example({"a": "a", "b": "a", "c": "elsewhere"})
def test_each_page_has_the_target_that_its_own_chain_leads_to(canonical: dict[str, str]) -> None:
    assert targets_of(canonical) == {key: target_by_definition(key, canonical) for key in canonical}


class Counted(dict[str, str]):
    """A mapping that counts its lookups."""

    lookups = 0

    def get(self, key: str, default: str = "") -> str:  # type: ignore[override]
        self.lookups += 1
        return super().get(key, default)


@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_chain_of_all_pages_of_a_site_is_followed_once(ring: bool, backwards: bool) -> None:
    number = 20_000
    keys = range(number)[:: -1 if backwards else 1]
    canonical = Counted({f"/{key}": f"/{(key + 1) % number if ring else key + 1}" for key in keys})
    targets = targets_of(canonical)
    assert canonical.lookups <= 2 * number
    assert all(target == (key if ring else f"/{number}") for key, target in targets.items())


class GroupedPage(NamedTuple):
    """What the group of a page, and its rank in the group, depend on."""

    canonical: str
    text_hash: int
    inlinks: int
    path: str


#: By canonical key. Half of the texts and canonical keys are those of other pages.
Site = dict[str, GroupedPage]
PATHS = ("/", "/a", "/b", "/long", "/folder/a", "/?a")
grouped_pages = st.builds(
    GroupedPage, st.just("") | KEYS, st.just(0) | st.integers(1, 3), st.integers(0, 2), st.sampled_from(PATHS)
)
_INSERT = """
INSERT INTO pages (page_id, url, canonical_key, canonical, text_hash, inlinks, path) VALUES (?1, ?1, ?1, ?2, ?3, ?4, ?5)
ON CONFLICT (page_id) DO UPDATE SET
    canonical = excluded.canonical, text_hash = excluded.text_hash, inlinks = excluded.inlinks, path = excluded.path
"""
_WRITTEN = """
SELECT former.page_id, former.shown_as, pages.shown_as FROM former_pages AS former JOIN pages USING (id)
"""


def groups_by_definition(site: Site) -> list[set[str]]:
    """Join each page with the pages that have the same target or text, until no two groups have one in common."""
    canonical = {key: page.canonical for key, page in site.items()}
    groups: list[set[str]] = []
    for key, page in site.items():
        marks = {f"target {target_by_definition(key, canonical)}", f"text {page.text_hash or key}", key}
        joined = [group for group in groups if group & marks]
        groups = [group for group in groups if group not in joined] + [marks.union(*joined)]
    return [{*site} & group for group in groups]


def shown_by_definition(site: Site) -> dict[str, str]:
    """Return the page that is shown for each page that is not: the first of its group in order of preference."""
    canonical = {key: page.canonical for key, page in site.items()}

    def preference(key: str) -> tuple[Any, ...]:
        _, _, inlinks, path = site[key]
        is_target = target_by_definition(key, canonical) == key
        return not is_target, -inlinks, "?" in path, path.count("/"), len(path), key

    groups = groups_by_definition(site)
    return {key: best for group in groups for best in [min(group, key=preference)] for key in group - {best}}


def shown(pack: sqlite3.Connection) -> dict[str, str]:
    """Return what `shown_by_definition` does, of a pack."""
    assert pack.execute("SELECT count(*) FROM pages WHERE hidden <> (shown_as > 0)").fetchone() == (0,)
    found = "SELECT copy.page_id, shown.page_id FROM pages copy LEFT JOIN pages shown ON shown.id = copy.shown_as"
    return dict(pack.execute(f"{found} WHERE copy.hidden"))


@settings(deadline=None)
@given(st.dictionaries(KEYS, grouped_pages), st.lists(st.dictionaries(KEYS, st.none() | grouped_pages), max_size=3))
# One page joins two groups, and leaves them; the page that is shown for others goes; one is shown for its links.
@example({"a": GroupedPage("", 1, 0, "/"), "b": GroupedPage("", 2, 0, "/")}, [{"c": GroupedPage("b", 1, 0, "/")}])
@example(
    {"a": GroupedPage("", 1, 0, "/"), "b": GroupedPage("c", 0, 0, "/"), "c": GroupedPage("a", 1, 0, "/")},
    [{"c": GroupedPage("", 0, 0, "/")}, {"a": None}],
)
@example({"a": GroupedPage("", 1, 0, "/"), "b": GroupedPage("", 1, 0, "/")}, [{"b": GroupedPage("", 1, 1, "/")}])
def test_an_update_groups_pages_as_their_definition_does(site: Site, updates: list[dict[str, Any]]) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as pack:
        pack.executescript(SCHEMA)
        pack.executemany(_INSERT, ((key, *page) for key, page in site.items()))
        assign(pack)
        assert shown(pack) == shown_by_definition(site)
        pack.executescript(CHANGES)
        for update in updates:
            pack.execute("DELETE FROM former_pages")
            removed = [(key,) for key, page in update.items() if page is None]
            pack.executemany("DELETE FROM pages WHERE page_id = ?", removed)
            pack.executemany(_INSERT, ((key, *page) for key, page in update.items() if page is not None))
            site = {key: page for key, page in (site | update).items() if page is not None}
            changed = {page_id for page_id, _, _ in pack.execute(_WRITTEN)}
            assign_changed(pack)
            assert shown(pack) == shown_by_definition(site)
            # Of the other pages only those are written that are shown otherwise: their frames change.
            written = pack.execute(_WRITTEN).fetchall()
            assert all(former != present for page_id, former, present in written if page_id not in changed)


_PAGE = """
INSERT INTO pages (id, page_id, canonical_key, url, path, lang, hidden, shown_as) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""


def insert(pack: sqlite3.Connection, page: int, path: str, lang: str, *, shown_as: int = 0) -> None:
    name = f"{lang} {page}"
    pack.execute(_PAGE, (page, name, name, name, path, lang, bool(shown_as), shown_as))


def test_alternates_that_are_joined_from_the_last_to_the_first_take_time_in_proportion_to_their_number() -> None:
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


def test_alternates_are_assigned_again_on_one_connection_without_writing_equal_rows() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as pack:
        pack.executescript(SCHEMA)
        insert(pack, 1, "/en/a", "en")
        insert(pack, 2, "/de/a", "de")
        alternates.assign(pack)
        pack.execute(
            "CREATE TEMP TRIGGER written BEFORE UPDATE ON main.pages BEGIN SELECT raise(ABORT, 'written'); END"
        )
        alternates.assign(pack)
        assert pack.execute("SELECT id, alternate_group FROM pages ORDER BY id").fetchall() == [(1, 1), (2, 1)]
        pack.execute("DROP TRIGGER written")
        pack.execute("UPDATE pages SET lang = 'en'")
        alternates.assign(pack)
        assert pack.execute("SELECT DISTINCT alternate_group FROM pages").fetchall() == [(0,)]
