"""The content of full and incremental packs, and when none is written, with real files and SQLite."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from collections import namedtuple
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from app.errors import DiskFull, PackError, PackRefused, PreconditionFailed
from app.pack import properties
from app.pack.derivation import code_hash
from app.pack.indexes import MAX_PASSAGES
from app.pack.listing import Listing
from app.pack.manifest import read_manifest
from app.pack.packer import PackResult, pack_full, pack_incremental
from app.pack.plan import FullPackPlan
from app.pack.rows import section
from app.storage.layout import (
    Page,
    Tombstone,
    content_key,
    frames_key,
    frames_prefix,
    from_json,
    list_ids,
    manifest_key,
    page_id,
    to_json,
)
from app.storage.page_parts import PageLink
from config.settings import ROOT
from tests.packs import check_index, fetch_pack, publish, put
from tests.support.stores import ManifestStore, RecordingStore, folder_store

pytestmark = pytest.mark.unit

DOMAIN = "127.0.0.1:8080"


def url(name: str | int) -> str:
    return f"http://{DOMAIN}/{name}"


def page(name: str | int, body: str = "", *, title: str = "", canonical: str = "") -> Page:
    return Page(
        canonical_key=url(name),
        url=url(name),
        domain=DOMAIN,
        path=f"/{name}",
        title=title or f"Page {name}",
        headings=("First", "Second"),
        body=body or f"words of {name}",
        canonical=canonical and url(canonical),
    )


def tombstone(name: str | int, why: str = "404") -> Tombstone:
    return Tombstone(canonical_key=url(name), url=url(name), domain=DOMAIN, why=why)


def plan(names: Iterable[str | int] | None, *, crawl: str = "crawl", seconds_later: int = 0) -> FullPackPlan:
    """Return the plan for these pages of a crawl that began now or later, or for all pages."""
    page_ids = None if names is None else {page_id(url(name)) for name in names}
    return FullPackPlan(crawl_id=crawl, page_ids=page_ids, began=datetime.now(UTC) + timedelta(seconds=seconds_later))


class StoredSite:
    """A domain in a folder store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder_store(folder / "store")

    def put(self, *contents: Page | Tombstone) -> None:
        put(self.store, *contents)

    def remove(self, name: str | int) -> None:
        self.store.delete(content_key(DOMAIN, page_id(url(name))))

    def stored(self, name: str | int) -> Page | Tombstone:
        return from_json(self.store.get(content_key(DOMAIN, page_id(url(name)))).data)

    def full(self, names: Iterable[str | int] | None = None, *, force: bool = False) -> PackResult:
        return pack_full(self.store, DOMAIN, plan(names), force=force)

    def increment(self, *, deletions: bool = True) -> PackResult:
        return pack_incremental(self.store, DOMAIN, deletions=deletions)

    def query(self, sql: str, *values: str) -> list[tuple[object, ...]]:
        path = fetch_pack(self.store, DOMAIN, self.folder / "packs")
        check_index(path)
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute(sql, values).fetchall()

    def paths(self) -> list[object]:
        return [row[0] for row in self.query("SELECT path FROM pages ORDER BY path")]

    def search(self, query: str) -> list[object]:
        found = self.query(
            "SELECT path FROM pages WHERE id IN (SELECT rowid FROM pages_fts WHERE pages_fts MATCH ?) ORDER BY path",
            query,
        )
        return [row[0] for row in found]

    def packed(self) -> dict[str, bytes]:
        keys = [manifest_key(DOMAIN), *(stat.key for stat in self.store.list(frames_prefix(DOMAIN)))]
        return {key: self.store.get(key).data for key in keys}


@pytest.fixture
def site(tmp_path: Path) -> StoredSite:
    return StoredSite(tmp_path)


def changes(result: PackResult) -> tuple[bool, int, int, int, int]:
    return result.written, result.pages, result.added, result.changed, result.removed


