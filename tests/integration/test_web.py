"""The search page and its JSON twin over real HTTP."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from selectolax.lexbor import LexborHTMLParser

from app.storage.folder import FolderStore
from app.storage.keys import pack_key
from app.storage.open import open_store
from app.storage.store import ObjectStore
from app.web.application import HEADERS, create_app
from app.web.site import StoreFinder
from tests.packs import page, publish, write_pack
from tests.servers.s3 import S3Server
from tests.support.web import served

pytestmark = pytest.mark.integration

PAGES = [
    *(page(f"/many/{number}", f"Many {number}", "One of many pages", lang="en") for number in range(35)),
    page("/évil?a=1&b=2", "<script>alert(1)</script>", "<b>hostile</b> & 'quoted' \"body\"", lang='x" onload="'),
    page("/scheme", "Not for clicking", "dangerous", url="javascript:alert(1)"),
]


@contextmanager
def serving(store: ObjectStore, folder: Path) -> Iterator[httpx.Client]:
    """Serve the packs of a store."""
    with served(create_app(StoreFinder(store, folder, recheck=0.0))) as client:
        yield client


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


@pytest.fixture
def client(store: FolderStore, tmp_path: Path) -> Iterator[httpx.Client]:
    publish(store, write_pack(tmp_path / "pack.sqlite", PAGES), pages=len(PAGES))
    with serving(store, tmp_path / "web") as client:
        yield client


def get(client: httpx.Client, path: str, status: int = 200, **params: str | int) -> LexborHTMLParser:
    answer = client.get(path, params=params)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return LexborHTMLParser(answer.text)


def text_of(tree: LexborHTMLParser, selector: str) -> str:
    node = tree.css_first(selector)
    assert node is not None, selector
    return " ".join(node.text().split())


def test_the_start_page_is_a_labelled_search_form(client: httpx.Client) -> None:
    tree = get(client, "/")
    form = tree.css_first("form")
    assert form is not None
    assert (form.attributes["role"], form.attributes["method"], form.attributes["action"]) == ("search", "get", "/")
    assert text_of(tree, "label[for=q]")
    assert tree.css_first("input[name=domain]").attributes["value"] == "site.example"  # type: ignore[union-attr]
    assert text_of(tree, "h1") == "Search site.example"
    assert text_of(tree, "footer") == "Index of site.example: 37 pages, as of 21 November 2026, 10:04 UTC"
    assert not tree.css("script")
    assert client.head("/").status_code == 200


def test_results_are_counted_marked_linked_and_paged(client: httpx.Client) -> None:
    tree = get(client, "/", q="many pages", page=2)
    assert re.fullmatch(r"Showing 11–20 of 35 for “many pages” \(\d+ ms\)", text_of(tree, "[role=status]"))
    hits = tree.css("ol.hits > li")
    assert len(hits) == 10
    assert tree.css_first("ol.hits").attributes["start"] == "11"  # type: ignore[union-attr]
    assert str(hits[0].css_first("h2 a").attributes["href"]).startswith("https://site.example/many/")  # type: ignore[union-attr]
    assert [mark.text() for mark in hits[0].css("mark")] == ["many pages"]
    assert hits[0].attributes["lang"] == "en"
    assert text_of(tree, "nav [aria-current=page]") == "2"
    links = {" ".join(link.text().split()): str(link.attributes["href"]) for link in tree.css("nav a")}
    assert list(links) == ["Previous", "1", "3", "4", "Next"]
    assert len(LexborHTMLParser(client.get(links["4"]).text).css("ol.hits > li")) == 5
    assert tree.css_first("input[name=q]").attributes["value"] == "many pages"  # type: ignore[union-attr]


def test_no_hits_never_indexed_and_no_words_are_told_apart(client: httpx.Client) -> None:
    nothing = get(client, "/", q="nonexistent")
    assert text_of(nothing, "[role=status]") == "Nothing on site.example matches “nonexistent”."
    assert nothing.css("ul.hints li")
    never = get(client, "/", 404, domain="Never.EXAMPLE", q="x")
    assert text_of(never, "main h2") == "never.example was never indexed"
    assert text_of(never, "pre") == "perennial index https://never.example/"
    assert "there is no letter or digit" in text_of(get(client, "/", 400, q="?!"), "[role=alert]")
    assert "at most 255" in text_of(get(client, "/", 400, q="x" * 256), "[role=alert]")
    assert "no page “0”" in text_of(get(client, "/", 400, q="many", page="0"), "[role=alert]")
    assert "35 in all" in text_of(get(client, "/", 404, q="many", page="5"), "main p")
    assert get(client, "/", 404, domain="../../etc/passwd", q="x").css("main pre")
    assert "no URL that a browser" in text_of(get(client, "/", 400, domain="a b", q="x"), "[role=alert]")
    assert text_of(get(client, "/nowhere", 404), "main h1") == "404"


def test_pages_with_some_of_the_words_are_announced(client: httpx.Client) -> None:
    assert "some of them" in text_of(get(client, "/", q="many nonexistent"), ".notice")


def test_what_a_page_or_a_person_wrote_is_never_markup(client: httpx.Client) -> None:
    tree = get(client, "/", q="hostile")
    (hit,) = tree.css("ol.hits > li")
    assert text_of(tree, "ol.hits h2") == "<script>alert(1)</script>"
    assert text_of(tree, ".snippet") == "<b>hostile</b> & 'quoted' \"body\""
    assert "lang" not in hit.attributes
    assert not tree.css("script, b, [onload]")
    echoed = get(client, "/", q='"><script>alert(1)</script>')
    assert not echoed.css("script")
    assert echoed.css_first("input[name=q]").attributes["value"] == '"><script>alert(1)</script>'  # type: ignore[union-attr]
    assert not get(client, "/", 400, domain="<script>.example", q="x").css("script")


def test_only_web_addresses_become_links(client: httpx.Client) -> None:
    tree = get(client, "/", q="dangerous")
    assert text_of(tree, "ol.hits h2") == "Not for clicking"
    assert not tree.css("ol.hits a")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/?q=many", 200),
        ("/?q=%3F", 400),
        ("/?domain=never.example&q=x", 404),
        ("/nowhere", 404),
        ("/static/style.css", 200),
        ("/static/icon.svg", 200),
        ("/static/../application.py", 404),
        ("/static/%2e%2e/application.py", 404),
        ("/healthz", 200),
        ("/readyz", 200),
        ("/api/v1/search", 400),
        ("/api/v1/openapi.json", 200),
        ("/docs", 404),
    ],
)
def test_every_answer_carries_the_security_headers(client: httpx.Client, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS


def test_with_several_sites_one_is_chosen(client: httpx.Client, store: FolderStore, tmp_path: Path) -> None:
    other = write_pack(tmp_path / "other.sqlite", [page("/", "Other", "many")], domain="127.0.0.1:8080")
    publish(store, other, domain="127.0.0.1:8080")
    tree = get(client, "/", domain="site.example", q="many")
    assert [(each.text(), "selected" in each.attributes) for each in tree.css("option")] == [
        ("127.0.0.1:8080", False),
        ("site.example", True),
    ]
    assert "of 1 for" in text_of(get(client, "/", domain="127.0.0.1:8080", q="many"), "[role=status]")
    assert "choose the site" in text_of(get(client, "/", 400, q="many"), "[role=alert]")


def test_without_any_pack_the_page_says_how_to_make_one(store: FolderStore, tmp_path: Path) -> None:
    with serving(store, tmp_path / "web") as client:
        tree = get(client, "/")
        assert text_of(tree, "h1") == "Nothing is indexed yet"
        assert text_of(tree, "pre").startswith("perennial index ")
        assert not tree.css("form")


def test_a_new_pack_is_searched_and_a_broken_one_is_not(
    client: httpx.Client, store: FolderStore, tmp_path: Path
) -> None:
    get(client, "/", q="many")
    newer = write_pack(tmp_path / "newer.sqlite", [page("/new", "New", "fresh")], generation=2)
    publish(store, newer, generation=2)
    assert "of 1 for" in text_of(get(client, "/", q="fresh"), "[role=status]")
    store.put(pack_key("site.example"), b"broken")
    assert "of 1 for" in text_of(get(client, "/", q="fresh"), "[role=status]")


def test_a_pack_that_cannot_be_read_is_answered_with_503(store: FolderStore, tmp_path: Path) -> None:
    publish(store, write_pack(tmp_path / "pack.sqlite", PAGES))
    store.put(pack_key("site.example"), b"broken")
    with serving(store, tmp_path / "web") as client:
        assert text_of(get(client, "/", 503, q="many"), "main h2") == "The index cannot be searched now"
        answer = client.get("/api/v1/search", params={"domain": "site.example", "q": "many"})
        assert (answer.status_code, answer.json()["status"]) == (503, 503)
        assert client.get("/healthz").text == "ok\n"


def test_without_its_store_the_process_lives_but_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3Server("").environment.items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    store = open_store("s3://bucket", endpoint_url=endpoint)
    with serving(store, tmp_path / "web") as client:
        assert (client.get("/readyz").status_code, client.get("/readyz").text) == (503, "store\n")
        assert text_of(get(client, "/", 503), "main h2") == "The index cannot be searched now"
        assert client.get("/healthz").status_code == 200
