"""Limits of a page's texts: at extraction, and again when a pack is built of what others stored."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from app.crawl.read.classify import Indexed, classify
from app.crawl.read.extract.extractors import extractor
from app.crawl.urls import Scope
from app.http.response import Response
from app.pack.fetch import fetch_pack
from app.pack.packer import pack_full, pack_incremental
from app.storage import layout
from app.storage.layout import Page, bounded, language_tag, to_json
from app.storage.page_parts import MAX_ANCHOR, MAX_BLOCKS, Block, PageLink, hash_of
from app.text.anchor_texts import MAX_ANCHORS
from tests.packs import page, put
from tests.support.stores import folder_store

pytestmark = pytest.mark.unit

DOMAIN = "site.example"
MB = 1_000_000

HOSTILE = f"""<html lang="{"en-" * (MB // 3)}"><title>{"t" * MB}</title>
<meta name=description content="{"d" * MB}">{"<h2>h</h2>" * 1_000}<h3>{"h" * MB}</h3><p>words</p>
<a href=a>{"a" * MB}</a>"""


def sizes(of: Page) -> tuple[int, int, int, int, str]:
    return len(of.title), len(of.description), len(of.headings), max(map(len, of.headings), default=0), of.lang


@pytest.mark.parametrize("parser", ["lexbor", "beautifulsoup"])
def test_an_extracted_page_has_bounded_texts(parser: str) -> None:
    response = Response(
        url=f"https://{DOMAIN}/", status=200, headers={"content-type": "text/html"}, body=HOSTILE.encode()
    )
    result = classify(response, scope=Scope(DOMAIN, mode="exact"), extractor=extractor(parser))
    assert isinstance(result, Indexed)
    limits = layout.MAX_TITLE, layout.MAX_DESCRIPTION, layout.MAX_HEADINGS
    assert sizes(result.page) == (*limits, 1, "")
    assert "words" in result.page.body
    assert result.page.links == (PageLink(f"https://{DOMAIN}/a", "a" * MAX_ANCHOR),)
    assert len(to_json(result.page)) < 3 * MB + 200_000


def test_a_page_within_its_limits_is_unchanged() -> None:
    usual = page("/a", "Title", "body", headings="One\nTwo", lang="en-US", description="About", modified="2026-11-21")
    usual = replace(
        usual, blocks=(Block(("body",), "h2", "a"),), links=(PageLink("/b", "B"),), body_hash=hash_of("body")
    )
    assert bounded(usual) == usual


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


OPEN = """
import pathlib, resource, sys
from app.search.pack_searcher import PackSearcher
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
PackSearcher(pathlib.Path(sys.argv[1])).close()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_pack_of_pages_with_huge_languages_opens_in_little_memory(tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    for number in range(20):
        put(store, page(f"/{number}", body="words", lang=f"{number}" + "l" * MB))
    pack_full(store, DOMAIN, work=tmp_path)
    pack = fetch_pack(store, DOMAIN, tmp_path / "packs")
    opened = subprocess.run([sys.executable, "-c", OPEN, str(pack)], capture_output=True, text=True, check=True)
    assert int(opened.stdout) < 10_000