class TestFull:
    def test_the_manifest_describes_the_written_pack(self, site: StoredSite) -> None:
        site.put(replace(page("s/a"), description="About a", modified="2026-11-21"), tombstone("t"))
        site.full()
        result = site.full(force=True)
        columns = "url, section, title, headings, description, modified, hidden"
        assert site.query(f"SELECT {columns} FROM pages") == [
            (url("s/a"), "s", "Page s/a", "First\nSecond", "About a", "2026-11-21", 0)
        ]
        manifest = read_manifest(site.store, DOMAIN)
        assert manifest.sha256 == result.sha256
        assert manifest.size == result.size == manifest.table_start
        assert len(site.packed()[frames_key(DOMAIN, manifest.own_object)]) == manifest.size + manifest.table_size
        assert (manifest.generation, result.generation, manifest.pages) == (2, 2, 1)
        assert (manifest.kind, manifest.crawl_id, manifest.domain) == ("full", "crawl", DOMAIN)
        assert dict(site.query("SELECT key, value FROM meta")) == {  # type: ignore[arg-type]  # Rows are pairs here.
            "domain": DOMAIN,
            "kind": "full",
            "generation": "2",
            "crawl_id": "crawl",
            "built_at": manifest.built_at,
            "pages": "1",
            "ordered": "1",
            "stemmers": "english",
            "site_name": "",
            "language": "en",
            "repeated_lines": "",
            "changes": "0",
            "updated": "0",
            "code_hash": code_hash(),
        }
        assert json.loads(json.dumps(result.as_event()))["generation"] == 2

    def test_pages_are_numbered_in_order_of_quality_and_later_ones_behind_them(self, site: StoredSite) -> None:
        linking = [replace(page(name), links=(PageLink(url("z/deep"), "Deep"),)) for name in ("b", "c")]
        site.put(*linking, page("z/deep"), page("a?q=1"), page("copy", canonical="b"), page("long-name"))
        site.full()
        in_order = ["/z/deep", "/b", "/c", "/long-name", "/a?q=1", "/copy"]
        numbered = "SELECT path FROM pages ORDER BY id"
        assert [row[0] for row in site.query(numbered)] == in_order
        assert site.query("SELECT shown_as FROM pages WHERE hidden") == [(2,)]
        site.put(page("first"), tombstone("copy"))
        site.increment()
        site.put(tombstone("first"), replace(page("c"), links=(PageLink(url("c"), "C"), PageLink(url("b"), "B"))))
        site.increment()
        site.put(page("second"))
        site.increment()
        *others, (last, path) = site.query("SELECT id, path FROM pages ORDER BY id")
        assert [name for _, name in others] == in_order[:-1]
        # No later row has the id of one that was removed.
        assert path == "/second"
        assert isinstance(last, int)
        assert last > 7
        assert site.query("SELECT value FROM meta WHERE key = 'ordered'") == [("6",)]

    def test_a_page_that_another_program_stored_with_another_domain_vanishes_too(self, site: StoredSite) -> None:
        site.put(page("a"))
        foreign = replace(page("b"), domain="another.example")
        site.store.put(content_key(DOMAIN, page_id(foreign.canonical_key)), to_json(foreign))
        site.full("ab")
        assert changes(site.full("a")) == (True, 1, 1, 0, 1)
        assert site.paths() == ["/a"]

    def test_tombstones_end_so_that_the_cost_of_a_pack_does_not_grow_with_the_number_of_crawls(
        self, site: StoredSite, tmp_path: Path
    ) -> None:
        store = RecordingStore(tmp_path / "store")
        read, kept = [], []
        for crawl in range(6):
            names = [f"{crawl}-{number}" for number in range(20)]
            site.put(*map(page, names))
            store.read.clear()
            pack_full(store, DOMAIN, plan(names, crawl=str(crawl)))
            read.append(sum(key.startswith("content/") for key in store.read))
            kept.append(len(list_ids(store, DOMAIN)))
            assert len(site.paths()) == 20
        assert read == [20, 40, 60, 60, 60, 60]
        assert kept == [20, 40, 40, 40, 40, 40]
        pack_full(store, DOMAIN)
        assert len(list_ids(store, DOMAIN)) == 20
        assert changes(site.increment()) == (False, 20, 0, 0, 0)

    def test_a_page_that_comes_back_while_its_tombstone_is_deleted_stays(self, site: StoredSite) -> None:
        site.put(page("a"), tombstone("b"))
        returning = ManifestStore(site.store.root, before=lambda: site.put(page("b")))
        pack_full(returning, DOMAIN, FullPackPlan(crawl_id="c"))
        assert site.stored("b") == page("b")
        assert changes(site.increment()) == (True, 2, 1, 0, 0)

    def test_a_page_written_since_the_crawl_began_has_not_vanished(self, site: StoredSite) -> None:
        site.put(page("a"))
        began = datetime.now(timezone(timedelta(hours=5)))
        site.put(page("late"))
        pack_full(site.store, DOMAIN, FullPackPlan(crawl_id="c", page_ids=[page_id(url("a"))], began=began))
        assert site.paths() == ["/a"]
        assert changes(site.increment()) == (True, 2, 1, 0, 0)

    def test_a_full_pack_of_a_crawl_is_written_only_if_it_differs_from_the_present_one(self, site: StoredSite) -> None:
        site.put(page("a"), page("b"), tombstone("gone"))
        site.full("ab")
        written = site.packed()
        assert changes(site.full("ab")) == (False, 2, 0, 0, 0)
        site.put(tombstone("d"))  # It was no page: nothing vanishes.
        assert changes(site.full("ab")) == (False, 2, 0, 0, 0)
        assert site.packed() == written
        assert changes(site.full("ab", force=True))[0]
        site.put(page("b", "other words"))
        assert changes(site.full("ab"))[0]
        site.put(page("c"))
        assert changes(site.full("abc"))[:2] == (True, 3)
        assert changes(site.full("ab")) == (True, 2, 2, 0, 1)
        assert site.stored("c") == tombstone("c", "vanished")
        assert changes(site.increment()) == (False, 2, 0, 0, 0)
        site.put(tombstone("b"))
        assert changes(site.full("ab"))[:2] == (True, 1)

    def test_an_empty_pack_never_replaces_one_with_pages(self, site: StoredSite) -> None:
        site.put(page("a"), tombstone("t"))
        site.full()
        before = site.packed()
        # No page, a tombstone, and one that is not stored.
        for names, force in (("", False), ("", True), ("t", True), ("x", True)):
            with pytest.raises(PackRefused, match=f"{DOMAIN}: no pages; the present pack has 1"):
                site.full(names, force=force)
            assert site.packed() == before
            assert site.stored("a") == page("a")

    def test_a_pack_with_fewer_than_half_the_pages_is_refused_unless_forced(self, site: StoredSite) -> None:
        site.put(*(page(number) for number in range(9)))
        site.full()
        before = site.packed()
        with pytest.raises(PackRefused, match="4 pages are fewer than half of the 9"):
            site.full(range(4))
        assert site.packed() == before
        assert site.increment().pages == 9
        assert site.full(range(4), force=True).pages == 4
        assert site.full(range(2)).pages == 2

    def test_pages_with_the_same_text_or_canonical_page_are_one_group_whose_best_address_is_shown(
        self, site: StoredSite
    ) -> None:
        site.put(
            page("de/guide", "The same.", title="Guide"),
            page("guide?x=1", "The same.", title="Guide"),
            page("guide", "The same.", title="Guide"),
            page("other", "The same.", title="Another title"),
            page("print/b", canonical="beyond"),
            page("a", canonical="beyond"),
        )
        site.full()
        grouped = "SELECT copy.path, page.path FROM pages copy JOIN pages page ON page.id = copy.shown_as ORDER BY 1"
        assert site.query(grouped) == [("/de/guide", "/guide"), ("/guide?x=1", "/guide"), ("/print/b", "/a")]

    def test_any_text_is_packed_and_found(self, site: StoredSite) -> None:
        bodies = {
            "after": "before\0after",
            "cestina": "Čeština a日本語 ελληνικά",
            "odd": "🎵 \ufffe\uffff ́ odd",
            # More words than the passages of one page have.
            "last": "oak " * 300_000 + "last",
        }
        site.put(page("last", bodies.pop("last")))
        site.full()
        site.put(*(page(word, body) for word, body in bodies.items()))
        lone = to_json(page("broken", "broken SIGN")).replace(b"SIGN", rb"\ud800")
        site.store.put(content_key(DOMAIN, page_id(url("broken"))), lone)
        for is_full in (False, True):
            result = site.full(force=True) if is_full else site.increment()
            assert result.pages == 5
            assert site.search("body: (after OR cestina OR odd OR last OR broken)") == [
                *("/after", "/broken", "/cestina", "/last", "/odd")
            ]
            # One passage of each other page; none has a number of the next page.
            assert site.query("SELECT count(*) FROM passages_docsize") == [(MAX_PASSAGES + 4,)]

    def test_an_invalid_stored_page_is_left_out_with_a_warning(
        self, site: StoredSite, caplog: pytest.LogCaptureFixture
    ) -> None:
        site.put(page("a"))
        odd = [b"", b"[]", b"{}", to_json(page("other")), b'{"kind": "page"}']
        for number, data in enumerate(odd):
            site.store.put(content_key(DOMAIN, page_id(url(number))), data)
        for field in ("title", "body", "body_hash"):
            wrong = json.loads(to_json(page(field))) | {field: None}
            site.store.put(content_key(DOMAIN, page_id(url(field))), json.dumps(wrong).encode())
        # Blocks and links can be left out; a page without them is packed.
        without = json.loads(to_json(page("parts"))) | {"blocks": 1, "links": 1}
        site.store.put(content_key(DOMAIN, page_id(url("parts"))), json.dumps(without).encode())
        with caplog.at_level(logging.WARNING):
            assert site.full().pages == 2
        assert len(caplog.records) == len(odd) + 3
        assert content_key(DOMAIN, page_id(url(0))) in caplog.text

    def test_a_damaged_page_keeps_its_row_until_all_stored_pages_are_packed(self, site: StoredSite) -> None:
        site.put(*(page(number) for number in range(9)))
        site.full()
        site.store.put(content_key(DOMAIN, page_id(url(1))), b"?")
        site.put(page(2, "changed"))
        assert changes(site.increment()) == (True, 9, 0, 1, 0)
        assert not site.full().written
        assert site.search("1") == ["/1"]
        assert site.full(force=True).pages == 8

    def test_a_full_disk_is_reported_before_anything_is_written(
        self, site: StoredSite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site.put(page("a", "x" * 300_000))
        usage = namedtuple("usage", ["total", "used", "free"])
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(2**30, 2**30 - 2**20, 2**20))
        with pytest.raises(DiskFull, match="needed, 1048576 free"):
            site.full()
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(2**21, 2**20, 2**20))
        with pytest.raises(PackError, match="the disk has 2097152 in all") as caught:
            site.full()
        assert not isinstance(caught.value, DiskFull)
        assert [stat.key for stat in site.store.list("packs/")] == []


