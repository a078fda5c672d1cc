"""Search reports: what is counted of searches and clicks, what is never kept, and how counts come together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.main import cli
from app.errors import StoreError
from app.sites.search_counter import MAX_COUNTED, THRESHOLD, SearchCounter, kept_query, kept_url
from app.sites.search_reports import (
    MAX_ENTRIES,
    RETENTION,
    SearchReport,
    add_to_report,
    delete_old_reports,
    read_reports,
    report_key,
    today,
    total,
)
from app.sites.site import Site
from app.sites.stored import add_site, site_key
from app.storage.folder import FolderStore
from app.storage.store import ObjectStore, StoredObject
from tests.support.command import as_process_with
from tests.support.stores import folder_store

pytestmark = pytest.mark.unit

DOMAIN = "site.example"


class AwayStore(FolderStore):
    """Cannot be read while it is away."""

    away = True

    def get(self, key: str) -> StoredObject:
        if self.away:
            raise StoreError("away")
        return super().get(key)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return folder_store(tmp_path / "store")


def report(store: ObjectStore, domain: str = DOMAIN) -> SearchReport:
    return total(found for _, found in read_reports(store, domain, since=date.min))


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("  Opening   HOURS? ", "opening hours"),
        ("Café -closed", "cafe closed"),
        ("python 3.11.4", "python 3 11 4"),
        ("jane.doe@mail.example", ""),
        ("jane.doe\uff20mail.example", ""),
        ("jane%40mail.example", ""),
        ("call 0171 234 56 78", ""),
        ("+49-171/234", ""),
        ("1.2.3.4.5.6", ""),
        ("12\u200b34\u200b56", ""),
        ("\u0661\u0662\u0663\u0664\u0665\u0666", ""),
        ("token a1b2c3d4e5f6", ""),
        ("one two three four five six seven eight nine", ""),
        ("x" * 101, ""),
        ("???", ""),
    ],
)
def test_queries_are_folded_and_those_that_may_tell_of_a_person_are_not_kept(typed: str, kept: str) -> None:
    assert kept_query(typed) == kept


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://site.example/2024/01/15/a#b", "https://site.example/2024/01/15/a"),
        ("https://docs.site.example/?page=2", "https://docs.site.example/?page=2"),
        ("https://other.example/", ""),
        ("https://site.example/?phone=0171-2345678", ""),
        ("https://site.example/?mail=jane%40mail.example", ""),
        ("https://jane:secret@site.example/", ""),
        ("javascript:alert(1)", ""),
        ("https://site.example/" + "a" * 2_000, ""),
    ],
)
def test_only_urls_of_the_site_are_kept(url: str, kept: str) -> None:
    assert kept_url(DOMAIN, url) == kept


def test_queries_and_clicks_are_kept_once_they_were_seen_often_enough_on_a_day(store: ObjectStore) -> None:
    add_site(store, Site.of(DOMAIN, {"search_report": True}))
    counter = SearchCounter(store, lambda: {DOMAIN})
    for number in range(THRESHOLD + 2):
        counter.count_search([DOMAIN, "off.example"], "Zebra", found=False)
        counter.count_search([DOMAIN], "amber", found=True)
        counter.count_click(DOMAIN, "amber", "https://site.example/amber")
        if number < THRESHOLD - 1:
            counter.count_search([DOMAIN], "rare", found=False)
            counter.count_click(DOMAIN, "rare", "https://site.example/rare")
        counter.count_click("off.example", "amber", "https://off.example/")
        counter.add_to_reports()
    assert report(store) == SearchReport(
        searches=3 * THRESHOLD + 3,
        without_results=2 * THRESHOLD + 1,
        clicks=2 * THRESHOLD + 1,
        queries=Counter({"zebra": THRESHOLD + 2}),
        clicked=Counter({("amber", "https://site.example/amber"): THRESHOLD + 2}),
    )
    assert not report(store, "off.example")
    assert "rare" not in store.get(report_key(DOMAIN, today())).data.decode()


def test_counts_wait_in_bounded_memory_while_the_store_fails(store: ObjectStore, tmp_path: Path) -> None:
    failing = AwayStore(tmp_path / "store")
    add_site(store, Site.of(DOMAIN, {"search_report": True}))
    counter = SearchCounter(failing, lambda: {DOMAIN})
    letters = str.maketrans("0123456789", "ghijklmnop")
    for number in range(MAX_COUNTED + 10):
        counter.count_search([DOMAIN], f"word{number:x}".translate(letters), found=False)
    for _ in range(THRESHOLD):
        counter.count_search([DOMAIN], "wordg", found=False)
        counter.count_search([DOMAIN], "latecomer", found=False)
    counter.add_to_reports()
    failing.away = False
    counter.add_to_reports()
    counter.add_to_reports()
    found = report(store)
    assert found.searches == MAX_COUNTED + 10 + 2 * THRESHOLD
    assert found.queries == {"wordg": THRESHOLD + 1}


def test_a_site_that_was_removed_since_it_was_counted_gets_no_report_again(store: ObjectStore) -> None:
    counter = SearchCounter(store, lambda: {DOMAIN, "other.example"})
    for domain in (DOMAIN, "other.example"):
        add_site(store, Site.of(domain, {"search_report": True}))
    counter.count_search([DOMAIN, "other.example"], "amber", found=True)
    store.delete(site_key(DOMAIN))
    counter.add_to_reports()
    assert (report(store).searches, report(store, "other.example").searches) == (0, 1)


def test_a_report_is_bounded_and_deleted_after_its_retention(store: ObjectStore) -> None:
    queries = Counter({f"q{number}": number for number in range(1, MAX_ENTRIES + 11)})
    add_to_report(store, DOMAIN, today(), SearchReport(searches=1, queries=queries))
    assert len(report(store).queries) == MAX_ENTRIES
    assert "q1" not in report(store).queries
    for age in (RETENTION, RETENTION + 1):
        add_to_report(store, DOMAIN, today() - timedelta(days=age), SearchReport(searches=1))
    assert delete_old_reports(store, today=today()) == 1
    assert report(store).searches == 2


def test_a_damaged_report_is_left_out_named_and_replaced(store: ObjectStore, caplog: pytest.LogCaptureFixture) -> None:
    store.put(report_key(DOMAIN, today()), b'{"version": 1, "searches": "x"}')
    assert report(store).searches == 0
    assert f"{report_key(DOMAIN, today())}: not a search report" in caplog.text
    add_to_report(store, DOMAIN, today(), SearchReport(searches=2))
    assert report(store).searches == 2


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[None]:
    with as_process_with({"PERENNIAL_DATA_DIR": str(tmp_path), "STORE_URL": (tmp_path / "store").as_uri()}):
        yield


def test_the_command_prints_tables_and_json(store: ObjectStore, settings: None) -> None:
    run = CliRunner()
    nothing = run.invoke(cli, ["search-report", DOMAIN])
    assert nothing.exit_code == 1
    assert "perennial site set site.example search_report=true" in nothing.stderr
    add_site(store, Site.of(DOMAIN, {"search_report": "true"}))
    clicked = Counter({("amber", "https://site.example/amber"): 6})
    for days in (0, 40):
        counts = SearchReport(9, 7, 6, Counter({"zebra\x1b[31m": 7}), clicked)
        add_to_report(store, DOMAIN, today() - timedelta(days=days), counts)
    printed = run.invoke(cli, ["search-report", "https://Site.example/"])
    assert printed.exit_code == 0
    assert "9 searches, 7 without results, 6 clicks" in printed.stdout
    assert "\x1b" not in printed.stdout
    assert "      6  amber  https://site.example/amber\n" in printed.stdout
    found = json.loads(run.invoke(cli, ["search-report", DOMAIN, "--json"]).stdout)
    assert (found["searches"], found["days"], found["counted"]) == (9, 1, True)
    assert found["clicked"] == [{"query": "amber", "url": "https://site.example/amber", "clicks": 6}]
