"""An incident in a browser: a site fails, its cause is found, one letter is tried, and the others follow.

Chromium with scripts off drives the operations page of a whole system: broker, Redis, worker, beat and web process.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from app.messages.dead_sets import dead_sets
from config.settings import Settings
from tests.servers.site import Answer, Request, Site, failure, page
from tests.support.operators import PASSWORD, VARIABLES
from tests.support.system import running_system
from tests.support.waiting import eventually
from tests.support.web import web_process

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

#: Retries that a page spends before it is a dead letter.
RETRIES = {"RETRY_MAX": "1", "RETRY_TIMEOUT_MS": "200", "HOST_DELAY": "0", "SOFT_404_CHECK": "false"}


class FailingSite(Site):
    """A start page with links to pages that answer 500 until they are repaired, and one that fails always."""

    def __init__(self, pages: int) -> None:
        super().__init__()
        self.repaired = False
        self._links = [f"/page/{number}" for number in range(pages)]

    def route(self, request: Request) -> Answer:
        if request.path == "/":
            return page("Home", "The start page.", links=self._links)
        if request.path == "/wrong" or (request.path.startswith("/page/") and not self.repaired):
            return failure(500)
        return page(f"Page {request.path}", f"The page at {request.path} is here.")


def log_in(tab: Page, base: str) -> None:
    """Log in on the page."""
    tab.goto(f"{base}/ops")
    tab.get_by_label("Your name").fill("kim")
    tab.get_by_label("Password").fill(PASSWORD)
    tab.get_by_role("button", name="Log in").click()


def ended_act(tab: Page) -> str:
    """Return what the page of an act says when it has ended; without scripts, the page reloads itself."""
    status, at_work = tab.get_by_role("status"), re.compile("so far|starting|waits", re.IGNORECASE)
    expect(status).not_to_contain_text(at_work, timeout=120_000)
    return status.inner_text()


def letters(settings: Settings) -> int:
    """Return the number of dead letters."""
    return sum(1 for _ in dead_sets(settings).iter_summaries())


@pytest.mark.parametrize("pages", [60, pytest.param(1_000, marks=pytest.mark.long)])
def test_an_operator_without_scripts_goes_through_an_incident(
    browser: Browser, environment: dict[str, str], settings: Settings, tmp_path: Path, pages: int
) -> None:
    changed = {**environment, **RETRIES}
    with (
        FailingSite(pages) as site,
        running_system(changed, settings, tmp_path) as system,
        web_process({**changed, **VARIABLES}, tmp_path / "web.log") as (_, base),
        browser.new_context(java_script_enabled=False) as first,
        browser.new_context(java_script_enabled=False) as second,
    ):
        tab = first.new_page()
        system.post("index+crawl", url=site.url)
        eventually(lambda: letters(settings) == pages, "every page is a dead letter", seconds=60 + pages / 5)
        log_in(tab, base)

        # The cause is one group; the first click of five reads it, the second one letter of it.
        tab.get_by_role("link", name="Dead letters").first.click()
        tab.get_by_role("region", name="Causes").get_by_role("link", name="server-error").click()
        expect(tab.get_by_text(f"{pages:,} match")).to_be_visible()
        tab.get_by_role("region", name="Letters").get_by_role("link").first.click()
        expect(tab.get_by_role("region", name="Arguments")).to_contain_text(site.domain)
        expect(tab.get_by_role("region", name="Attempts")).to_contain_text("2")

        # The site is not repaired: the canary dies again, and the others stay.
        tab.go_back()
        replay(tab, rate="")
        assert "died again" in ended_act(tab)
        assert letters(settings) == pages

        # It is repaired: the others follow at a rate, while a new letter dies and the browser is closed.
        site.repaired = True
        tab.get_by_role("link", name="Dead letters").first.click()
        tab.get_by_role("region", name="Causes").get_by_role("link", name="server-error").click()
        replay(tab, rate="40")
        tab.wait_for_url(re.compile("/ops/acts/"))
        act = tab.url
        first.close()
        system.post("index", url=site.at("/wrong"))
        tab = second.new_page()
        log_in(tab, base)
        tab.goto(act)
        assert f"{pages:,} of {pages:,} replayed" in ended_act(tab)
        eventually(lambda: letters(settings) == 1, "the new letter is there, and no other one", seconds=60)

        tab.get_by_role("link", name="Audit").click()
        expect(tab.get_by_role("region", name="Entries")).to_contain_text("the site was repaired")


def replay(tab: Page, *, rate: str) -> None:
    """Replay all letters that match: one first, the others if it succeeds."""
    tab.get_by_label(re.compile("all .* that match")).check()
    tab.get_by_label("Canary").check()
    tab.get_by_label("Rate").fill(rate)
    tab.get_by_label("Why").first.fill("the site was repaired")
    tab.get_by_role("button", name="Replay", exact=True).click()
