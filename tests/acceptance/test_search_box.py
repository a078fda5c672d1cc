"""The search box script on a page of another origin, with a strict content security policy, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from app.web.application import create_app
from app.web.static_files import FOLDER
from tests.packs import page, write_pack
from tests.servers.site import Site, reply
from tests.servers.site import page as html_page
from tests.support import browser as browsers
from tests.support.browser import PHONE
from tests.support.scripted import ScriptedSearchClient
from tests.support.web import served

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

EVIL = '<img src=x onerror="window.owned = 1">'
PAGE = """<!doctype html><html lang="en"><head><title>A foreign page</title>
<link rel="stylesheet" href="/site.css"><script src="{base}/static/search-box.js" data-domain="{domain}" defer></script>
</head><body><main><h1>A foreign page</h1><form action="/own-search"><input type="search" aria-label="Search" name="s">
</form><p>Text of the page.</p></main></body></html>"""
#: Styles of a site that would make results unreadable.
CSS = "a, div, li, p { display: none !important; color: red } main p { display: block !important; color: black }"


@dataclass(frozen=True)
class Foreign:
    """A site, and the search server that it includes the script of."""

    site: Site
    base: str


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsers.chromium(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Foreign]:
    with Site({}) as site:
        pages = [
            *(page(f"/{n}", f"Streams, part {n}", "Streams carry bytes.", url=site.at(f"/{n}")) for n in range(9)),
            page("/evil", EVIL, f"hostile {EVIL}", url=site.at("/evil")),
            page("/scheme", "A script", "hostile scheme", url="javascript:alert(1)"),
        ]
        client = ScriptedSearchClient([write_pack(tmp_path / "pack.sqlite", pages, domain=site.domain)])
        with served(create_app(client, origins=(site.at("").rstrip("/"),))) as http:
            base = str(http.base_url).rstrip("/")
            policy = f"default-src 'none'; script-src {base}; connect-src {base}; style-src 'self'; form-action 'self'"
            html = PAGE.format(base=base, domain=site.domain)
            site.set("/", reply(html, headers={"Content-Security-Policy": policy}))
            site.set("/site.css", reply(CSS, content_type="text/css"))
            site.set("/3", html_page("Part 3"))
            yield Foreign(site, base)


def test_an_input_of_a_foreign_page_finds_pages_by_keyboard(browser: Browser, foreign: Foreign) -> None:
    with browsers.tab(browser, foreign.base) as tab:
        tab.page.goto(foreign.site.at("/"))
        box = tab.page.get_by_label("Search", exact=True)
        box.press_sequentially("streams")
        links = tab.page.locator("perennial-search-box a")
        expect(links).to_have_count(7)
        expect(tab.page.locator("perennial-search-box [role=status]")).to_have_text("9 pages")
        expect(links.first).to_be_visible()  # The site's styles do not reach it.
        for _ in range(3):
            tab.page.keyboard.press("ArrowDown")
        tab.page.keyboard.press("ArrowUp")
        expect(links.nth(1)).to_be_focused()
        tab.page.keyboard.press("Escape")
        expect(box).to_be_focused()
        expect(links).to_have_count(0)
        box.press("Enter")
        tab.page.wait_for_url(re.compile(rf"^{re.escape(foreign.base)}/\?domain=.*q=streams"))
        assert tab.faults == []


def test_it_is_accessible_fits_a_phone_and_runs_nothing_of_a_page(browser: Browser, foreign: Foreign) -> None:
    with browsers.tab(browser, foreign.base, viewport=PHONE, bypass_csp=True) as tab:  # axe is injected.
        tab.page.goto(foreign.site.at("/"))
        box = tab.page.get_by_label("Search", exact=True)
        box.press_sequentially("hostile")
        links = tab.page.locator("perennial-search-box a")
        expect(links).to_have_count(1)  # The address that is a script is no link.
        expect(links.first).to_contain_text(EVIL)
        assert tab.page.evaluate("window.owned") is None
        for scheme in ("light", "dark"):
            tab.page.emulate_media(color_scheme=scheme)
            assert tab.violations() == []
        assert tab.overflow() <= 0
        panel = tab.page.locator("perennial-search-box div").bounding_box()
        assert panel is not None
        assert panel["x"] >= 0
        assert panel["x"] + panel["width"] <= PHONE["width"]
        assert tab.faults == []


def test_the_script_is_small() -> None:
    assert (FOLDER / "search-box.js").stat().st_size <= 10_000
