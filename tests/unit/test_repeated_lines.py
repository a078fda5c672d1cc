"""Lines that many pages of a site repeat, and boilerplate of one page: left out of bodies, also when pages change."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.crawl.parse.extract.beautifulsoup import BeautifulSoupExtractor
from app.crawl.parse.extract.boilerplate import HINTED, IN_BOILERPLATE, IN_HEADER, OWN, PlacedBlock, separated
from app.crawl.parse.extract.contract import Extractor
from app.crawl.parse.extract.lexbor import LexborExtractor
from app.pack import database, repeated_lines
from app.pack.packer import pack_full, pack_incremental
from app.storage.layout import Page, content_key, page_id
from app.storage.page_parts import HEADINGS, KINDS, Block, body_of
from app.storage.store import ObjectStore
from app.text.lines import without_ends
from tests.packs import check_index, fetch_pack, gone, page, put
from tests.support.stores import RecordingStore, folder_store

pytestmark = pytest.mark.unit

DOMAIN = "site.example"
MENU = ("Home page", "Search the site")
NAMES = tuple("abcdefghijklmnopqrst")


def with_lines(path: str, *lines: str, menu: tuple[str, ...] = MENU) -> Page:
    blocks = (Block(menu), Block(lines), Block(("marked",), boilerplate=True)) if menu else (Block(lines),)
    return page(path, f"Page {path}", body_of(blocks), blocks=blocks)


def packed(store: ObjectStore, folder: Path) -> dict[str, tuple[str, str]]:
    """Return body and forms by path, of a pack whose index matches its rows."""
    path = fetch_pack(store, DOMAIN, folder)
    check_index(path)
    with closing(sqlite3.connect(path)) as pack:
        rows = pack.execute("SELECT path, body, body_forms FROM pages")
        return {row: (without_ends(body), forms) for row, body, forms in rows}


def pack_all(store: ObjectStore, folder: Path) -> dict[str, tuple[str, str]]:
    pack_full(store, DOMAIN, work=folder, force=True)
    return packed(store, folder)


def test_the_body_of_a_page_has_no_line_that_many_pages_repeat(tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    put(store, *(with_lines(f"/{name}", f"Words of {name}") for name in NAMES))
    put(store, with_lines("/menu"), with_lines("/short", "Words", menu=("Home page",)))
    bodies = {path: body for path, (body, _) in pack_all(store, tmp_path).items()}
    assert bodies == {f"/{name}": f"Words of {name}" for name in NAMES} | {
        "/menu": " ".join(MENU),  # Nothing else would be left.
        "/short": "Words",
    }


def test_copies_of_one_page_repeat_no_line(tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    put(store, *(with_lines(f"/{name}", "Text", "of one page") for name in NAMES))
    assert {body for body, _ in pack_all(store, tmp_path).values()} == {"Home page Search the site Text of one page"}


def test_only_pages_whose_repeated_lines_change_are_read_again(tmp_path: Path) -> None:
    store = RecordingStore(folder_store(tmp_path / "store").root)
    menus = {name: MENU if name < "k" else ("Other menu",) for name in NAMES}
    put(store, *(with_lines(f"/{name}", f"Words of {name}", menu=menus[name]) for name in NAMES))
    assert pack_all(store, tmp_path)["/a"][0] == "Words of a"
    keys = {name: content_key(DOMAIN, page_id(f"https://{DOMAIN}/{name}")) for name in NAMES}
    # Of 17 pages 7 have the menu, then of 15 pages 5: a third is too few for a line that was repeated, too.
    for removed, others in (("abc", ""), ("de", "fghij")):
        store.read.clear()
        put(store, *(gone(f"/{name}") for name in removed))
        result = pack_incremental(store, DOMAIN, work=tmp_path)
        assert (result.changed, result.removed) == (0, len(removed))
        assert {name for name, key in keys.items() if key in store.read} == {*removed, *others}
    assert packed(store, tmp_path)["/f"][0] == "Home page Search the site Words of f"


contents = st.dictionaries(
    st.sampled_from(NAMES[:12]),
    st.none() | st.lists(st.sampled_from(["one", "two", "three", "menus"]), max_size=3, unique=True),
    max_size=12,
)


def lines_in_pack(store: ObjectStore, folder: Path) -> frozenset[int]:
    with closing(sqlite3.connect(fetch_pack(store, DOMAIN, folder))) as pack:
        (lines,) = pack.execute("SELECT value FROM meta WHERE key = 'repeated_lines'").fetchone()
        return frozenset(map(int, lines.split()))


@settings(max_examples=20, deadline=None)
@given(st.lists(contents, min_size=2, max_size=3))
def test_an_incremental_pack_leaves_out_the_lines_of_a_full_one_and_those_that_were_repeated_before(
    tmp_path_factory: pytest.TempPathFactory, steps: list[dict[str, list[str] | None]]
) -> None:
    folder = tmp_path_factory.mktemp("site")
    store = folder_store(folder / "store")
    pages = {"/start": with_lines("/start", "Start")}
    put(store, *pages.values())
    pack_all(store, folder)
    for step in steps:
        for name, lines in step.items():
            pages.pop(f"/{name}", None)
            if lines is not None:
                pages[f"/{name}"] = with_lines(f"/{name}", f"Words of {name}", *lines)
            put(store, pages.get(f"/{name}") or gone(f"/{name}"))
        pack_incremental(store, DOMAIN, work=folder)
    found = lines_in_pack(store, folder)
    expected = {path: repeated_lines.without(repeated_lines.lines_of(page), found)[0] for path, page in pages.items()}
    assert {path: body for path, (body, _) in packed(store, folder).items()} == {
        path: without_ends(body) for path, body in expected.items()
    }
    pack_all(store, folder)
    assert lines_in_pack(store, folder) <= found


@given(st.binary(max_size=20))
def test_hashes_that_a_foreign_writer_damaged_are_no_error(damaged: bytes) -> None:
    with closing(sqlite3.connect(":memory:")) as pack:
        pack.executescript(database.SCHEMA)
        rows = [(str(at), damaged + bytes([at]), damaged) for at in range(9)]
        pack.executemany("INSERT INTO lines VALUES (?, ?, ?)", rows)
        repeated_lines.differing(pack, repeated_lines.find(pack))


@pytest.fixture
def many(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Return a pack of 2,500 pages without rows, of which 1,000 have one menu and 750 the other."""
    with closing(sqlite3.connect(tmp_path / "pack", isolation_level=None)) as pack:
        pack.executescript(f"{database.SCHEMA} BEGIN")
        for number in range(2_500):
            menus = ["Menu"] * (number % 10 < 4) + ["Other menu"] * (number % 10 > 6)
            _, *hashes = repeated_lines.without([f"Words of {number}", *menus], frozenset())
            repeated_lines.note_lines(pack, page_id(f"https://{DOMAIN}/{number}"), *hashes)
        yield pack


