"""The progress of a crawl: rate, honest estimate, and the end."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console

from app.cli import progress as shown
from app.cli.progress import Meter, watch
from app.crawl.frontier.values import Crawl, Progress

pytestmark = pytest.mark.unit

BEGUN = Progress(
    crawl=Crawl("c", "a.gov", "https://a.gov/", datetime.now(UTC), recorded=True),
    seen=1, open=1, waiting=0, done=0, dead=0, indexed=0, idle=0.0, delay=1.0,
)  # fmt: skip


def test_a_crawl_of_700_pages_at_one_page_a_second_says_so_as_soon_as_they_are_known() -> None:
    meter = Meter()
    meter.add(0.0, replace(BEGUN, seen=701, done=4, waiting=699))
    assert meter.text() == "1 of 701 known pages, 700 wait, one request in 1 s, at least 0:11:40 left"
    again = Meter(former=701)
    again.add(0.0, BEGUN)
    assert again.text().endswith("at least 0:11:41 left")


def test_the_estimate_follows_the_measured_rate_and_is_about_right_when_no_page_is_found_any_more() -> None:
    meter = Meter()
    for second in range(100):
        meter.add(float(second), replace(BEGUN, seen=200, done=second // 2, waiting=199 - second // 2))
    assert meter.text() == "49 of 200 known pages, 0.5 pages/s, 151 wait, one request in 1 s, about 0:05:02 left"


def test_a_host_without_a_delay_has_no_estimate_before_a_rate_is_measured() -> None:
    meter = Meter()
    meter.add(0.0, replace(BEGUN, delay=0.0))
    assert meter.text() == "0 of 1 known pages, 1 wait"
    meter.add(1.0, replace(BEGUN, state="paused"))
    assert meter.text().endswith("paused")


@pytest.mark.parametrize(("terminal", "text"), [(True, "2 of 2 known pages"), (False, "0 of 1 known pages")])
def test_the_watch_begins_with_the_next_crawl_and_ends_with_it(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, text: str
) -> None:
    monkeypatch.setattr(shown, "EVERY", 0.0)
    assert BEGUN.crawl is not None
    former = replace(BEGUN, crawl=replace(BEGUN.crawl, id="former"), open=0)
    done = replace(BEGUN, seen=2, done=2, open=0)
    looks = iter([former, former, BEGUN, replace(BEGUN, seen=2, waiting=1), done])
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=200)
    assert watch(lambda: next(looks), console=console, former="former") == done
    assert text in out.getvalue()


def test_a_line_follows_as_soon_as_the_pages_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "EVERY", 0.0)
    begun = replace(BEGUN, seen=701, done=3, waiting=699)
    looks = iter(
        [BEGUN, BEGUN, begun, replace(begun, done=4, waiting=698), replace(begun, done=703, open=0, waiting=0)]
    )
    out = io.StringIO()
    watch(lambda: next(looks), console=Console(file=out, width=200))
    assert out.getvalue().splitlines() == [
        "0 of 1 known pages, 1 wait, one request in 1 s, at least 0:00:01 left",
        "1 of 701 known pages, 700 wait, one request in 1 s, at least 0:11:40 left",
    ]
