"""Pages that would cost too much: bounded texts of stored pages, and documents that a parser would not finish."""

from __future__ import annotations

import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from billiard import Process
from billiard.common import human_status
from billiard.exceptions import WorkerLostError

from app.broker.delivery import Delivery
from app.broker.headers import failure_headers
from app.broker.worker.failures import failure_of
from app.crawl.parse.classify import FetchResult, classify
from app.crawl.parse.cpu_limit import MAX_CHILDREN, child_at_work, cpu_limit, limit_was_exceeded
from app.crawl.parse.extract.beautifulsoup import BeautifulSoupExtractor
from app.crawl.parse.extract.contract import MAX_SIBLINGS, Extractor, excess_complexity
from app.crawl.parse.extract.lexbor import LexborExtractor
from app.crawl.parse.extract.pdf import UnreadablePdf, extract_pdf
from app.crawl.urls import Scope
from app.http.response import Response
from app.pack.packer import pack_full, pack_incremental
from app.storage import layout
from app.storage.layout import Page, bounded, language_tag, to_json
from app.storage.page_parts import MAX_ANCHOR, MAX_BLOCKS, Block, PageLink
from app.text.anchor_texts import MAX_ANCHORS
from tests.packs import fetch_pack, page, put
from tests.support.stores import folder_store

pytestmark = pytest.mark.unit

DOMAIN = "site.example"
MB = 1_000_000

HOSTILE = f"""<html lang="{"en-" * (MB // 3)}"><title>{"t" * MB}</title>
<meta name=description content="{"d" * MB}">{"<h2>h</h2>" * 1_000}<h3>{"h" * MB}</h3><p>words</p>
<a href=a>{"a" * MB}</a>"""


def sizes(of: Page) -> tuple[int, int, int, int, str]:
    return len(of.title), len(of.description), len(of.headings), max(map(len, of.headings), default=0), of.lang


@pytest.mark.parametrize("parser", [LexborExtractor(), BeautifulSoupExtractor()], ids=["lexbor", "bs4"])
def test_an_extracted_page_has_bounded_texts(parser: Extractor) -> None:
    response = Response(
        url=f"https://{DOMAIN}/", status=200, headers={"content-type": "text/html"}, body=HOSTILE.encode()
    )
    result = classify(response, scope=Scope(DOMAIN, mode="exact"), extractor=parser)
    assert result.page
    limits = layout.MAX_TITLE, layout.MAX_DESCRIPTION, layout.MAX_HEADINGS
    assert sizes(result.page) == (*limits, 1, "")
    assert "words" in result.page.body
    assert result.page.links == (PageLink(f"https://{DOMAIN}/a", "a" * MAX_ANCHOR),)
    assert len(to_json(result.page)) < 3 * MB + 200_000


def test_blocks_and_links_of_a_foreign_writer_are_bounded() -> None:
    block = Block(("a",), "k" * MB, "i" * MB)
    links = (PageLink("u" * MB, "a"), *(PageLink(f"/{number}", "b" * MB) for number in range(3)))
    cut = bounded(replace(page("/a"), blocks=(block,) * (MAX_BLOCKS + 1), links=links, body_hash="h" * MB))
    assert cut.blocks == (Block(("a",)),) * MAX_BLOCKS
    assert cut.links == tuple(PageLink(f"/{number}", "b" * MAX_ANCHORS) for number in range(3))
    assert len(cut.body_hash) == layout.MAX_HASH


@pytest.mark.parametrize(
    ("lang", "tag"),
    [
        ("en", "en"),
        ("de-CH-1996", "de-CH-1996"),
        ("en_US", "en-US"),
        (" fr ", "fr"),
        ("x-klingon", "x-klingon"),
        ("zh-cmn-Hans-CN-x-private1-private2", "zh-cmn-Hans-CN-x-private1-private2"),
        ("", ""),
        ("{{ lang }}", ""),
        ("en-", ""),
        ("e" * MB, ""),
        ("en" + "-abcdefgh" * 4, ""),
        ("日本語", ""),
    ],
    ids=lambda value: value[:40],
)
def test_only_language_tags_are_languages(lang: str, tag: str) -> None:
    assert language_tag(lang) == tag


