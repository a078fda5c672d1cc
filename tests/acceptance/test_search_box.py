"""The search dialog on a foreign page in a real browser: by keyboard, by mouse, on a phone, without storage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from app.storage.page_parts import Block, body_of
from app.web.application import create_app
from app.web.static_files import FOLDER
from tests.packs import page, write_pack
from tests.servers.site import Site, reply
from tests.servers.site import page as html_page
from tests.support import browser as browsers
from tests.support.browser import DESKTOP, PHONE
from tests.support.scripted import ScriptedSearchClient
from tests.support.web import served

#: The first test may have to wait for the browser's installation.
pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

EVIL = '<img src=x onerror="window.owned = 1">'
PAGE = """<!doctype html><html lang="en"><head><title>A foreign page</title>
<meta name="viewport" content="width=device-width">
<link rel="stylesheet" href="/site.css"><script src="{base}/static/search-box.js" data-domain="{domain}" defer></script>
</head><body><main><h1>A foreign page</h1><form action="/own-search"><input type="search" aria-label="Find" name="s">
</form><p>Text of the page.</p></main></body></html>"""
#: Styles of a site that would make results unreadable.
CSS = "a, div, li, p { display: none !important; color: red } main p { display: block !important; color: black }"


@dataclass(frozen=True)
class Foreign:
    """A site, and the search server that it includes the script of."""

    site: Site
    base: str


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    with Site({}) as site:
        pages = [
            *(page(f"/{n}", f"Streams, part {n}", "Streams carry bytes.", url=site.at(f"/{n}")) for n in range(9)),
            manual(site),
            page("/evil", EVIL, f"hostile {EVIL}", url=site.at("/evil")),
            page("/scheme", "A script", "hostile scheme", url="javascript:alert(1)"),
        ]
        client = ScriptedSearchClient(
            [write_pack(tmp_path_factory.mktemp("packs") / "one.sqlite", pages, domain=site.domain)]
        )
        with served(create_app(client, origins=(site.at("").rstrip("/"),))) as http:
            base = str(http.base_url).rstrip("/")
            policy = f"default-src 'none'; script-src {base}; connect-src {base}; style-src 'self'; form-action 'self'"
            html = PAGE.format(base=base, domain=site.domain)
            site.set("/", reply(html, headers={"Content-Security-Policy": policy}))
            site.set("/site.css", reply(CSS, content_type="text/css"))
            for path in ("/manual", *(f"/{n}" for n in range(9))):
                site.set(path, html_page("The page itself"))
            yield Foreign(site, base)


def manual(site: Site) -> Any:
    """Return a page with two sections that a name leads to."""
    names = ("BufferSize", "BufferCount")
    blocks = [Block(("Buffers",), "h1")]
    for name in names:
        blocks += [Block((f"{name} Directive",), "h2", name.lower()), Block((f"It sets the {name} of all buffers.",))]
    headings = "\n".join(("Buffers", *(f"{name} Directive" for name in names)))
    return page("/manual", "Buffers", body_of(blocks), url=site.at("/manual"), headings=headings, blocks=tuple(blocks))


@dataclass(frozen=True)
class Opened:
    """The parts of the dialog in a tab."""

    page: Page

    @property
    def input(self) -> Locator:
        return self.page.get_by_label("Find")

    @property
    def dialog(self) -> Locator:
        return self.page.get_by_role("dialog", name="Search")

    @property
    def box(self) -> Locator:
        return self.dialog.get_by_role("combobox", name="Search")

    @property
    def options(self) -> Locator:
        return self.dialog.get_by_role("option")

    @property
    def status(self) -> Locator:
        return self.dialog.get_by_role("status")


@pytest.fixture
def opened(browser: Browser, foreign: Foreign) -> Iterator[Opened]:
    """Yield the foreign page in a tab, in which nothing may go wrong."""
    with browsers.tab(browser, foreign.base) as tab:
        tab.page.goto(foreign.site.at("/"))
        yield Opened(tab.page)
        assert tab.faults == []


def test_the_dialog_opens_as_one_types_and_a_result_is_chosen_by_keyboard(opened: Opened) -> None:
    keys = opened.page.keyboard
    opened.input.press_sequentially("streams")
    expect(opened.box).to_be_focused()
    expect(opened.box).to_have_value("streams")
    expect(opened.options).to_have_count(7)
    expect(opened.status).to_have_text("9 results")
    expect(opened.options.first).to_be_visible()  # The site's styles do not reach it.
    expect(opened.box).to_have_attribute("aria-expanded", "true")
    for key in ("ArrowUp", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"):
        keys.press(key)
    expect(opened.options.first).to_have_attribute("aria-selected", "true")
    expect(opened.box).to_have_attribute("aria-activedescendant", str(opened.options.first.get_attribute("id")))
    expect(opened.box).to_be_focused()
    keys.press("Escape")
    expect(opened.dialog).to_be_hidden()
    expect(opened.input).to_be_focused()
    expect(opened.input).to_have_value("streams")
    keys.press("Enter")
    expect(opened.options).to_have_count(7)
    chosen = opened.options.first.get_attribute("href")
    keys.press("ArrowDown")
    keys.press("Enter")
    expect(opened.page).to_have_url(str(chosen))


def test_sections_are_below_their_page_each_once(opened: Opened, foreign: Foreign) -> None:
    opened.input.press_sequentially("buffer")
    expect(opened.options).to_have_text(
        [re.compile("^Buffers"), re.compile("^BufferSize"), re.compile("^BufferCount"), "All results"]
    )
    expect(opened.options.nth(1)).to_have_attribute("aria-description", "Section of Buffers")
    opened.options.nth(2).click()
    expect(opened.page).to_have_url(foreign.site.at("/manual#buffercount"))


def test_enter_in_the_box_opens_all_results_and_the_search_is_remembered(opened: Opened, foreign: Foreign) -> None:
    keys = opened.page.keyboard
    for text in ("amber", "streams"):
        keys.press("Control+k")
        opened.box.fill(text)
        keys.press("Enter")
        opened.page.wait_for_url(re.compile(rf"^{re.escape(foreign.base)}/\?domain=.*q={text}"))
        opened.page.goto(foreign.site.at("/"))
    keys.press("/")
    expect(opened.status).to_have_text("Recent searches")
    expect(opened.options).to_have_text(["streams", "amber", "Delete recent searches"])
    keys.press("ArrowDown")
    keys.press("Enter")
    expect(opened.box).to_have_value("streams")
    expect(opened.status).to_have_text("9 results")
    opened.box.fill("")
    opened.dialog.get_by_text("Delete recent searches").click()
    expect(opened.options).to_have_count(0)


def test_the_keys_are_turned_off_where_they_are_explained(opened: Opened) -> None:
    opened.page.keyboard.press("/")
    opened.dialog.get_by_label("The keys Ctrl+K and / open it").uncheck()
    opened.dialog.get_by_role("button", name="Close").click()
    opened.page.reload()
    opened.page.keyboard.press("Control+k")
    opened.input.blur()
    opened.page.keyboard.press("/")
    expect(opened.dialog).to_be_hidden()
    opened.input.click()
    expect(opened.dialog).to_be_visible()


def test_it_is_accessible_fits_the_window_and_runs_nothing_of_a_page(browser: Browser, foreign: Foreign) -> None:
    with browsers.tab(browser, foreign.base, bypass_csp=True) as tab:  # axe is injected.
        tab.page.goto(foreign.site.at("/"))
        opened = Opened(tab.page)
        opened.input.press_sequentially("hostile")
        expect(opened.options).to_have_count(2)  # The address that is a script is no result.
        expect(opened.options.first).to_contain_text(EVIL)
        assert tab.page.evaluate("window.owned") is None
        tab.page.keyboard.press("ArrowDown")
        tab.inspect("the dialog")
        for viewport in (DESKTOP, PHONE):
            tab.page.set_viewport_size(viewport)
            panel = opened.dialog.bounding_box()
            assert panel is not None
            assert panel["x"] >= 0
            assert panel["x"] + panel["width"] <= viewport["width"]
        assert tab.faults == []


def test_a_page_that_may_store_nothing_can_be_searched(browser: Browser, foreign: Foreign) -> None:
    with browsers.tab(browser, foreign.base) as tab:
        refused = "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('refused') }})"
        tab.page.add_init_script(refused)
        tab.page.goto(foreign.site.at("/"))
        opened = Opened(tab.page)
        opened.input.press_sequentially("streams")
        expect(opened.status).to_have_text("9 results")
        assert tab.faults == []


def test_the_script_is_small() -> None:
    assert (FOLDER / "search-box.js").stat().st_size <= 12_000