def test_a_repeated_line_is_found_among_more_pages_than_are_searched_for_candidates(many: sqlite3.Connection) -> None:
    found = repeated_lines.find(many)
    assert len(found) == 1
    assert repeated_lines.without(["Menu", "Other menu", "Words"], found)[0] == "Other menuWords"


@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "cc"]), max_size=3).map(tuple), max_size=4),
    st.sampled_from(["", "I > II"]),
)
def test_the_lines_of_a_page_are_its_body(lines: list[tuple[str, ...]], breadcrumb: str) -> None:
    blocks = tuple(Block(block, boilerplate=at == 1) for at, block in enumerate(lines))
    body = f"{body_of(blocks)} {breadcrumb}".strip()
    marked = "".join(repeated_lines.lines_of(page("/a", "", body, blocks=blocks)))
    assert without_ends(marked) == body


OWN_TEXT = "A storm is coming. It will be over the coast by Friday morning, and it will stay until Sunday."
LINKS = "<ul><li><a href=a>Weather</a><li><a href=b>Sport today</a><li><a href=c>Sea</a></ul>"

both = pytest.mark.parametrize("parser", [LexborExtractor(), BeautifulSoupExtractor()], ids=["lexbor", "bs4"])


@both
@pytest.mark.parametrize(
    ("document", "body"),
    [
        # What is outside of the page's own part.
        (f"<p>Sign in<main><p>{OWN_TEXT}</main><p>Follow us", OWN_TEXT),
        (f"<p>Sign in<section role=main class=with-sidebar><p>{OWN_TEXT}</section>Follow us", OWN_TEXT),
        (f"<p>Sign in<article><p>{OWN_TEXT}</article><p>Follow us", OWN_TEXT),
        (f"<main><p>Print<article><p>{OWN_TEXT}</article>Follow us</main>", OWN_TEXT),
        (f"<article><p>Print<div itemprop=articleBody>{OWN_TEXT}</div>Follow us</article>", OWN_TEXT),
        (f"<article><p>{OWN_TEXT}</article><article>And more: {OWN_TEXT}</article><p>Sign in",
         f"{OWN_TEXT} And more: {OWN_TEXT}"),
        (f"<p>{OWN_TEXT}<article>{OWN_TEXT[:34]}</article><article>{OWN_TEXT[35:70]}</article>",
         f"{OWN_TEXT} {OWN_TEXT[:70]}"),
        # An empty part that a script would fill is not the page's, nor is a short one.
        (f"<main>Please wait</main><p>{OWN_TEXT}", f"Please wait {OWN_TEXT}"),
        (f"<nav>Menu</nav><main>Please wait a while</main><p>{OWN_TEXT[:44]}",
         f"Please wait a while {OWN_TEXT[:44]}"),
        # What a class hints at.
        (f"<p>{OWN_TEXT}<div class=theComments>I doubt it.</div><div class='w Related-2'>Sun</div>",
         OWN_TEXT),
        (f"<div class='widget meteo'>Sun</div><div class=a-widget>{OWN_TEXT}</div>", OWN_TEXT),
        (f"<div class=content-sidebar><h1>Storm</h1>{OWN_TEXT}</div>", f"Storm {OWN_TEXT}"),
        (f"<div class=content-sidebar><div role=main>{OWN_TEXT}</div>Sun</div>", OWN_TEXT),
        (f"<div id=comments>{OWN_TEXT}</div><p>Sun", f"{OWN_TEXT} Sun"),
        (f"<p>How do I parse it?<div class=comment>{OWN_TEXT * 9}</div>", f"How do I parse it? {OWN_TEXT * 9}"),
        # Lists of links.
        (f"{LINKS}<p>{OWN_TEXT}<h2>Go on</h2><a href=a>Weather</a> | <a href=b>Sport today</a><br><a href=c>Sea</a>",
         OWN_TEXT),
        (f"<p>{OWN_TEXT}<table><tr><td><a href=a>a-package</a><td><a href=b>b-package</a></table>",
         f"{OWN_TEXT} a-package b-package"),
        (f"<p>{OWN_TEXT}<p><a href=a>One link.</a>", f"{OWN_TEXT} One link."),
        (f"<p>The manual.{LINKS}", "The manual. Weather Sport today Sea"),
        # Headings of sections that have nothing else.
        (f"<h2>Storm</h2><p>{OWN_TEXT}<h2>More</h2><h3>From us</h3>{LINKS}", f"Storm {OWN_TEXT}"),
        (f"<h2>Storm</h2>{LINKS}<h3>Friday</h3><p>{OWN_TEXT}", f"Storm Friday {OWN_TEXT}"),
        (f"<p>{OWN_TEXT}<h1>Storm</h1>{LINKS}", f"{OWN_TEXT} Storm"),
        (f"<p>{OWN_TEXT}<h2>See also</h2>", f"{OWN_TEXT} See also"),
    ],
)  # fmt: skip
def test_the_body_is_the_own_text_of_a_page(parser: Extractor, document: str, body: str) -> None:
    assert parser.extract(document).body == body


