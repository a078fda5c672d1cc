"""Crafted packs: checked before anything in them runs, opened in little memory, answered in few bytes."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing, nullcontext, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from app.cluster.searcher.query_process import MAX_REPLY, bounded_reply
from app.errors import PackCorrupt, PackError, SearchTimeout
from app.pack import database
from app.pack.properties import write_properties
from app.search.contract import Hit, PackHits, PackInfo, SearchReply
from app.search.pack_searcher import PackSearcher
from app.search.query import parse
from app.search.snippet import Snippet
from config.settings import ROOT
from tests.packs import page, write_pack

pytestmark = pytest.mark.unit

PAGES = [page(f"/{number}", f"Page {number}", "Some words", lang="en", headings="A heading") for number in range(30)]


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return write_pack(tmp_path / "pack.sqlite", PAGES)


def change(pack: Path, script: str, *, definitions: bool = False) -> None:
    """Run SQL on a pack; with `definitions` also on its table of definitions."""
    with closing(sqlite3.connect(pack, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA writable_schema = {int(definitions)}")
        connection.executescript(script)


FOREVER = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT max(x) FROM n"


@pytest.mark.parametrize(
    ("script", "named"),
    [
        ("CREATE TABLE letters (text)", "table letters"),
        (f"CREATE VIEW letters AS {FOREVER}", "view letters"),
        (f"DROP TABLE words; CREATE VIEW words AS SELECT 'a' AS word, ({FOREVER}) AS docs", "table words, view words"),
        ("CREATE TRIGGER gift AFTER INSERT ON stored BEGIN DELETE FROM pages; END", "trigger gift"),
        ("CREATE INDEX slow ON stored (hex(zeroblob(99999999)))", "index slow"),
        ("DROP INDEX pages_copies", "index pages_copies"),
        ("DROP TABLE stored; CREATE TABLE stored (page_id TEXT, etag TEXT CHECK (abs(etag) > 0))", "table stored"),
        ("DROP TABLE names", "table names"),
        ("PRAGMA application_id = 1", "not a pack: application_id 1"),
        (
            "PRAGMA user_version = 99; DROP TABLE passages",
            "schema version 99, this release reads 1; `perennial pack DOMAIN` rebuilds it",
        ),
    ],
)
def test_a_pack_with_a_foreign_schema_is_refused_before_anything_in_it_runs(
    pack: Path, script: str, named: str
) -> None:
    with suppress(sqlite3.OperationalError):  # SQLite refuses some of them later than it writes them.
        change(pack, script)
    with pytest.raises(PackCorrupt, match=re.escape(named)):
        database.check(pack)


def test_a_damaged_page_that_no_search_reads_is_found_by_the_check_of_the_whole_file(pack: Path) -> None:
    with closing(sqlite3.connect(pack)) as connection:
        ((page,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'stored'")
        ((size,),) = connection.execute("PRAGMA page_size")
    data = bytearray(pack.read_bytes())
    data[(page - 1) * size + 7] ^= 0x3C  # Its number of fragmented bytes (https://sqlite.org/fileformat2.html).
    pack.write_bytes(data)
    with pytest.raises(PackCorrupt, match="quick_check: "):
        database.check(pack)


@pytest.mark.parametrize(
    ("sql", "accepted"),
    [
        ("CREATE TABLE 'names_docsize'(id INTEGER PRIMARY KEY, sz BLOB, origin INTEGER)", True),
        ("CREATE TABLE 'names_docsize'(id INTEGER PRIMARY KEY, sz BLOB AS (hex(zeroblob(99999999))))", False),
        ("CREATE TABLE 'names_docsize'(id INTEGER PRIMARY KEY, sz BLOB CHECK (hex(zeroblob(99999999))))", False),
    ],
)
def test_tables_of_fts5_may_have_other_plain_columns(pack: Path, sql: str, accepted: bool) -> None:
    quoted = sql.replace("'", "''")
    change(pack, f"UPDATE sqlite_master SET sql = '{quoted}' WHERE name = 'names_docsize'", definitions=True)
    with nullcontext() if accepted else pytest.raises(PackCorrupt, match="table names_docsize"):
        database.check(pack)


def test_a_pack_of_a_release_with_other_comments_is_accepted(pack: Path) -> None:
    commented = database.SCHEMA.replace("-- ", "-- formerly ")
    other = pack.with_name("other.sqlite")
    with closing(sqlite3.connect(other)) as connection:
        connection.executescript(commented)
        write_properties(connection)
        connection.commit()
    database.check(other)
    database.check(pack)


@pytest.mark.parametrize("docs", ["-5", "'many'", "1e300", "zeroblob(9)"])
def test_frequencies_of_words_that_are_none_count_as_zero(pack: Path, docs: str) -> None:
    change(pack, f"UPDATE words SET docs = {docs}")
    with closing(PackSearcher(pack)) as searcher:
        assert searcher.search(parse("words")).total
        assert searcher.search(parse("wrods heading")).relaxed
        searcher.suggest("wo")


def memory_to_open(pack: Path) -> tuple[float, str]:
    """Open a pack in a process of its own; return the MB that it needed at most, and the error or an empty string."""
    code = """
