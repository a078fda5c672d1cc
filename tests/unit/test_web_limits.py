"""Limits, readiness, metrics and views of the web application, and what it relies on in uvicorn."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import QueryParams
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.cluster.protocol import PackRoute, Routes
from app.search.contract import Alternate, Filters, Hit, SearchRequest, SearchResult, Subsection
from app.search.snippet import Snippet
from app.web import application, client_limits, server
from app.web.client_limits import ConcurrencyLimit, RateLimiter, client_key
from app.web.labels import label_of
from app.web.middleware import search_cost
from app.web.monitoring import MAX_INDEX_AGES, readiness, route_metrics
from app.web.opensearch import describe
from app.web.ops import filters
from app.web.ops.requests import acting, calling, reading
from app.web.pages import View, read_form, render, templates
from app.web.paths import LOGIN_PATH
from app.web.presenter import LAST_PAGE, PER_PAGE, SORTS, SearchForm, pack_view, results_view
from app.web.problems import detail_of
from tests.packs import BUILT_AT

pytestmark = pytest.mark.unit

ROUTE = PackRoute(
    domain="a.example", sha256="", generation=1, pages=1, built_at=BUILT_AT, size_mb=1, searchers=("one",), newest=1
)
ROUTES = Routes(orchestrator="o", ready=True, routes=(ROUTE,), searchers=())
UNPLACED = replace(ROUTE, domain="b.example", searchers=(), newest=0, missing=2)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("198.51.100.7", "198.51.100.8", False),
        ("198.51.100.7", "::ffff:198.51.100.7", True),
        ("2001:db8:0:1::7", "2001:db8:0:1:ffff::8", True),
        ("2001:db8:0:1::7", "2001:db8:0:2::7", False),
        ("unix:", "unix:", True),
    ],
)
def test_addresses_of_an_ipv6_network_share_a_quota(one: str, other: str, same: bool) -> None:
    assert (client_key(one) == client_key(other)) is same


def test_each_address_has_a_quota_that_counts_down_and_a_refused_request_costs_nothing() -> None:
    async def scenario() -> None:
        limiter = RateLimiter("10/hour")
        quotas = [await limiter.hit("198.51.100.7", cost) for cost in (8, 3, 2, 1)]
        assert [(each.granted, each.remaining) for each in quotas] == [(True, 2), (False, 2), (True, 0), (False, 0)]
        assert all(1 <= each.reset <= 3_600 for each in quotas)
        # A cost above the whole rate takes all of it, or such a search would never be granted.
        assert (await limiter.hit("198.51.100.8", 40)).granted

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "query", "cost"),
    [
        ("/", "", 0),
        ("/", "q=", 0),
        ("/", "q=+", 0),
        ("/", "domain=", 0),
        ("/", "domain=a.example", 1),
        ("/", "q=+&domain=a.example", 1),
        ("/", "&".join(f"domain={letter}.example" for letter in "abcdefghijklmnop"), 3),
        ("/", "q=words", 3),
        ("/", "%71=words", 3),
        ("/", "q=words&domain=a.example", 1),
        ("/", "q=words&domain=a.example&domain=b.example", 2),
        ("/api/v1/search", "q=words&domain=a.example,b.example,c.example,d.example", 4),
        ("/api/v1/search", "q=a+b+c+d+e+f+g+h&domain=a.example", 1),
        ("/api/v1/search", "q=a+b+c+d+e+f+g+h+i&domain=a.example", 2),
        ("/api/v1/search", f"q={'-'.join('word' for _ in range(31))}&domain=a.example,b.example", 8),
        ("/api/v1/search", f"q=word&domain={',' * 5_000}", 16),
        ("/api/v1/search", f"q={'a+' * 4_000}&domain=a.example", 16),
        ("/suggest", "q=words&domain=a.example", 1),
        ("/suggest", f"q={'a+' * 100}&domain={','.join('abcdefghijklmnop')}", 3),
        ("/api/v1/domains", "q=words", 0),
        ("/static/style.css", "q=words", 0),
    ],
)
def test_a_request_costs_by_its_sites_and_words(path: str, query: str, cost: int) -> None:
    assert search_cost(path, QueryParams(query), sites=3) == cost


@pytest.mark.parametrize(("sites", "cost"), [(0, 1), (1, 1), (16, 16), (17, 1)])
def test_a_search_of_all_sites_costs_as_many_as_are_searched(sites: int, cost: int) -> None:
    assert search_cost("/", QueryParams("q=words"), sites=sites) == cost


def test_addresses_are_removed_after_their_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_limits, "SWEEP", 0.05)

    async def scenario() -> None:
        limiter = RateLimiter("5/second")
        for number in range(50):
            await limiter.hit(f"10.0.0.{number}")
        storage = limiter._storage.storage
        assert len(storage) == 50
        # The next window still needs the count of the previous one.
        async with asyncio.timeout(20):
            while len(storage) > 3:
                await asyncio.sleep(0.1)
                await limiter.hit("10.0.1.1")

    asyncio.run(scenario())


def test_a_released_place_is_reused() -> None:
    async def entered() -> None:
        gate = ConcurrencyLimit(running=1, waiting=1, patience=0.05)
        async with gate.admit() as first:
            assert first
            async with gate.admit() as second:
                assert not second
            waiting = asyncio.create_task(gate.admit().__aenter__())
            await asyncio.sleep(0)
        assert await waiting

    asyncio.run(entered())


@pytest.mark.parametrize(
    ("routes", "packing", "ready", "why"),
    [
        (ROUTES, "", True, "ok"),
        (replace(ROUTES, routes=()), "", True, "ok"),
        (replace(ROUTES, ready=False), "", False, "the orchestrator has started and still collects reports of"),
        (replace(ROUTES, routes=(UNPLACED,)), "", False, "none of 1 packs is on a searcher"),
        (replace(ROUTES, routes=(ROUTE, UNPLACED)), "", True, "ok, but 1 of 2 packs are on no searcher"),
        (ROUTES, "no tick ran for 60 s", False, "no tick ran for 60 s"),
    ],
)
def test_a_process_is_ready_unless_no_pack_can_be_searched_or_no_site_is_packed(
    routes: Routes, packing: str, ready: bool, why: str
) -> None:
    is_ready, reason = readiness(routes, packing)
    assert (is_ready, reason.startswith(why)) == (ready, True)


def test_metrics_have_the_age_of_the_oldest_indexes_only() -> None:
    many = tuple(
        replace(ROUTE, domain=f"{n}.example", built_at=f"2026-11-21T10:{n // 60:02}:{n % 60:02}Z") for n in range(300)
    )
    routes = replace(ROUTES, routes=(*many, UNPLACED))
    metrics = {family.name: family for family in route_metrics(routes, now=1_800_000_000.0)}
    ages = {sample.labels["domain"]: sample.value for sample in metrics["perennial_index_age_seconds"].samples}
    assert len(ages) == MAX_INDEX_AGES
    assert min(ages.values()) == ages["99.example"]
    assert [sample.value for sample in metrics["perennial_packs"].samples] == [300, 1]
    assert metrics["perennial_copies_missing"].samples[0].value == 2


def test_names_in_an_opensearch_description_are_escaped_and_cut() -> None:
    document = describe("http://[::1]:8000", ["a&b.example", "x" * 60])
    assert "a&amp;b.example" in document
    assert "domain=a%26b.example&amp;domain=" in document
    assert "<ShortName>a&amp;b.example, xx…</ShortName>" in document


def test_uvicorns_protocol_has_what_the_bounded_protocol_overrides_and_reads() -> None:
    overridden = {name for name in vars(server.BoundedProtocol) if callable(getattr(server.BoundedProtocol, name))}
    own = {name for name in overridden if name.startswith("_")}
    assert overridden - own <= set(dir(HttpToolsProtocol))
    assert not own & set(dir(HttpToolsProtocol))
    source = inspect.getsource(HttpToolsProtocol)
    for attribute in ("self.cycle", "self.timeout_keep_alive_task", "self.transport", "self.loop"):
        assert f"{attribute}:" in source or f"{attribute} =" in source
    assert "self.response_complete = " in inspect.getsource(RequestResponseCycle)


def test_a_time_that_no_time_zone_can_hold_is_shown_as_it_is() -> None:
    pack = replace(ROUTE, built_at="0001-01-01T00:00:00+10:00")
    assert pack_view(pack, {}).built == pack.built_at


@pytest.mark.parametrize("value", ["yesterday", "0001-01-01T00:00:00+10:00", 1e300, float("nan"), -1e18])
def test_a_time_that_is_none_makes_no_page_of_operations_fail(value: str | float) -> None:
    assert templates.globals["macros"].when(value) == str(value)  # type: ignore[attr-defined]
    assert filters.built(str(value)) == str(value)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
requests = st.builds(
    SearchRequest,
    q=texts,
    domains=st.lists(
        st.sampled_from(["a.example", "b.example:8080", "[::1]", "xn--bcher-kva.example"]), unique=True
    ).map(tuple),
    offset=st.integers(1, LAST_PAGE).map(lambda page: (page - 1) * PER_PAGE),
    limit=st.just(PER_PAGE),
    sort=st.sampled_from(SORTS),
    filters=st.builds(Filters, section=texts, lang=texts, type=texts),
)


@given(requests.map(SearchForm))
def test_the_address_of_a_form_is_read_as_the_same_form(form: SearchForm) -> None:
    parameters = parse_qs(urlsplit(form.href).query, keep_blank_values=True)

    def one(name: str, default: str = "") -> str:
        (value,) = parameters.get(name, [default])
        return value

    read, error = read_form(
        q=one("q"),
        domains=parameters.get("domain", []),
        sort=one("sort", "relevance"),
        filters=Filters(section=one("section"), lang=one("lang"), type=one("type")),
        page=one("page", "1"),
    )
    assert error is None
    assert read == form


@given(page=st.integers(1, 1_000), total=st.integers(0, 10_000), reachable=st.integers(0, 10_000))
def test_first_current_and_last_page_are_always_shown_in_order(page: int, total: int, reachable: int) -> None:
    found = SearchResult(
        total=total,
        estimated=False,
        relaxed=False,
        hits=(),
        reachable=min(total, reachable),
        seconds=0.0,
        sources=(),
    )
    last = max(1, -(-min(total, reachable) // 10))
    page = min(page, last)
    view = results_view(found, SearchForm().with_text("x").with_page(page), {})
    numbers = [link.number for link in view.pages if link.number]
    assert numbers == sorted(set(numbers))
    assert len(view.pages) <= 9
    assert [link.number for link in view.pages if not link.href and link.number] == ([page] if last > 1 else [])
    assert {1, page, last} <= set(numbers) or last == 1
    assert (bool(view.previous), bool(view.next)) == (page > 1, page < last)


def test_languages_types_and_sections_have_labels() -> None:
    shown = [label_of("lang", tag) for tag in ("en", "de-at", "zh-hant-tw", "tlh")]
    assert shown == ["English", "German (de-AT)", "Chinese (zh-Hant-TW)", "tlh"]
    assert [label_of("type", kind) for kind in ("application/pdf", "x/y")] == ["PDF", "x/y"]
    assert label_of("section", "library") == "/library/"


def found(number: int, **fields: Any) -> Hit:
    url = f"https://site.example/{number}"
    texts: dict[str, Any] = {"url": url, "path": f"/{number}", "title": "A title", "snippet": Snippet("text")}
    return Hit(**texts | {"headings": (), "lang": "", "score": 1.0} | fields)


def rendered(*hits: Hit) -> str:
    result = SearchResult(
        total=len(hits), estimated=False, relaxed=False, hits=hits, reachable=len(hits), seconds=0.0, sources=()
    )
    form = SearchForm().with_text("words")
    return bytes(render(View(state="results", form=form, results=results_view(result, form, {}))).body).decode()


def test_a_hit_leads_to_its_headings_and_names_its_copies_without_letting_anything_through_unescaped() -> None:
    evil = '"><script>alert(1)</script>'
    hit = found(
        1,
        opens_at=Subsection(fragment=evil, heading=evil),
        subsections=(Subsection(fragment="b c", heading="Second"),),
        alternates=(
            Alternate(lang="fr", url="https://site.example/fr/"),
            Alternate(lang="de-AT", url="javascript:alert(1)"),
            Alternate(lang=evil, url="https://site.example/evil/"),
        ),
        copies=12,
        copy_urls=("https://site.example/copy", "javascript:alert(1)", f"https://site.example/{evil}"),
    )
    html = rendered(hit)
    assert "<script>alert" not in html
    assert "javascript:" not in html
    assert 'href="https://site.example/1#%22%3E%3Cscript%3Ealert(1)%3C/script%3E"' in html
    assert '<a href="https://site.example/1#b%20c" rel="noreferrer">Second</a>' in html
    assert "Also at 12 other addresses" in html
    assert '<a href="https://site.example/fr/" hreflang="fr" rel="noreferrer">French</a></p>' in html
    assert "and 10 more" in html
    without_link = rendered(replace(hit, url="data:text/html,x"))
    assert "data:text/html,x#" not in without_link


def test_a_date_that_all_hits_have_is_not_shown() -> None:
    assert "<time" not in rendered(found(1, modified="2026-11-21"), found(2, modified="2026-11-21"))
    assert rendered(found(1, modified="2026-11-21"), found(2)).count("21 November 2026") == 1
    assert "21 November 2026" in rendered(found(1, modified="2026-11-21"))


def test_the_text_of_a_refusal_names_the_field_also_of_an_entry_of_a_list() -> None:
    of_entry, of_form = {"loc": ("body", "events", 1), "msg": "no number"}, {"loc": (), "msg": "give one of both"}
    assert detail_of([of_entry, of_form]) == "events: no number; give one of both"


def dependencies(router: APIRouter) -> dict[tuple[str, str], set[Any]]:
    """Return what each address of a router requires first, by path and method."""
    routes = [route for route in router.routes if isinstance(route, APIRoute)]
    return {
        (route.path, method): {each.call for each in route.dependant.dependencies}
        for route in routes
        for method in route.methods or ()
    }


def test_every_address_of_operations_requires_an_operator_and_every_form_its_token() -> None:
    for module in application._OPERATIONS:
        assert all(calling in required for required in dependencies(module.subject.api).values())
        for (path, method), required in dependencies(module.subject.pages).items():
            assert path == LOGIN_PATH or (acting if method == "POST" else reading) in required, path
