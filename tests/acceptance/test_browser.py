"""The search page and the search box in a real browser: with a mouse, by keyboard, on a phone, without script."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from app.broker.errors import RequestTimedOut
from app.search.contract import BestBet
from app.sites.search_counter import SearchCounter
from app.sites.search_reports import read_reports, total
from app.sites.site import Site as CrawledSite
from app.sites.stored import add_site
from app.web.application import create_app
from tests.packs import page, write_pack
from tests.servers.site import Site
from tests.servers.site import page as html_page
from tests.support import browser as browsers
from tests.support.browser import DESKTOP, PHONE, Tab
from tests.support.scripted import ScriptedSearchClient
from tests.support.stores import folder_store
from tests.support.waiting import eventually
from tests.support.web import served

#: The first test may have to wait for the browser's installation.
pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

SCRIPT = "<script>window.owned = 1</script>"
ATTACK = f'"><img src=x onerror="window.owned = 1">{SCRIPT}'
LONG = "Rindfleischetikettierungsüberwachungsaufgabenübertragungsgesetz" * 4
OpenTab = Callable[..., Tab]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site({"/guide/1": html_page("Streams, part 1", "The page itself.")}) as running:
        yield running


@pytest.fixture(scope="module")
def application(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ScriptedSearchClient]]:
    folder = tmp_path_factory.mktemp("packs")
    at = partial(_page_at, site)
    documents = [
        *(at(f"/guide/{n}", f"Streams, part {n}", "Streams carry bytes. " * 9) for n in range(1, 15)),
        *(at(f"/library/{n}", f"Module {n}", "A library of streams.", modified=f"2026-01-{n:02}") for n in range(1, 9)),
        at("/de/1", "Ströme", "Streams heißen auf Deutsch Ströme.", lang="de"),
        at("/arabic/1", "تيارات streams", "تيارات البيانات streams هي تدفق من البايتات.", lang="ar"),
        at(f"/{ATTACK}", f"Hostile {ATTACK}", f"streams {ATTACK}", modified="2020-02-02"),
        at(f"/{'long' * 60}", LONG, f"streams {LONG}"),
    ]
    packs = [
        write_pack(folder / "one.sqlite", documents, domain=site.domain),
        write_pack(folder / "two.sqlite", [page("/x", "Elsewhere", "Streams of another site")], domain="two.example"),
    ]
    finder = ScriptedSearchClient(packs)
    with served(create_app(finder, rate_limit="100000/minute")) as client:
        yield str(client.base_url), finder


@pytest.fixture
def open_tab(browser: Browser, application: tuple[str, ScriptedSearchClient]) -> Iterator[OpenTab]:
    """Open tabs; at the end nothing may have gone wrong in any of them."""
    base, finder = application
    tabs: list[Tab] = []

    with ExitStack() as opened:

        def open_one(path: str = "/", **options: Any) -> Tab:
            tabs.append(opened.enter_context(browsers.tab(browser, base, **options)))
            tabs[-1].open(path)
            return tabs[-1]

        yield open_one
    finder.behave()
    assert [fault for each in tabs for fault in each.faults] == []


def _page_at(site: Site, path: str, title: str, body: str, **fields: str) -> Any:
    return page(path, title, body, url=site.at(path), **{"lang": "en", "content_type": "text/html"} | fields)


def test_a_person_searches_turns_the_page_and_follows_a_link(open_tab: OpenTab, site: Site) -> None:
    tab = open_tab().page
    expect(tab.get_by_label("Search", exact=True)).to_be_focused()
    tab.keyboard.type("streams")
    tab.get_by_role("button", name="Search", exact=True).click()
    status = tab.locator(".count")
    expect(status).to_have_text(re.compile(r"Showing 1–10 of 27 for “streams”"))
    tab.get_by_role("link", name="Next").click()
    expect(status).to_have_text(re.compile(r"Showing 11–20 of 27"))
    expect(tab.locator("[aria-current=page]")).to_have_text("Page 2")
    tab.go_back()
    tab.goto(f"{tab.url}&domain={site.domain}&section=guide")
    tab.get_by_role("link", name="Streams, part 1", exact=True).click()
    expect(tab).to_have_url(site.at("/guide/1"))
    expect(tab.get_by_role("heading")).to_have_text("Streams, part 1")
    assert "referer" not in next(each for each in site.requests if each.path == "/guide/1").headers


def test_everything_is_reached_by_keyboard(open_tab: OpenTab) -> None:
    tab = open_tab("/?q=streams")
    keys = tab.page.keyboard
    keys.press("Tab")
    assert tab.focused() == "Skip to the results"
    keys.press("Enter")
    reached = []
    for _ in range(3):
        keys.press("Tab")
        reached.append(tab.focused())
    assert reached[0] == "Date"
    assert reached[1:] == tab.page.locator("ol.hits a").all_inner_texts()[:2]
    keys.press("Enter")
    tab.page.wait_for_url("**/guide/*")


def test_the_slash_key_focuses_the_search_box_unless_a_person_types_or_turned_it_off(open_tab: OpenTab) -> None:
    opened = open_tab("/?q=streams")
    tab = opened.page
    box, hint = tab.get_by_label("Search", exact=True), tab.locator(".key")
    expect(hint).to_be_visible()
    tab.keyboard.press("Control+/")
    expect(box).not_to_be_focused()
    tab.keyboard.press("/")
    expect(box).to_be_focused()
    expect(hint).to_be_hidden()
    tab.keyboard.type("a/b")  # What was there is selected, and is replaced.
    expect(box).to_have_value("a/b")
    tab.keyboard.press("Escape")
    expect(box).not_to_be_focused()
    expect(box).to_have_value("a/b")
    expect(tab.locator(".shortcut")).to_have_count(0)
    opened.open("/")
    tab.get_by_text("The key / moves to the search box.").get_by_role("button", name="Turn the key off").click()
    expect(tab.get_by_role("button", name="Turn the key on")).to_be_visible()
    opened.open("/?q=streams")
    tab.keyboard.press("/")
    expect(box).not_to_be_focused()


def test_the_slash_key_types_no_slash_into_an_empty_box_or_over_selected_text(open_tab: OpenTab) -> None:
    tab = open_tab().page
    box = tab.get_by_label("Search", exact=True)
    expect(box).to_be_focused()
    tab.keyboard.type("/usr/bin")
    expect(box).to_have_value("usr/bin")
    tab.keyboard.press("Control+a")
    tab.keyboard.type("/x")
    expect(box).to_have_value("x")


def test_suggestions_are_chosen_by_keyboard(open_tab: OpenTab) -> None:
    tab = open_tab().page
    box, options = tab.get_by_role("combobox"), tab.get_by_role("option")
    box.press_sequentially("stre")
    expect(options.first).to_be_visible()
    expect(box).to_have_attribute("aria-expanded", "true")
    expect(tab.locator("form [role=status]")).to_have_text(re.compile(r"^\d+ suggestions?$"))
    texts = options.all_inner_texts()
    tab.keyboard.press("ArrowDown")
    expect(box).to_have_value(texts[0])
    expect(box).to_have_attribute("aria-activedescendant", str(options.first.get_attribute("id")))
    expect(options.first).to_have_attribute("aria-selected", "true")
    tab.keyboard.press("ArrowUp")
    expect(box).to_have_value("stre")
    tab.keyboard.press("ArrowUp")
    expect(box).to_have_value("stre")
    expect(options.last).to_have_attribute("aria-selected", "true")
    expect(options.last).to_have_class("page")
    tab.keyboard.press("Escape")
    expect(box).to_have_value("stre")
    expect(options).to_have_count(0)
    expect(box).to_be_focused()
    box.press_sequentially("a")
    expect(options.first).to_be_visible()
    chosen = options.first.inner_text()
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    expect(tab.locator(".count")).to_have_text(re.compile(f"for “{re.escape(chosen)}”"))


def test_a_suggested_page_opens_by_keyboard(open_tab: OpenTab, site: Site) -> None:
    tab = open_tab().page
    box = tab.get_by_role("combobox")
    box.press_sequentially("streams part 1")
    page_option = tab.locator("[role=option].page", has_text="Streams, part 1").first
    expect(page_option).to_be_visible()
    for _ in range(tab.get_by_role("option").count()):
        tab.keyboard.press("ArrowDown")
        if page_option.get_attribute("aria-selected") == "true":
            break
    expect(box).to_have_value("streams part 1")
    tab.keyboard.press("Enter")
    tab.wait_for_url(re.compile(r"/guide/1"))


def test_a_suggestion_is_chosen_by_touch(open_tab: OpenTab) -> None:
    tab = open_tab(viewport=PHONE, has_touch=True).page
    tab.get_by_role("combobox").press_sequentially("stre")
    option = tab.get_by_role("option").first
    chosen = option.inner_text()
    option.tap()
    expect(tab.locator(".count")).to_have_text(re.compile(f"for “{re.escape(chosen)}”"))


def test_late_suggestions_do_not_replace_newer_ones(open_tab: OpenTab) -> None:
    tab = open_tab().page
    held: list[Route] = []
    tab.route(re.compile(r"/suggest\?q=s&pages=1$"), lambda route: held.append(route))
    box = tab.get_by_role("combobox")
    with tab.expect_request(re.compile("q=s&pages=1$")) as first:
        box.press_sequentially("s")
    with tab.expect_event("requestfailed") as given_up:
        box.press_sequentially("tre")
    assert given_up.value == first.value
    expect(tab.get_by_role("option").first).to_be_visible()
    assert len(held) == 1


def test_the_page_works_without_scripts(open_tab: OpenTab) -> None:
    tab = open_tab(java_script_enabled=False).page
    tab.get_by_label("Search", exact=True).fill("streams")
    tab.keyboard.press("Enter")
    expect(tab.locator(".count")).to_have_text(re.compile("Showing 1–10 of 27"))
    tab.get_by_role("link", name="/guide/ 14 pages").click()
    tab.get_by_role("link", name="Next").click()
    expect(tab.locator(".count")).to_have_text(re.compile("Showing 11–14 of 14"))
    expect(tab.locator(".key, .shortcut, [role=listbox]")).to_have_count(0)


def test_filters_are_closed_on_a_phone_and_open_on_a_wide_screen(open_tab: OpenTab) -> None:
    tab = open_tab("/?q=streams", viewport=PHONE).page
    library = tab.get_by_role("link", name="/library/ 8 pages")
    expect(library).to_be_hidden()
    tab.get_by_text("Filter the results").click()
    expect(library).to_be_visible()
    tab.set_viewport_size(DESKTOP)
    tab.reload()
    expect(library).to_be_visible()
    expect(tab.get_by_text("Filter the results")).to_be_hidden()


def test_texts_of_a_hostile_page_run_no_script(open_tab: OpenTab) -> None:
    tab = open_tab(f"/?domain={ATTACK}&q=x")
    for path in (f"/?q={ATTACK}", f"/?q=streams&section={ATTACK}", "/?q=hostile"):
        tab.open(path)
        assert tab.page.evaluate("[window.owned, document.images.length, document.scripts.length]") == [None, 0, 1]
    expect(tab.page.locator("ol.hits h2")).to_have_text(f"Hostile {ATTACK}")
    expect(tab.page.locator(".snippet")).to_contain_text(SCRIPT)
    tab.page.get_by_role("combobox").fill("hosti")
    expect(tab.page.get_by_role("option").first).to_be_visible()
    assert tab.page.evaluate("window.owned") is None


#: Each state of the page: an address, and what is done there.
STATES: dict[str, tuple[str, Callable[[Tab], None]]] = {
    "start": ("/", lambda tab: None),
    "suggestions": ("/", lambda tab: _suggest(tab)),
    "results": ("/?q=streams", lambda tab: None),
    "filtered, sites open": (
        "/?q=streams&section=guide&lang=en&sort=date&page=2",
        lambda tab: tab.page.locator(".sites summary").click(),
    ),
    "some of the words, did you mean": ("/?q=streams+libarry", lambda tab: None),
    "no hits": ("/?q=nonexistentword&section=guide", lambda tab: None),
    "never indexed": ("/?q=x&domain=never.example", lambda tab: None),
    "invalid": ("/?q=%3F", lambda tab: None),
    "lost": ("/nowhere", lambda tab: None),
    "search box": ("/search-box", lambda tab: _type_into_search_box(tab)),
    "long": (f"/?q={LONG[:250]}", lambda tab: None),
}


def _suggest(tab: Tab) -> None:
    tab.page.get_by_role("combobox").press_sequentially("stre")
    expect(tab.page.get_by_role("option").first).to_be_visible()
    tab.page.keyboard.press("ArrowDown")


def _type_into_search_box(tab: Tab) -> None:
    tab.page.get_by_label("Try it here").press_sequentially("streams")
    expect(tab.page.get_by_role("dialog").get_by_role("option").first).to_be_visible()


def test_recommended_pages_stand_above_the_results_and_identical_pages_in_the_visitor_s_language(
    browser: Browser, site: Site, tmp_path: Path
) -> None:
    guides = [_page_at(site, f"/{lang}/harbour", "Harbour", "Ships.", lang=lang) for lang in ("en", "de", "fr")]
    documents = [*guides, _page_at(site, "/de/schiffe", "Schiffe", "Schiffe im Hafen (harbour).", lang="de")]
    client = ScriptedSearchClient([write_pack(tmp_path / "pack.sqlite", documents, domain=site.domain)])
    urls = (site.at("/guide/1"), "javascript:alert(1)")
    best_bets = tuple(BestBet(url=url, title=f"Timetable {ATTACK}", text=LONG, domain=site.domain) for url in urls)
    client.change = lambda result: replace(result, best_bets=best_bets)
    with (
        served(create_app(client)) as web,
        browsers.tab(browser, str(web.base_url), locale="de-DE") as opened,
    ):
        opened.open("/?q=harbour")
        _check_recommended_and_grouped(opened, site)
        assert opened.faults == []


def _check_recommended_and_grouped(opened: Tab, site: Site) -> None:
    tab = opened.page
    recommended = tab.get_by_role("region", name="Recommended")
    expect(recommended.get_by_role("link")).to_have_count(1)
    expect(tab.locator(".count")).to_have_text(re.compile("1–2 of 2 for"))
    above, below = recommended.locator("li").bounding_box(), tab.locator(".hits > li").first.bounding_box()
    assert above
    assert below
    assert above["y"] < below["y"]
    group = tab.locator(".hits > li").filter(has=tab.get_by_text("Also at 2 other addresses"))
    expect(group.locator(".address")).to_contain_text("/de/harbour")
    tab.get_by_role("link", name="French 1 page").click()
    expect(group.locator(".address")).to_contain_text("/fr/harbour")
    tab.go_back()
    _inspect(opened, "recommended")
    recommended.get_by_role("link").click()
    expect(tab).to_have_url(site.at("/guide/1"))


def test_a_click_on_a_result_is_counted_where_the_site_wants_it_and_the_link_works_without_scripts(
    browser: Browser, site: Site, tmp_path: Path
) -> None:
    documents = [_page_at(site, f"/guide/{number}", f"Streams, part {number}", "Streams.") for number in (1, 2)]
    client = ScriptedSearchClient([write_pack(tmp_path / "pack.sqlite", documents, domain=site.domain)])
    store = folder_store(tmp_path / "store")
    add_site(store, CrawledSite.of(site.domain, {"search_report": True}))
    counter = SearchCounter(store, lambda: {site.domain})

    def is_counted(clicks: int) -> bool:
        counter.add_to_reports()
        return total(found for _, found in read_reports(store, site.domain, since=date.min)).clicks == clicks

    with served(create_app(client, search_counter=counter)) as web:
        for scripts, expected in ((True, 1), (False, 1), (True, 2)):
            with browsers.tab(browser, str(web.base_url), java_script_enabled=scripts) as opened:
                opened.open("/?q=streams")
                opened.page.get_by_role("link", name="Streams, part 1", exact=True).click()
                expect(opened.page).to_have_url(site.at("/guide/1"))
                assert opened.faults == []
            eventually(partial(is_counted, expected), "the click is counted")


def test_axe_finds_nothing_in_any_state_and_nothing_is_wider_than_the_window(
    open_tab: OpenTab, application: tuple[str, ScriptedSearchClient]
) -> None:
    tab = open_tab()
    for state, (path, act) in STATES.items():
        tab.open(path)
        act(tab)
        _inspect(tab, state)
    application[1].fault = RequestTimedOut("no reply")
    tab.open("/?q=streams")
    _inspect(tab, "failed")


def _inspect(tab: Tab, state: str) -> None:
    """Look at a page in its windows, and in the narrow one with letters twice as large."""
    tab.inspect(state)
    tab.page.evaluate("document.documentElement.style.fontSize = '200%'")
    assert tab.overflow() <= 0, state