import resource, sys
from pathlib import Path
from app.errors import PackCorrupt
from app.search.pack_searcher import PackSearcher
from app.search.query import parse
PackSearcher(Path(sys.argv[1])).search(parse("words"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
error = ""
try:
    PackSearcher(Path(sys.argv[2]))
except PackCorrupt as corrupt:
    error = str(corrupt)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, error)
"""
    harmless = write_pack(pack.with_name("harmless.sqlite"), PAGES)
    command = [sys.executable, "-c", code, str(harmless), str(pack)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    megabytes, _, error = done.stdout.strip().partition(" ")
    return float(megabytes), error


@pytest.mark.parametrize(
    ("update", "refused"),
    [
        ("lang = id || replace(hex(zeroblob(499990)), '0', 'x')", False),
        ("lang = lang; UPDATE properties SET numbers = zeroblob(67108865)", True),
        ("lang = lang; UPDATE properties SET texts = hex(zeroblob(40000000)) WHERE name = 'lang'", True),
    ],
)
def test_opening_a_pack_with_huge_properties_needs_little_memory(pack: Path, update: str, refused: bool) -> None:
    change(pack, f"UPDATE pages SET {update}")
    megabytes, error = memory_to_open(pack)
    assert megabytes < 10
    assert bool(error) is refused


@pytest.mark.parametrize(
    "update",
    [
        "properties SET numbers = zeroblob(30) WHERE name = 'inlinks'",
        "properties SET texts = '[\"\", \"de\"]' WHERE name = 'lang'",
        "pages SET section = 'other' WHERE id = 3",
        "pages SET hidden = 1, shown_as = 2 WHERE id = 3",
        "pages SET inlinks = 'many' WHERE id = 3",
        "pages SET lang = x'ff' WHERE id = 3",
        "pages SET id = -id",
        "pages SET id = id * 1000000007",
    ],
)
def test_a_pack_whose_properties_are_not_those_of_its_rows_is_refused_when_it_arrives(pack: Path, update: str) -> None:
    database.check(pack)
    change(pack, f"UPDATE {update}")
    with pytest.raises(PackCorrupt):
        database.check(pack)


@pytest.mark.parametrize(
    "update",
    [
        "numbers = x'0909' WHERE name = 'section'",
        "numbers = x'09' WHERE name = 'shown'",
        "width = 'd'",
        "texts = '{}'",
        "texts = '[7]' WHERE name = 'lang'",
        "numbers = 7",
        "name = name || 's'",
    ],
)
def test_invalid_arrays_of_properties_are_refused(pack: Path, update: str) -> None:
    change(pack, f"UPDATE properties SET {update}")
    with pytest.raises(PackCorrupt), closing(PackSearcher(pack)) as searcher:
        searcher.search(parse("words"))


def test_only_so_many_different_values_are_kept_of_a_property(tmp_path: Path) -> None:
    pages = [page(f"/section{number}/page", f"Page {number}", "Some words", lang=f"x{number}") for number in range(600)]
    with closing(PackSearcher(write_pack(tmp_path / "pack.sqlite", pages), time_limit=60)) as searcher:
        found = searcher.search(parse("words"), limit=600)
        assert len({hit.section for hit in found.hits}) == 600
        properties = searcher._properties
        assert len({properties.of("lang", number) for number in range(1, 601)}) == 500


@pytest.mark.parametrize(
    "update",
    [
        "lang = x'ff', section = 7, content_type = x'00ff', modified = 3.5",
        "title = x'ff'",
        "url = 5, path = x'c3', body = x'80'",
        "id = -id",
        "id = id * 1000000007",
    ],
)
def test_values_of_other_types_are_shown_or_refused(pack: Path, update: str) -> None:
    change(pack, f"UPDATE pages SET {update}")
    with suppress(PackCorrupt), closing(PackSearcher(pack)) as searcher:
        for hit in searcher.search(parse("words")).hits:
            assert {type(text) for text in (hit.url, hit.title, hit.lang, hit.section, hit.type)} == {str}


@pytest.mark.parametrize("pages", ["many", "-5", "9" * 5_000, "", "12"])
def test_a_number_of_pages_that_is_none_counts_as_zero(pack: Path, pages: str) -> None:
    change(pack, f"UPDATE meta SET value = '{pages}' WHERE key = 'pages'")
    with closing(PackSearcher(pack)) as searcher:
        assert searcher.info.pages == (12 if pages == "12" else 0)


def test_an_index_that_names_a_missing_page_is_reported_as_corrupt(pack: Path) -> None:
    change(pack, "DELETE FROM pages WHERE id > 20")
    with closing(PackSearcher(pack)) as searcher, pytest.raises(PackCorrupt):
        searcher.search(parse("words"), limit=30)


def test_texts_of_hits_are_cut(pack: Path) -> None:
    long = "replace(hex(zeroblob(20000)), '0', 'word ')"
    change(
        pack, f"UPDATE pages SET title = {long}, url = {long}, headings = {long} || char(10) || {long}, body = {long}"
    )
    with closing(PackSearcher(pack, time_limit=60)) as searcher:
        reply = bounded_reply(SearchReply(info=searcher.info, results=searcher.search(parse("word"), limit=30)))
    hits = json.loads(reply)["results"]["hits"]
    assert len(hits) == 30
    assert max(len(json.dumps(each)) for each in hits) < 15_000


def test_a_body_that_is_cut_within_a_character_is_shown(pack: Path) -> None:
    change(pack, "UPDATE pages SET body = 'word ' || replace(hex(zeroblob(700000)), '0', '\u20ac')")
    with closing(PackSearcher(pack, time_limit=60)) as searcher:
        (hit,) = searcher.search(parse("word"), limit=1).hits
    assert hit.snippet.marks == ((0, 4),)


def hit(number: int, size: int) -> Hit:
    return Hit(
        url="https://site.example/",
        path="/",
        title="\1" * size,
        snippet=Snippet(""),
        headings=(),
        lang="",
        score=-number,
    )


@pytest.mark.parametrize(("hits", "size"), [(0, 0), (10, 100), (1_000, 500), (1_000, 4_000), (30, 200_000)])
def test_a_reply_is_bounded_by_leaving_out_its_last_hits(hits: int, size: int) -> None:
    results = PackHits(
        total=hits,
        estimated=False,
        reachable=hits,
        relaxed=False,
        hits=tuple(hit(number, size) for number in range(hits)),
        score_bound=1.0,
    )
    info = PackInfo(domain="site.example", generation="1", built_at="", pages=1)
    reply = bounded_reply(SearchReply(info=info, results=results))
    assert len(reply) <= MAX_REPLY
    found = json.loads(reply)["results"]
    assert found["total"] == hits
    assert [each["score"] for each in found["hits"]] == [-number for number in range(len(found["hits"]))]
    whole = 6 * size * hits
    assert len(found["hits"]) == hits or len(found["hits"]) >= hits * MAX_REPLY // whole - 1 - hits // 10


#: Bytes to write, each at a place between the beginning (0) and the end (1) of the file.
damages = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=64)), min_size=1, max_size=8
)
bounded = settings(deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("packs", [100, pytest.param(1_500, marks=pytest.mark.long)])
def test_a_damaged_pack_is_refused_or_answers(pack: Path, packs: int) -> None:
    intact, damaged = pack.read_bytes(), pack.with_name("damaged.sqlite")

    @settings(bounded, max_examples=packs)
    @given(damages)
    def check(damage: list[tuple[float, bytes]]) -> None:
        data = bytearray(intact)
        for place, written in damage:
            at = int(place * len(data))
            data[at : at + len(written)] = written
        damaged.write_bytes(data)
        with suppress(PackError):
            database.check(damaged)
        with suppress(PackError, SearchTimeout), closing(PackSearcher(damaged)) as searcher:
            for text in ("words", "wrods", '"some words" -heading', "page 1"):
                bounded_reply(SearchReply(info=searcher.info, results=searcher.search(parse(text), limit=50)))
                searcher.suggest(text[:-1])

    check()
