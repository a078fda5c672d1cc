"""The web application over real HTTP: what every answer carries, and packs that change, break or cannot be had."""

from __future__ import annotations

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
        assert text_of(get(client, "/", 503, q="many"), "main h2") == "The index of site.example cannot be read"
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
        assert text_of(get(client, "/", 503), "main h2") == "The index cannot be read"
        assert client.get("/healthz").status_code == 200
