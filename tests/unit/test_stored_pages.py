"""Stored pages: their JSON, that of other versions, what invalid parts cost, and the time that a hung store takes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.crawl.parse.classify import classify
from app.crawl.parse.extract.lexbor import LexborExtractor
from app.crawl.urls import Scope
from app.errors import StoreError
from app.http.response import Response
from app.pack.packer import pack_full
from app.storage.layout import CONTENT_VERSION, Page, content_key, from_json, list_pages, page_id, to_json
from app.storage.page_parts import KINDS, Block, PageLink, blocks_from_json, hash_of
from app.storage.s3 import ATTEMPTS, CONNECT_TIMEOUT, READ_TIMEOUT
from config.routes import ROUTES, STORE_QUEUES, Route
from config.settings import Settings
from tests.packs import page
from tests.support.stores import folder_store

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parent.parent.parent

DOMAIN = "site.example"
DOCUMENT = """<html lang=en><title>{0}</title><nav><ul><li><a href=/>Home</a></ul></nav><section id=s>
<h1>About {0}</h1><p>All of it is about {0}, which is enough for a page of its own.
<p>See <a href=/b?x=1#y>the <b>b</b> page</a>.</section>
<a href=https://elsewhere.example/>away</a><footer>&copy; {0}</footer>"""

words = st.text(st.sampled_from("ab é\0"), max_size=4)
blocks = st.builds(Block, st.lists(words).map(tuple), st.sampled_from(sorted(KINDS)), words, st.booleans())
links = st.builds(
    PageLink, st.sampled_from(["https://site.example/b", "https://site.example", "http://site.example/b"])
)


def crawled(name: str) -> Page:
    body = DOCUMENT.format(name).encode()
    response = Response(f"https://{DOMAIN}/{name}", 200, {"content-type": "text/html; charset=utf-8"}, body)
    result = classify(response, scope=Scope(DOMAIN), extractor=LexborExtractor())
    assert result.page
    return result.page


def test_a_stored_page_has_its_text_once_and_all_that_packs_may_need() -> None:
    stored = json.loads(to_json(crawled("a")))
    assert stored["version"] == CONTENT_VERSION
    assert stored["body"] == (
        "About a All of it is about a, which is enough for a page of its own. See the b page. away"
    )
    assert stored["blocks"] == [
        {"boilerplate": True, "kind": "list", "lines": ["Home"]},
        {"id": "s", "kind": "h1", "lines": [7]},
        {"lines": [60, 15, 4]},
        {"boilerplate": True, "lines": ["© a"]},
    ]
    assert stored["links"] == [["/", "Home"], ["/b?x=1", "the b page"]]
    assert (stored["title_hash"], stored["body_hash"]) == (hash_of("a"), hash_of(stored["body"]))


@given(st.lists(blocks).map(tuple), st.lists(links).map(tuple), words)
def test_any_page_is_read_as_it_was_stored(parts: tuple[Block, ...], linked: tuple[PageLink, ...], body: str) -> None:
    written = replace(page("/a", body=body), blocks=parts, links=linked)
    assert from_json(to_json(written)) == written


@pytest.mark.parametrize(
    "parts",
    [
        {"blocks": [{}]},
        {"blocks": [{"lines": 1}]},
        {"blocks": ["text"]},
        {"blocks": 1},
        {"links": ["/abc"]},
        {"links": [["/a", {}]]},
        {"blocks": [{"lines": [None]}]},
        {"blocks": [{"lines": [], "kind": 1}]},
        {"links": [[1, "a"]]},
        {"links": None},
    ],
)
def test_invalid_blocks_and_links_are_an_error_for_who_needs_them(parts: dict[str, object]) -> None:
    stored = json.dumps(json.loads(to_json(crawled("a"))) | parts).encode()
    with pytest.raises(StoreError, match="not a stored page"):
        from_json(stored)
    links = () if "links" in parts else crawled("a").links
    headings = () if "blocks" in parts else tuple(block for block in crawled("a").blocks if block.id)
    assert from_json(stored, parts=False) == replace(crawled("a"), blocks=headings, links=links)


@pytest.mark.parametrize("version", [CONTENT_VERSION - 1, CONTENT_VERSION + 1])
def test_a_page_of_another_version_is_packed_without_its_blocks_and_links(tmp_path: Path, version: int) -> None:
    other = {"version": version, "blocks": "of another form", "links": 1, "weight": 7}
    stored = json.dumps(json.loads(to_json(crawled("a"))) | other).encode()
    assert from_json(stored) == replace(crawled("a"), blocks=(), links=(), version=version)
    store = folder_store(tmp_path / "store")
    store.put(content_key(DOMAIN, page_id(crawled("a").canonical_key)), stored)
    assert pack_full(store, DOMAIN, work=tmp_path).pages == 1


def test_a_page_without_a_version_is_none() -> None:
    stored = json.loads(to_json(crawled("a")))
    del stored["version"]
    with pytest.raises(StoreError, match=r"not a stored page: KeyError.'version'"):
        from_json(json.dumps(stored).encode())


def test_only_objects_with_the_name_of_a_page_are_listed(tmp_path: Path) -> None:
    store = folder_store(tmp_path)
    for name in ("a.json", "b.txt", "c/a.json", "d"):
        store.put(f"content/{DOMAIN}/{name}", name.encode())
    assert [stat.key for stat in list_pages(store, DOMAIN)] == [content_key(DOMAIN, "a")]


def test_the_documents_name_every_field_of_a_stored_page() -> None:
    text = (ROOT / "docs" / "reference" / "stored-pages.md").read_text()
    named = {name for cell in re.findall(r"^\| (`[^|]+`) \|", text, re.M) for name in re.findall(r"`(\w+)`", cell)}
    block = {"lines", "kind", "id", "boilerplate"}
    assert named == {*json.loads(to_json(crawled("a"))), *block}
    assert {f"`{kind}`" for kind in KINDS - {"text", "h2", "h3", "h4", "h5"}} <= set(re.findall(r"`\w+`", text))


def test_the_example_of_the_documents_is_read() -> None:
    example = (
        (ROOT / "docs" / "reference" / "stored-pages.md").read_text().partition("```json\n")[2].partition("```")[0]
    )
    stored = json.loads(example)
    assert blocks_from_json(stored["blocks"], stored["body"]) == (
        Block(("Home", "Up"), "list", boilerplate=True),
        Block(("Amber",), "h1", "amber"),
        Block(("All about amber trees.", "See the forest.")),
    )


#: Seconds of boto3's backoff between two attempts, at most.
BACKOFF = 2


#: Those that use the store: `index+crawl` does not.
STORING = [route for route in ROUTES if route.queue in STORE_QUEUES and route.type != "index+crawl"]


@pytest.mark.parametrize("route", STORING, ids=lambda route: route.type)
def test_a_request_to_a_hung_store_and_its_probe_end_before_the_time_limit_of_the_task(route: Route) -> None:
    request = ATTEMPTS * (CONNECT_TIMEOUT + READ_TIMEOUT) + (ATTEMPTS - 1) * BACKOFF
    # A page may take the time for robots.txt and for itself before it is stored.
    fetch = 2 * Settings.model_fields["response_timeout"].default
    assert 2 * request + fetch <= route.soft_time_limit