@both
def test_headings_are_those_of_own_text_and_of_the_header_and_the_first_level(parser: Extractor) -> None:
    document = (
        f"<header><h2>Weather</h2></header><h1>Storm</h1><h2>Sign in</h2><main><h2>Friday</h2>{OWN_TEXT}"
        f"<h2>More</h2>{LINKS}</main><div class=footer><h2>About</h2></div>"
    )
    assert parser.extract(document).headings == ("Weather", "Storm", "Friday")


lines = st.lists(st.sampled_from(["home", "up | home", "a | b", "text of its own", "x"]), min_size=1, max_size=4)
pages = st.lists(
    st.builds(
        PlacedBlock,
        st.builds(Block, lines.map(tuple), st.sampled_from(sorted(KINDS)), st.just(""), st.just(False)),
        st.sampled_from([OWN, OWN, HINTED, IN_HEADER, IN_BOILERPLATE]),
        st.integers(0, 15),
    ),
    max_size=12,
)


@given(pages)
def test_blocks_are_only_marked_and_some_own_text_is_left(placed: Sequence[PlacedBlock]) -> None:
    blocks = separated(placed, {"home", "up"})
    assert [(block.lines, block.kind) for block in blocks] == [(each.block.lines, each.block.kind) for each in placed]
    assert all(block.boilerplate for block, each in zip(blocks, placed, strict=True) if each.region > HINTED)
    texts = [each for each in placed if each.region <= HINTED and each.block.kind not in HEADINGS]
    if len(texts) == sum(each.region <= HINTED for each in placed) > 0:
        assert not all(block.boilerplate for block in blocks)
