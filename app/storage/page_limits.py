"""The size of a page's texts: cut when a page is extracted, and again when it is packed: others may store pages."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from app.storage.layout import Page

#: Characters of a title, a description and a heading. Search results show far fewer of them.
MAX_TITLE: Final = 1_000
MAX_DESCRIPTION: Final = 4_000
MAX_HEADING: Final = 1_000
#: Headings of a page.
MAX_HEADINGS: Final = 500
#: Characters of a page's text. Pages above MAX_BODY_BYTES are not indexed, so only stored pages of others are longer.
MAX_BODY: Final = 20_000_000
#: Characters of a URL, a path or a canonical key. A longer one cannot be cut: the page is left out of packs.
MAX_ADDRESS: Final = 8_000
#: Characters of a media type (RFC 6838 section 4.2 allows 127 for each part) and of a date.
MAX_CONTENT_TYPE: Final = 255
MAX_DATE: Final = 40

#: Characters of a language tag (RFC 5646 section 4.4.1) and its syntax, without the rules of its subtags.
MAX_LANG: Final = 35
_LANGUAGE_TAG: Final = re.compile(r"[A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8})*")


def bounded(page: Page) -> Page:
    """Return the page with each text cut to its limit, and without a language that is no language tag (BCP 47).

    Its addresses are not changed: see `has_long_address`.
    """
    return replace(
        page,
        title=page.title[:MAX_TITLE],
        description=page.description[:MAX_DESCRIPTION],
        headings=tuple(heading[:MAX_HEADING] for heading in page.headings[:MAX_HEADINGS]),
        body=page.body[:MAX_BODY],
        lang=language_tag(page.lang),
        content_type=page.content_type[:MAX_CONTENT_TYPE],
        canonical=page.canonical if len(page.canonical) <= MAX_ADDRESS else "",
        modified=page.modified if len(page.modified) <= MAX_DATE else "",
    )


def language_tag(lang: str) -> str:
    """Return a `lang` attribute with `-` for `_`, or an empty string if it is no language tag: `en_US` is `en-US`."""
    tag = lang[: MAX_LANG + 1].strip().replace("_", "-")
    return tag if len(tag) <= MAX_LANG and _LANGUAGE_TAG.fullmatch(tag) else ""


def has_long_address(page: Page) -> bool:
    """Return whether the URL, path or canonical key is longer than `MAX_ADDRESS` characters."""
    return max(len(page.url), len(page.path), len(page.canonical_key)) > MAX_ADDRESS