def test_stored_pages_of_a_foreign_writer_are_bounded_in_full_and_incremental_packs(tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    for name in ("a", "b"):
        hostile = replace(
            page(f"/{name}"),
            title="t" * MB,
            description="d" * MB,
            headings=("h" * MB,) * 3,
            lang="l" * MB,
            canonical="c" * MB,
            modified="m" * MB,
            content_type="c" * MB,
        )
        unaddressable = page(f"/{name}/" + "u" * layout.MAX_ADDRESS)
        put(store, hostile, unaddressable)
        if name == "a":
            pack_full(store, DOMAIN, work=tmp_path)
        else:
            pack_incremental(store, DOMAIN, work=tmp_path)
    with closing(sqlite3.connect(fetch_pack(store, DOMAIN, tmp_path / "packs"))) as pack:
        rows = pack.execute(
            "SELECT path, length(title), length(description), length(headings), lang, canonical, modified,"
            " length(content_type) FROM pages ORDER BY path"
        ).fetchall()
    headings = 3 * layout.MAX_HEADING + 2
    # The language is detected: the declared one is invalid.
    bounds = (layout.MAX_TITLE, layout.MAX_DESCRIPTION, headings, "en", "", "", layout.MAX_CONTENT_TYPE)
    assert rows == [("/a", *bounds), ("/b", *bounds)]


N = 50_000
NESTED, UNCLOSED, MANY = "its elements are nested too deeply", "its formatting elements are not closed", "it has over"
#: Documents, each with what is said of it: nothing of an ordinary one.
DOCUMENTS = {
    "div": ("<div>" * N, NESTED),
    "bold": ("<b>" * 24_000, NESTED),
    "bold blocks": ("<b><div></b>" * N, NESTED),
    "after end tags": ("</div>" * N + "<div>" * N, NESTED),
    "far down": ("<p>x</p>" * N + "<div>" * 20_000, NESTED),
    "unclosed formatting": (f"<p>{'<b id=1>' * 2_000}</p>{'<p>x</p>' * N}", NESTED),
    "formatting alone": ("<b>" * 2_000 + "<br>" * 3_000, UNCLOSED),
    "attributes": (f"<p>x</p><div {' '.join(f'a{n}=1' for n in range(N))}>", f"an element has over {MAX_SIBLINGS}"),
    "options": ("<select>" + "<option>x</option>" * N, f"{MANY} {MAX_SIBLINGS}"),
    "bodies": ("".join(f"<body a{number}=1>" for number in range(N)), f"{MANY} {MAX_SIBLINGS}"),
    "paragraphs": ("<p>x" * N, ""),
    "upper case": ("<P>X" * N, ""),
    "images": ("<img src=a>" * N, ""),
    "closed bold": ("<b>x</b>" * N, ""),
    "links": ("<div><p><a href=x>x</a></p></div>" * N, ""),
    "nested a little": (("<div>" * 30 + "x" + "</div>" * 30) * 2_000, ""),
    "text": ("x < y " * N, ""),
    "a long attribute": (f'<img src="data:{"x" * 1_000_000}" alt="a b">', ""),
    "a list of places": ("<select>" + "<option>x</option>" * 5_000 + "</select>", ""),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_would_cost_a_parser_too_much_is_found_in_little_time(name: str) -> None:
    document, fault = DOCUMENTS[name]
    began = time.process_time()
    found = excess_complexity(document)
    assert time.process_time() - began < 2
    assert found.startswith(fault) if fault else found == ""


def test_headings_in_headings_take_time_in_proportion_to_their_depth() -> None:
    nested = "<h1><div><p></p>" * 1_500 + "x"
    assert excess_complexity(nested) == ""
    began = time.process_time()
    assert len(LexborExtractor().extract(nested).headings) == 1_500
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("opening", ["<div>", "<b>", "<ul><li>", "<i id=x>"])
def test_what_the_limit_admits_is_extracted_in_seconds(opening: str) -> None:
    deepest = 3_000
    assert excess_complexity(opening * deepest) == ""
    began = time.process_time()
    LexborExtractor().extract(opening * deepest + "x")
    assert time.process_time() - began < 5


def test_a_page_that_is_too_complex_is_skipped_for_good() -> None:
    body = b"<title>Deep</title><a href=/b>b</a>" + b"<div>" * 300_000
    began = time.process_time()
    result = classify(
        Response("https://x.gov/a", 200, {"content-type": "text/html"}, body),
        scope=Scope("x.gov"),
        extractor=LexborExtractor(),
    )
    assert result == FetchResult("skipped", "too-complex", "its elements are nested too deeply")
    assert time.process_time() - began < 5


def _deceive() -> None:
    # The parser ignores </div> within <object>: 25,000 elements are open at the end.
    with cpu_limit(0.3):
        LexborExtractor().extract("<div><object></div></object>" * 25_000)


def _deceive_in_thread() -> None:
    thread = threading.Thread(target=_deceive)
    thread.start()
    thread.join()


def _deceive_after_a_child() -> None:
    with cpu_limit(0.3):
        with child_at_work():
            sum(range(20_000_000))  # Not counted: another thread could have a page that takes as much.
        LexborExtractor().extract("<div><object></div></object>" * 25_000)


@pytest.mark.parametrize("deceive", [_deceive, _deceive_in_thread, _deceive_after_a_child])
def test_a_page_that_deceives_the_estimate_ends_its_pool_process_and_the_next_run_knows(
    deceive: Callable[[], None],
) -> None:
    process = Process(target=deceive)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGVTALRM
    # The text that the pool gives to the error of a lost process.
    lost = failure_of(WorkerLostError(f"Worker exited prematurely: {human_status(process.exitcode)} Job: 3."))
    delivery = Delivery(b"", {}, {}, None, None, "site.index")
    assert limit_was_exceeded(failure_headers(delivery, lost))
    assert not limit_was_exceeded(failure_headers(delivery, failure_of(WorkerLostError("signal 9 (SIGKILL)"))))
    assert not limit_was_exceeded({})


def _read_pdf_beside_a_page() -> None:
    ended: list[bool] = []

    def read_pdf() -> None:
        with cpu_limit():
            begun.set()
            with suppress(UnreadablePdf):
                extract_pdf(b"%PDF-", name="x")
            ended.append(True)

    begun, thread = threading.Event(), threading.Thread(target=read_pdf)
    thread.start()
    begun.wait()
    with cpu_limit():
        sys.exit(len(ended))


def _wait_in_children() -> None:
    lock, running, full = threading.Lock(), [0, 0], threading.Barrier(MAX_CHILDREN)

    def wait() -> None:
        with cpu_limit(), child_at_work():
            with lock:
                running[0] += 1
                running[1] = max(running)
            full.wait(30)
            full.wait(30)
            with lock:
                running[0] -= 1

    threads = [threading.Thread(target=wait) for _ in range(2 * MAX_CHILDREN)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(running != [0, MAX_CHILDREN])


@pytest.mark.parametrize("run", [_read_pdf_beside_a_page, _wait_in_children])
def test_pages_are_parsed_while_pdfs_are_read_two_at_a_time(run: Callable[[], None]) -> None:
    process = Process(target=run)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_the_limit_ends_with_its_block_and_spares_a_main_process() -> None:
    with cpu_limit(0.001):
        sum(range(300_000))
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
