"""The name of a site, as the titles of its pages have it, and titles without it."""

from __future__ import annotations

import pytest

from app.text.titles import site_name, without_site_name

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("ends", "name"),
    [
        ("{} | Site", "Site"),
        ("Docs · {} | Site", "Site"),
        ("Docs - {}", "Docs"),
        ("{}", ""),
    ],
)
def test_the_name_of_a_site_is_the_part_of_most_titles_and_of_two_the_last(ends: str, name: str) -> None:
    titles = [ends.format(f"Page {number}") for number in range(6)]
    assert site_name(titles) == site_name(reversed(titles)) == name
    assert site_name(titles[:4]) == ""


def test_the_name_is_left_out_at_either_end() -> None:
    assert without_site_name("Docs · Page | Site", "Site") == "Docs · Page"
    assert without_site_name("Site - Page", "Site") == "Page"
    assert without_site_name("Page of the Site", "Site") == "Page of the Site"
