"""Which elements a browser does not show as text, and which text it shows instead of an image."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from app.crawl.parse.extract import boilerplate, contract
from app.crawl.parse.extract.contract import Attributes, Extract, Extractor

#: Elements of which `is_hidden` decides, as a selector.
MAY_BE_HIDDEN: Final = '[hidden], [style*="none" i]'
#: A page that a script shows when it is loaded is hidden as a whole: it and its own text are read all the same.
NEVER_HIDDEN: Final = frozenset({"html", "body", *boilerplate.NEVER_BOILERPLATE})
_NOT_DISPLAYED: Final = re.compile(r"(?:^|;)\s*display\s*:\s*none(?![\w-])", re.I)

#: A button is a control. In one of these its text is a heading: pages let a click on it show the section.
BUTTON: Final = "button"
KEEPS_BUTTONS: Final = frozenset({*contract.HEADINGS, "summary"})


def is_hidden(element: Attributes) -> bool:
    """Return whether an element with these attributes is not displayed, not even when it is searched for."""
    hidden = element.get("hidden", "until-found")
    if (hidden or "").strip().lower() != "until-found":
        return True
    return _NOT_DISPLAYED.search(element.get("style") or "") is not None


def text_of_image(image: Attributes) -> str:
    """Return the text that stands for an image; empty for a decorative one."""
    return contract.collapsed(image.get("alt") or "")


def with_text_instead_of_frames(found: Extract, without_frames: str, extractor: Extractor) -> Extract:
    """Return a page with the text that it has for browsers without frames, if it has no other text."""
    if found.body or not without_frames or "<noframes" in without_frames.lower():
        return found
    shown = extractor.extract(without_frames)
    title = found.title or shown.title
    return replace(found, title=title, headings=shown.headings, body=shown.body, blocks=shown.blocks)