@pytest.mark.parametrize(
    "other",
    [
        *("pack/rows", "text/names", "text/words", "search/number_arrays", "storage/layout", "storage/page_parts"),
        "model of languages",
    ],
)
def test_other_code_and_another_model_are_another_code_hash(monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    former = code_hash()
    if other == "model of languages":
        monkeypatch.setattr("app.pack.derivation.version", lambda library: f"{library} 2")
    else:
        changed, read = ROOT / f"app/{other}.py", Path.read_bytes
        monkeypatch.setattr(Path, "read_bytes", lambda each: read(each) + b"#" * (each == changed))
    assert code_hash.__wrapped__() != former


class TestIncremental:
    def test_without_deletions_rows_stay_until_the_next_pack_with_deletions(self, site: StoredSite) -> None:
        site.put(page("a"), page("b"), page("c"))
        site.full()
        site.put(tombstone("b"), page("d"))
        site.remove("c")
        assert changes(site.increment(deletions=False)) == (True, 4, 1, 0, 0)
        assert changes(site.increment()) == (True, 2, 0, 0, 2)

    def test_named_pages_alone_are_compared_with_the_store(self, site: StoredSite, tmp_path: Path) -> None:
        site.put(*(page(name) for name in "abcdef"))
        ids = {name: page_id(url(name)) for name in "abcdefx"}
        without_pack = pack_incremental(site.store, DOMAIN, page_ids=[ids["a"]])
        assert changes(without_pack) == (True, 6, 6, 0, 0)
        site.put(page("a", "new"), page("b", "new"), tombstone("c"), page("g"))
        site.remove("d")
        store = RecordingStore(tmp_path / "store")
        named = pack_incremental(store, DOMAIN, page_ids=[ids[name] for name in "acdexa"])
        assert changes(named) == (True, 4, 0, 1, 2)
        assert not [key for key in store.listed if key.startswith("content/")]
        assert site.paths() == ["/a", "/b", "/e", "/f"]
        for name in "acex":
            assert not pack_incremental(store, DOMAIN, page_ids=[ids[name]]).written
        # What no message named is found by the next pack that lists all pages.
        assert changes(site.increment()) == (True, 5, 1, 1, 0)
        assert site.search("new") == ["/a", "/b"]

    def test_a_page_that_a_listing_has_twice_is_compared_as_it_was_last(self, site: StoredSite, tmp_path: Path) -> None:
        site.put(page("a"), page("b"))
        former = site.store.stat(content_key(DOMAIN, page_id(url("a"))))
        site.put(page("a", "new"))
        stats = [former, *site.store.list(f"content/{DOMAIN}/")]
        listed = Listing(tmp_path / "listing", DOMAIN, stats, lambda _: True)
        assert listed.count == 2
        assert {stat.etag for stat in listed.stats(packed=True)} == {stat.etag for stat in stats} - {former.etag}

    def test_a_domain_without_pack_and_pages_writes_nothing(self, site: StoredSite) -> None:
        site.put(tombstone("a"))
        assert changes(site.increment()) == (False, 0, 0, 0, 0)
        assert [stat.key for stat in site.store.list("packs/")] == []

    def test_a_pack_is_built_anew_when_pages_that_came_and_went_have_used_up_the_row_ids(
        self, site: StoredSite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(properties, "_MAX_IDS", 2)
        monkeypatch.setattr(properties, "_SPARE_IDS", 0)
        site.put(page(0), page(1))
        site.full()
        last = []
        for number in range(2, 6):
            site.put(page(number))
            site.remove(number - 2)
            assert site.increment().pages == 2
            last += site.query("SELECT max(id) FROM pages")
        assert last == [(3,), (4,), (2,), (3,)]

    @pytest.mark.parametrize("lost", [b"not JSON", None])
    def test_a_pack_without_its_manifest_is_built_anew_as_a_later_generation(
        self, site: StoredSite, lost: bytes | None
    ) -> None:
        site.put(page("a"))
        site.full()
        site.full(force=True)
        if lost is None:
            site.store.delete(manifest_key(DOMAIN))
        else:
            site.store.put(manifest_key(DOMAIN), lost)
        result = site.increment()
        assert (result.written, result.generation, result.added) == (True, 3, 1)
        assert site.paths() == ["/a"]


def test_names_are_titles_without_the_name_of_the_site(site: StoredSite) -> None:
    titles = ["Search | Site", "Find - Seek | Site", "A | B", "Site", "Site | Else", "Ends | Site"]
    site.put(*(page(number, title=title) for number, title in enumerate(titles)))
    site.full()
    ordered = "SELECT * FROM temp.words WHERE col = 'title' ORDER BY doc, offset"
    with closing(sqlite3.connect(fetch_pack(site.store, DOMAIN, site.folder / "packs"))) as pack:
        pack.execute("CREATE VIRTUAL TABLE temp.words USING fts5vocab (main, names, instance)")
        names = pack.execute(f"SELECT group_concat(term, ' ') FROM ({ordered}) GROUP BY doc ORDER BY 1").fetchall()
    assert [name for (name,) in names] == ["a b", "else", "ends", "find seek", "search", "site"]


def test_the_section_of_a_page_is_the_first_folder_of_its_path() -> None:
    sections = {"/": "", "/a.html": "", "/a/": "a", "/a/b/c": "a", "/caf%C3%A9/x": "café", "/q?x=/y/": ""}
    assert {path: section(path) for path in sections} == sections


def altered(site: StoredSite, sql: str) -> None:
    """Publish the present pack with another content."""
    path = fetch_pack(site.store, DOMAIN, site.folder)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(sql)
    publish(site.store, path, domain=DOMAIN, pages=2)


def without_frames(site: StoredSite) -> None:
    for stat in list(site.store.list(frames_prefix(DOMAIN))):
        site.store.delete(stat.key)


def with_a_damaged_frame(site: StoredSite) -> None:
    for stat in list(site.store.list(frames_prefix(DOMAIN))):
        data = site.store.get(stat.key).data
        site.store.put(stat.key, data[:100] + bytes(100) + data[200:])


def of_another_schema(site: StoredSite) -> None:
    altered(site, "PRAGMA user_version = 0; DROP TABLE passages")


def written_by_other_code(site: StoredSite) -> None:
    altered(site, "UPDATE meta SET value = 'other' WHERE key = 'code_hash'")


class TestDamage:
    @pytest.mark.parametrize(
        ("damage", "full"),
        [
            (without_frames, False),
            (with_a_damaged_frame, True),
            (of_another_schema, False),
            (written_by_other_code, False),
        ],
    )
    def test_a_damaged_pack_is_rebuilt(
        self, site: StoredSite, damage: Callable[[StoredSite], None], full: bool
    ) -> None:
        site.put(page("a"), page("b"))
        site.full()
        damage(site)
        result = site.full() if full else site.increment()
        assert changes(result) == (True, 2, 2, 0, 0)
        assert result.generation == 2
        assert site.search("words") == ["/a", "/b"]

    def test_a_damaged_pack_is_not_replaced_by_an_empty_one(self, site: StoredSite) -> None:
        site.put(page("a"))
        site.full()
        with_a_damaged_frame(site)
        damaged = site.packed()
        site.remove("a")
        with pytest.raises(PackRefused, match="has 1"):
            site.increment()
        assert site.packed() == damaged


class TestRaces:
    @pytest.mark.parametrize("first", [False, True])
    def test_the_loser_of_a_race_leaves_the_winners_pack(self, site: StoredSite, first: bool) -> None:
        site.put(page("a"), page("b"))
        if not first:
            site.full()
        site.put(page("c"))
        loser = ManifestStore(
            site.store.root, before=lambda: pack_full(site.store, DOMAIN, FullPackPlan(crawl_id="winner"))
        )
        with pytest.raises(PreconditionFailed, match=manifest_key(DOMAIN)):
            pack_full(loser, DOMAIN, plan("ab", crawl="loser"))
        site.put(page("d"))
        with pytest.raises(PreconditionFailed, match=manifest_key(DOMAIN)):
            pack_incremental(loser, DOMAIN)
        assert read_manifest(site.store, DOMAIN).crawl_id == "winner"
        assert site.stored("c") == page("c")
        assert site.paths() == ["/a", "/b", "/c", "/d"]

    def test_a_packer_whose_pack_was_replaced_writes_no_tombstone(self, site: StoredSite) -> None:
        site.put(page("a"), page("b"), page("c"))
        overtaken = ManifestStore(
            site.store.root, after=lambda: pack_full(site.store, DOMAIN, FullPackPlan(crawl_id="later"))
        )
        result = pack_full(overtaken, DOMAIN, plan("ab", crawl="overtaken", seconds_later=1))
        assert (result.generation, result.removed) == (1, 0)
        assert read_manifest(site.store, DOMAIN).generation == 2
        assert site.stored("c") == page("c")
        assert site.paths() == ["/a", "/b", "/c"]


def test_a_page_that_declares_no_language_gets_that_of_its_text(tmp_path: Path) -> None:
    german = "Der Befehl kopiert alle Dateien eines Ordners an einen anderen Ort und behält deren Rechte."
    site = StoredSite(tmp_path)
    site.put(page("detected", german))
    site.put(replace(page("declared", f"{german} Verweise bleiben Verweise."), lang="da"))
    site.put(page("short", "Ordner"))
    site.full()
    assert site.query("SELECT path, lang FROM pages ORDER BY path") == [
        ("/declared", "da"),
        ("/detected", "de"),
        ("/short", ""),
    ]
    site.put(page("detected", "The command copies all files of a folder to another place and keeps their permissions."))
    site.increment()
    assert site.query("SELECT lang FROM pages WHERE path = '/detected'") == [("en",)]
