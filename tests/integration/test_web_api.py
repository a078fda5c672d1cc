"""The API of the web over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.storage.folder import FolderStore
from app.web.application import create_app
from app.web.site import StoreFinder
from tests.packs import page, publish, write_pack
from tests.support.web import served

pytestmark = pytest.mark.integration

PAGES = [
    *(page(f"/many/{number}", f"Many {number}", "One of many pages", lang="en") for number in range(35)),
    page("/évil?a=1&b=2", "<script>alert(1)</script>", "<b>hostile</b> & 'quoted' \"body\"", lang='x" onload="'),
]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    store = FolderStore(tmp_path / "store")
    publish(store, write_pack(tmp_path / "pack.sqlite", PAGES), pages=len(PAGES))
    with served(create_app(StoreFinder(store, tmp_path / "web"))) as client:
        yield client


def test_the_api_answers_with_plain_text_ranges_and_the_next_offset(client: httpx.Client) -> None:
    found = client.get("/api/v1/search", params={"domain": "site.example", "q": "hostile"}).json()
    (hit,) = found["hits"]
    assert hit["title"] == "<script>alert(1)</script>"
    assert [hit["snippet"][start:end] for start, end in hit["marks"]] == ["hostile"]
    assert (found["total"], found["next_offset"], found["sources"][0]["pages"]) == (1, None, len(PAGES))
    many = {"domain": "https://Site.Example/", "q": "many", "limit": "20"}
    first = client.get("/api/v1/search", params=many).json()
    assert first["next_offset"] == 20
    last = client.get(first["next"]).json()
    assert (len(last["hits"]), last["next_offset"]) == (15, None)


@pytest.mark.parametrize(
    ("params", "status", "detail"),
    [
        ({"q": "x"}, 400, "domain: Field required"),
        ({"domain": "site.example", "q": "?!"}, 400, "there is no letter or digit"),
        ({"domain": "site.example", "q": "x", "limit": "51"}, 400, "limit: Input should be less than or equal to 50"),
        ({"domain": "a b", "q": "x"}, 400, "URL 'https://a b'"),
        ({"domain": "never.example", "q": "x"}, 404, "never.example has no pack"),
    ],
)
def test_api_errors_are_problems(client: httpx.Client, params: dict[str, str], status: int, detail: str) -> None:
    answer = client.get("/api/v1/search", params=params)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert detail in answer.json()["detail"]
