"""The search page's addresses and numbers: laws that hold for any request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.search.contract import Filters, Hit, SearchRequest, SearchResult, Subsection
from app.search.snippet import Snippet
from app.web.labels import label_of
from app.web.pages import View, read_form, render
from app.web.presenter import LAST_PAGE, PER_PAGE, SORTS, SearchForm, results_view

pytestmark = pytest.mark.unit

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
        capped=False,
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
        total=len(hits), capped=False, relaxed=False, hits=hits, reachable=len(hits), seconds=0.0, sources=()
    )
    form = SearchForm().with_text("words")
    return bytes(render(View(state="results", form=form, results=results_view(result, form, {}))).body).decode()


def test_a_hit_leads_to_its_headings_and_names_its_copies_without_letting_anything_through_unescaped() -> None:
    evil = '"><script>alert(1)</script>'
    hit = found(
        1,
        opens_at=Subsection(fragment=evil, heading=evil),
        subsections=(Subsection(fragment="b c", heading="Second"),),
        copies=12,
        copy_urls=("https://site.example/copy", "javascript:alert(1)", f"https://site.example/{evil}"),
    )
    html = rendered(hit)
    assert "<script>alert" not in html
    assert "javascript:" not in html
    assert 'href="https://site.example/1#%22%3E%3Cscript%3Ealert(1)%3C/script%3E"' in html
    assert '<a href="https://site.example/1#b%20c" rel="noreferrer">Second</a>' in html
    assert "Also at 12 other addresses" in html
    assert "and 10 more" in html
    without_link = rendered(replace(hit, url="data:text/html,x"))
    assert "data:text/html,x#" not in without_link


def test_a_date_that_all_hits_have_is_not_shown() -> None:
    assert "<time" not in rendered(found(1, modified="2026-11-21"), found(2, modified="2026-11-21"))
    assert rendered(found(1, modified="2026-11-21"), found(2)).count("21 November 2026") == 1
    assert "21 November 2026" in rendered(found(1, modified="2026-11-21"))
