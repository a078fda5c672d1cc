"""Finding in pack files of this machine, one or several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from app.cluster.client.local import LocalSearchClient
from app.errors import PackNotFound
from app.search.contract import SearchRequest
from app.storage.layout import Page
from tests.packs import page, write_pack

pytestmark = pytest.mark.integration


DOMAINS = ("ink.example", "tea.example")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    tea = [page(f"/{at}", f"Tea {at}", "green tea " * (at + 1)) for at in range(15)]
    ink = [page("/ink", "Ink", "blue ink and tea"), page("/pen", "Pen", "a pen")]
    return [
        write_pack(tmp_path / "tea.sqlite", tea, domain="tea.example", generation=7),
        write_pack(tmp_path / "ink.sqlite", ink, domain="ink.example"),
    ]


@pytest.fixture
def search_client(files: list[Path]) -> Iterator[LocalSearchClient]:
    with closing(LocalSearchClient(files)) as search_client:
        yield search_client


def ask(q: str, *domains: str, limit: int = 10) -> SearchRequest:
    return SearchRequest(q=q, domains=domains, limit=limit)


def test_one_pack_or_several_are_searched(search_client: LocalSearchClient) -> None:
    alone = search_client.search(ask("tea", "tea.example"))
    assert (alone.total, len(alone.hits), {hit.domain for hit in alone.hits}) == (15, 10, {"tea.example"})
    assert [info.domain for info in alone.sources] == ["tea.example"]
    both = search_client.search(ask("tea", "Ink.example", "tea.example", limit=16))
    assert both.total == both.reachable == 16
    assert {hit.domain for hit in both.hits} == {"tea.example", "ink.example"}
    assert search_client.search(ask("pen", *DOMAINS)).total == 1


def test_pages_named_by_the_query_come_before_pages_that_mention_it(tmp_path: Path) -> None:
    small = [page("/json", "json", "An encoder and a decoder."), *(page(f"/{at}", "Other", "words") for at in range(9))]
    often = (page(f"/often{at}", "Elsewhere", "json " * 20) for at in range(20))
    large = [page("/json", "json - data", "A module."), *often, *(page(f"/{at}", "Any", "text") for at in range(300))]
    packs = [
        write_pack(tmp_path / "small.sqlite", [_of("small.example", each) for each in small], domain="small.example"),
        write_pack(tmp_path / "large.sqlite", [_of("large.example", each) for each in large], domain="large.example"),
    ]
    with closing(LocalSearchClient(packs)) as search_client:
        found = search_client.search(ask("json", "large.example", "small.example"))
    assert {hit.url for hit in found.hits[:2]} == {"https://small.example/json", "https://large.example/json"}


def _of(domain: str, each: Page) -> Page:
    return replace(
        each, domain=domain, url=f"https://{domain}{each.path}", canonical_key=f"https://{domain}{each.path}"
    )


def test_a_page_named_by_the_query_comes_before_a_phrase_match_of_another_site(tmp_path: Path) -> None:
    loose = [page(f"/{at}", f"Glass {at}", "a window to look through, and what functions it has") for at in range(9)]
    mentioned = [*loose, page("/old", "Old", "it has no window functions")]
    named = [
        *loose,
        page("/fn", "3.5. Window Functions", "rows of a window"),
        page("/fn/2", "Rows", "a window function"),
    ]
    packs = [
        write_pack(tmp_path / f"{name}.sqlite", pages, domain=f"{name}.example")
        for name, pages in (("a", mentioned), ("b", named))
    ]
    with closing(LocalSearchClient(packs)) as search_client:
        first, second, *_ = search_client.search(ask("window functions", "a.example", "b.example")).hits
    assert (first.path, second.path) == ("/fn", "/old")


def test_routes_describe_the_files(search_client: LocalSearchClient) -> None:
    routes = search_client.routes()
    assert routes.ready
    assert [(each.domain, each.generation, each.pages) for each in routes.routes] == [
        ("tea.example", 7, 15),
        ("ink.example", 1, 2),
    ]
    assert {each.searchers for each in routes.routes} == {(routes.searchers[0].searcher_id,)}


def test_of_two_packs_of_one_domain_the_later_one_is_searched_and_both_are_closed(
    files: list[Path], tmp_path: Path
) -> None:
    later = write_pack(tmp_path / "later.sqlite", [page("/oolong", "Oolong", "tea")], domain="tea.example")
    # From Python 3.13 on, a connection that is not closed is a warning.
    with closing(LocalSearchClient([*files, later])) as search_client:
        assert [hit.path for hit in search_client.search(ask("tea", "tea.example")).hits] == ["/oolong"]


def test_a_missing_domain_is_an_error(search_client: LocalSearchClient) -> None:
    with pytest.raises(PackNotFound, match=r"never\.example"):
        search_client.search(ask("tea", "tea.example", "never.example"))
