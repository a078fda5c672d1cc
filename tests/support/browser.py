"""A real Chromium without a window, the distribution's, whose tabs tell of everything that goes wrong in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, ViewportSize, sync_playwright

from tests.support.programs import program

#: Nothing but what a test asks for leaves the browser. Root may not use its sandbox, and only our own pages are opened.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--no-first-run",
)

DESKTOP: ViewportSize = {"width": 1280, "height": 800}
#: The narrowest that WCAG 2.2 asks for (1.4.10).
PHONE: ViewportSize = {"width": 320, "height": 640}

#: The rules of axe whose results depend on colours or on the width of the window.
_RULES_OF_COLOURS_AND_LAYOUT = ["color-contrast", "scrollable-region-focusable", "target-size"]

#: Chromium writes this to the console for a page with an error status, which some tests expect.
_MEANT = "Failed to load resource: the server responded with a status of"


@dataclass(slots=True)
class Tab:
    """A page of its own, without a past. `faults` are errors of scripts, of the console, and of what was loaded."""

    page: Page
    base: str
    faults: list[str] = field(default_factory=list)

    def open(self, path: str = "/") -> None:
        """Go to an address of the application."""
        self.page.goto(f"{self.base}{path}")

    def inspect(self, name: str) -> None:
        """Assert that axe finds nothing on the page and that it fits its window, wide and light, narrow and dark.

        The style sheets' rules for dark windows set colours only, those for narrow ones the layout only.
        """
        self._require_fit(name, DESKTOP, "light", {})
        self._require_fit(name, PHONE, "dark", {"runOnly": _RULES_OF_COLOURS_AND_LAYOUT})

    def _require_fit(self, name: str, viewport: ViewportSize, scheme: Literal["light", "dark"], rules: Any) -> None:
        self.page.set_viewport_size(viewport)
        self.page.emulate_media(color_scheme=scheme)
        if self.page.evaluate("typeof axe") == "undefined":
            self.page.evaluate(_axe())
        run = "options => axe.run(document, options)"
        found = self.page.evaluate(run, {"resultTypes": ["violations"], **rules})["violations"]
        assert [f"{each['id']}: {node['html']}" for each in found for node in each["nodes"]] == [], (name, scheme)
        assert self.overflow() <= 0, (name, scheme)

    def overflow(self) -> int:
        """Return the CSS pixels that the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))

    def focused(self) -> str:
        """Return the text, or else the id, of the element that has the focus."""
        return str(self.page.evaluate("document.activeElement.innerText || document.activeElement.id"))


@contextmanager
def chromium(home: Path) -> Iterator[Browser]:
    """Run the browser, installed if it is not here, with an empty profile; `home` is the folder it takes for home."""
    # The browser with a window also draws its own buttons, though nothing is shown: a tab took three times as long.
    path = program("chromium-headless-shell", "chromium-headless-shell")
    environment: dict[str, str | float | bool] = {**os.environ, "HOME": str(home)}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS), env=environment)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def tab(browser: Browser, base: str, **options: Any) -> Iterator[Tab]:
    """Open a tab on the application at `base`; `options` are those of a browser context."""
    context = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce"} | options)
    try:
        opened = Tab(context.new_page(), base.rstrip("/"))
        _listen(opened)
        yield opened
    finally:
        context.close()


def _listen(opened: Tab) -> None:
    def said(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and not message.text.startswith(_MEANT):
            opened.faults.append(f"console: {message.text}")

    def on_dialog(dialog: Dialog) -> None:
        opened.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    opened.page.on("console", said)
    opened.page.on("pageerror", lambda error: opened.faults.append(f"script: {error}"))
    opened.page.on("dialog", on_dialog)
    opened.page.on("request", lambda request: _note_stranger(opened, request.url))


def _note_stranger(opened: Tab, url: str) -> None:
    if not url.startswith("http://127.0.0.1:"):
        opened.faults.append(f"request: {url}")


@cache
def _axe() -> str:
    return files("axe_playwright_python").joinpath("axe.min.js").read_text()
