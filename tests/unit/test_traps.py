"""Traps: which URLs are counted together, and which texts are identical."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.crawl.traps import charges, error_hash, text_hash

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("path", "other", "together"),
    [
        ("/calendar/2026/11/", "/calendar/2031/5/", True),
        ("/calendar/2026-11", "/calendar/1999-1", True),
        ("/s/3fa9c0d1e2b4/a", "/s/999999999999/b", True),
        ("/x/550e8400-e29b-41d4-a716-446655440000/a", "/x/0e8400aa-e29b-41d4-a716-446655440001/a", True),
        ("/article/17", "/article/18", True),
        ("/3.11/library/re.html", "/3.12/library/os.html", True),
        ("/old/a/", "/old/b/", True),
        ("/a?visit=1", "/b?visit=2", True),
        ("/a?x=1", "/a?y=1", False),
        ("/article/17", "/articles", False),
        ("/calendar/2026/", "/news/2026/", False),
        ("/about/face", "/deadbeef/face", False),
        ("/en/a", "/de/a", False),
    ],
)
def test_urls_of_one_directory_pattern_are_counted_together(path: str, other: str, together: bool) -> None:
    assert (charges(f"https://x.gov{path}") == charges(f"https://x.gov{other}")) == together
    assert charges(f"https://x.gov{path}") != charges(f"https://y.gov{path}")


def test_a_url_without_a_query_has_no_budget_of_pages() -> None:
    kinds = {
        path: "".join(charges(f"https://x.gov{path}")[::9]) for path in ("/", "/a/b", "/a/1", "/a?x", "/a?x=1&y=2")
    }
    assert kinds == {"/": "i", "/a/b": "i", "/a/1": "i", "/a?x": "d", "/a?x=1&y=2": "dv"}


def test_texts_are_identical_but_for_digits_and_the_path_of_the_page() -> None:
    assert text_hash("May 2031", "No events. 1 2", "/c/5") == text_hash("May 1999", "No events. 31", "/c/6")
    assert text_hash("Oops", "Nothing at /old/a", "/old/a") == text_hash("Oops", "Nothing at /old/bcd", "/old/bcd")
    assert text_hash("May", "", "/c/5") != text_hash("June", "", "/c/6")
    assert text_hash("a", "b", "/") != text_hash("", "a b", "/")


def test_error_pages_are_equal_whether_they_repeat_the_path_or_its_last_part_and_a_page_without_text_is_none() -> None:
    assert error_hash("Oops", "No /old/amber", "/old/amber") == error_hash(
        "Oops", "No /perennial-probe-1", "/perennial-probe-1"
    )
    assert error_hash("Oops", "No amber here", "/old/amber/") == error_hash("Oops", "No cedar here", "/cedar")
    assert error_hash("Oops", "No amber", "/x") != error_hash("Oops", "No cedar", "/x")
    assert error_hash("Oops", " ", "/x") == ""


@given(st.text(), st.text(max_size=50))
def test_any_url_and_text_has_charges_and_a_hash(url: str, text: str) -> None:
    found = charges(url)
    assert len(found) in (9, 18)
    assert found[0] in "di"
    assert len(text_hash(text, url, text)) == 8
