"""The rows of generated sites and of articles: their pages, tables, aims and plots."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import requests

from app.crawl.traps import charges, text_hash
from benchmarks import extract, fairness, growth, latency, polite
from benchmarks.errors import BenchmarkError
from benchmarks.extract import OURS, PEER, Quality, quality
from benchmarks.fairness import FairnessRun
from benchmarks.figures import MeasuredRow
from benchmarks.generated_sites import SiteForm, number_of, path_of, serve_generated
from benchmarks.growth import GrowthRun
from benchmarks.latency import LatencyRun
from benchmarks.plots import Axis, Plot, write_plots
from benchmarks.polite import PoliteRun
from benchmarks.report import page, section
from benchmarks.stored_results import load_sections, store_section
from benchmarks.system import GROUPS, cpu_ms

pytestmark = pytest.mark.unit

CPU = dict.fromkeys(GROUPS, 2.0)
PLOT = Plot("hops", "Hops & pages", "pages", "hops a page", {"hops": [(100, 1.0), (10_000, 1.5)]}, aim=2.0)


def links(form: SiteForm, number: int) -> list[int]:
    return list(map(number_of, re.findall(r'href="([^"]*)"', form.page(number).decode())))


def test_the_start_page_of_a_generated_site_leads_to_all_its_pages() -> None:
    form = SiteForm(pages=123, links=7)
    found, order = {0}, [0]
    while order:
        fresh = set(links(form, order.pop())) - found
        found |= fresh
        order += fresh
    assert found == set(range(123))


def test_no_budget_of_a_crawl_stops_at_a_generated_site() -> None:
    form, pages = SiteForm(pages=2_000), range(0, 2_000, 97)
    assert {charges(f"https://site.example{path_of(each)}")[0] for each in pages} == {"i"}
    texts = {text_hash("", re.sub("<[^>]*>", " ", form.page(each).decode()), path_of(each)) for each in pages}
    assert len(texts) == len(pages)


def test_a_served_site_counts_the_requests_for_its_pages_and_notes_the_first() -> None:
    with serve_generated([SiteForm(20), SiteForm(5)]) as (site, other), requests.Session() as session:
        assert path_of(1) in session.get(site.url).text
        assert session.get(f"{site.url[:-1]}{path_of(7)}").headers["Content-Type"].startswith("text/html")
        missing = (path_of(20), "/river-stone", "/robots.txt")
        assert [session.get(f"{site.url[:-1]}{path}").status_code for path in missing] == [404] * 3
    assert (site.requests, list(site.first), other.requests) == (2, [0, 7], 0)
    assert site.port != other.port


def test_cpu_time_is_that_of_the_measured_groups_by_page() -> None:
    assert cpu_ms({"worker": 1.0, "worker children": 2.0, "own": 9.0}, 1_000) == {
        "worker: parent": 1.0,
        "worker: pool": 2.0,
    }


def aims(row: MeasuredRow) -> list[tuple[str, ...]]:
    return [aim[1:] for aim in row.aims]


def test_hops_and_rate_of_polite_hosts_have_aims() -> None:
    runs = [
        PoliteRun(size, pages=1_600, seconds=50, hops=hops, deliveries=hops, cpu=CPU, others=0.1)
        for size, hops in ((100, 1.0), (1_000, 2.5), (10_000, 3.0))
    ]
    row = polite.shown(runs)
    assert aims(row) == [
        ("<= 2", "2.50", "not reached: 1.25 times it"),
        ("<= 4", "3.00", "reached"),
        (">= 80%", "80%", "reached"),
    ]
    assert ("CPU ms a page, all", "12.00", "12.00", "12.00") in row.tables[0].rows


def test_the_first_page_of_a_new_site_has_an_aim_from_ten_thousand_waiting_pages_on() -> None:
    runs = [
        FairnessRun(size, size + 7, delay, first_page=size / 10_000, first_linked_page=3, share=0.5, others=0.0)
        for delay in (0.0, 1.0)
        for size in (1_000, 10_000, 100_000)
    ]
    row = fairness.shown(runs)
    assert aims(row) == [("<= 2", "1.00", "reached"), ("<= 2", "10.00", "not reached: 5.00 times it")] * 2
    assert row.tables[0].rows[1] == ("10,007 waiting, no delay", "1.00", "3.00", "50%")
    assert row.plots[0].lines["start, delay 1 s"][-1] == (100_007, 10.0)


def test_slow_hosts_have_an_aim_for_their_share_of_the_possible_rate() -> None:
    row = latency.shown([LatencyRun("defaults", 20.0, CPU, 0.0), LatencyRun("many", 225.0, CPU, 0.0)])
    assert aims(row) == [(">= 80%", "8%", "not reached: 10% of it"), (">= 80%", "90%", "reached")]


def test_growth_compares_with_the_smallest_site_and_judges_the_largest() -> None:
    small = GrowthRun(200, 2.0, CPU, during=900, after=500, others=0.0)
    large = GrowthRun(20_000, 200.0, {**CPU, "Redis": 8.0}, during=250, after=150, others=0.0)
    row = growth.shown([small, large])
    assert aims(row) == [("<= 300", "250", "reached"), ("<= 100", "150", "not reached: 1.50 times it")]
    assert ("the same, times that of the smallest site", "1.00", "1.50") in row.tables[0].rows


@pytest.mark.parametrize(
    ("found", "expected", "precision", "recall"),
    [
        ("a b c d e", "a b c d e", 1, 1),
        ("a b c d e f", "a b c d e", 2 / 3, 1),
        ("a b c d", "a b c d e", 1, 1 / 2),
        ("\u6771\u4eac\u5730\u65b9x", "x \u6771\u4eac\u5730\u65b9", 1 / 2, 1 / 2),
        ("a", "a", 1, 1),
    ],
)
def test_the_text_of_an_article_is_judged_by_groups_of_four_words(
    found: str, expected: str, precision: float, recall: float
) -> None:
    judged = quality([(found, expected)])
    assert (judged.precision, judged.recall) == pytest.approx((precision, recall))


def test_a_long_article_counts_as_much_as_a_short_one() -> None:
    long = " ".join(map(str, range(1_000)))
    judged = quality([(long, long), ("a b c d", "e f g h")])
    assert (judged.precision, judged.recall, judged.f1) == pytest.approx((2 / 3, 2 / 3, 2 / 3))


def test_the_text_of_articles_has_aims_on_the_pages_held_out() -> None:
    parts = {"tuning": Quality(1, 1), "held out": Quality(0.85, 0.98)}
    row = extract.shown({OURS: parts, PEER: parts}, {OURS: [3.0, 2.0], PEER: [2.0, 2.0]})
    assert aims(row) == [("0.90", "0.910", "reached"), ("0.97", "0.980", "reached"), ("<= 2", "2.0", "reached")]
    assert row.tables[0].rows[0][-1] == "1.25 (1.00-1.50)"


def test_a_download_of_articles_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract, "_PACKAGES", {"none-1": ("false",)})
    with pytest.raises(BenchmarkError, match="`false` failed"):
        extract.load(tmp_path)
    monkeypatch.setattr(extract, "_PACKAGES", {"none-1": ("no-such-program",)})
    with pytest.raises(BenchmarkError, match="`no-such-program` is missing"):
        extract.load(tmp_path)


def test_a_row_is_stored_and_shown_with_its_plots_and_the_share_of_other_programs(tmp_path: Path) -> None:
    measured = MeasuredRow((), (), (PLOT,), others=0.3)
    shown = section("polite", measured, date="today", machine={}, versions={})
    assert "took 30% of the machine" in shown.warnings[0]
    store_section(tmp_path / "results", shown)
    (loaded,) = load_sections(tmp_path / "results", ["polite"])
    assert loaded.plots[0].svg() == PLOT.svg()
    assert "![Hops & pages](plots/hops.svg)" in page([loaded])


def test_a_plot_is_svg_with_titles_labels_points_and_the_aim(tmp_path: Path) -> None:
    write_plots(tmp_path / "plots", [PLOT])
    root = ElementTree.fromstring((tmp_path / "plots" / "hops.svg").read_text())
    texts = [element.text for element in root.iter() if element.tag.endswith("}text")]
    assert {"Hops & pages", "pages", "hops a page", "hops", "aim: 2", "100", "1,000", "10,000"} <= set(texts)
    dots = [element for element in root.iter() if element.tag.endswith("}circle")]
    assert len(dots) == 2
    assert float(dots[0].attrib["cy"]) > float(dots[1].attrib["cy"])


@pytest.mark.parametrize(
    ("low", "high", "log", "ticks"),
    [
        (100, 10_000, True, [100, 1_000, 10_000]),
        (200, 900, True, [200, 500]),
        (0, 2.2, False, [0, 0.5, 1, 1.5, 2]),
        (0, 330, False, [0, 100, 200, 300]),
    ],
)
def test_the_ticks_of_an_axis_are_round(low: float, high: float, log: bool, ticks: list[float]) -> None:
    assert Axis(low, high, 0, 100, log=log).ticks() == ticks
