"""The search page's addresses and numbers: laws that hold whatever is asked."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.search.contract import Filters, SearchResult
from app.web.names import label_of
from app.web.presenter import results_view
from app.web.search_form import LAST_PAGE, SORTS, SearchForm, read_asked

pytestmark = pytest.mark.unit

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
questions = st.builds(
    SearchForm,
    text=texts,
    domains=st.lists(
        st.sampled_from(["a.example", "b.example:8080", "[::1]", "xn--bcher-kva.example"]), unique=True
    ).map(tuple),
    sort=st.sampled_from(SORTS),
    filters=st.builds(Filters, section=texts, lang=texts, type=texts),
    page=st.integers(1, LAST_PAGE),
)


@given(questions)
def test_an_address_asks_again_for_what_it_was_made_of(asked: SearchForm) -> None:
    given_back = parse_qs(urlsplit(asked.href).query, keep_blank_values=True)

    def one(name: str, usual: str = "") -> str:
        (value,) = given_back.get(name, [usual])
        return value

    again, fault = read_asked(
        text=one("q"),
        domains=given_back.get("domain", []),
        sort=one("sort", "relevance"),
        filters=Filters(section=one("section"), lang=one("lang"), type=one("type")),
        page=one("page", "1"),
    )
    assert fault is None
    assert again == asked


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
    view = results_view(found, SearchForm(text="x", page=page))
    numbers = [link.number for link in view.pages if link.number]
    assert numbers == sorted(set(numbers))
    assert len(view.pages) <= 9
    assert [link.number for link in view.pages if not link.href and link.number] == ([page] if last > 1 else [])
    assert {1, page, last} <= set(numbers) or last == 1
    assert (bool(view.previous), bool(view.next)) == (page > 1, page < last)


def test_codes_are_shown_as_words() -> None:
    shown = [label_of("lang", tag) for tag in ("en", "de-at", "zh-hant-tw", "tlh")]
    assert shown == ["English", "German (de-AT)", "Chinese (zh-Hant-TW)", "tlh"]
    assert [label_of("type", kind) for kind in ("application/pdf", "x/y")] == ["PDF", "x/y"]
    assert label_of("section", "library") == "/library/"
