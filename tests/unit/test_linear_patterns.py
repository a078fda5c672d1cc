"""Patterns that read texts from outside take time in proportion to the text, whatever it is."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from app.crawl.parse.documents import _LATE_CHARSET
from app.crawl.parse.extract.contract import _ATTRIBUTE
from app.crawl.traps import charges
from app.search.matcher import Matcher
from app.search.snippet import first_paragraph
from app.text.lines import OTHER
from app.text.titles import SEPARATOR, parts_of_title
from app.web.languages import _RANGE

pytestmark = pytest.mark.unit

#: Seconds of CPU time that can be compared.
MEASURABLE = 0.005
#: How much more four times the text may take; in quadratic time it takes sixteen times as much.
MOST = 9

READERS: dict[str, Callable[[int], object]] = {
    "white space in a tag": lambda size: list(_ATTRIBUTE.finditer(" /" * size)),
    "attributes of one letter": lambda size: list(_ATTRIBUTE.finditer(f"/ a{'= ' * size}")),
    "tags without an end": lambda size: _LATE_CHARSET.search(b"<meta " * size),
    "identifiers without digits": lambda size: charges(f"https://x.gov/{'-a' * size}/x"),
    "identifiers with a late digit": lambda size: charges(f"https://x.gov/{('-a' * 30 + '1g') * (size // 60)}/x"),
    "white space in a title": lambda size: SEPARATOR.split(" " * size),
    "a heading of one letter that is in every word": lambda size: first_paragraph(
        f"{'x' * (size // 8)}{OTHER}" * 100, "x", Matcher(())
    ),
    "lines that all have a heading": lambda size: first_paragraph(
        f"x{'.' * 500}{OTHER}" * (4 * size), "x", Matcher(())
    ),
    "white space in the parts of a title": lambda size: parts_of_title(" " * size),
    "white space in a list of languages": lambda size: _RANGE.fullmatch(f"en{' ' * size}x"),
}


def cpu_time(read: Callable[[int], object], size: int) -> float:
    """Return the least CPU time of three runs."""
    times = []
    for _ in range(3):
        began = time.process_time()
        read(size)
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.parametrize("name", READERS)
def test_four_times_the_text_takes_about_four_times_as_long(name: str) -> None:
    size = 1_000
    while (once := cpu_time(READERS[name], size)) < MEASURABLE:
        size *= 2
    assert cpu_time(READERS[name], 4 * size) / once < MOST
