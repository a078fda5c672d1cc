"""The languages that a visitor reads, from the Accept-Language field of a request (RFC 9110 section 12.5.4)."""

from __future__ import annotations

import re
from typing import Final

from fastapi import Request

from app.search.contract import MAX_LANGUAGES

#: A language range with its weight. The weight 0 means "not acceptable".
_RANGE: Final = re.compile(
    r"\s*([A-Za-z]{2,8}(?:-[A-Za-z0-9]{1,8})*)\s*+(?:;\s*[qQ]\s*=\s*([01](?:\.[0-9]{0,3})?))?\s*"
)
#: Characters of the field that are read.
_MAX_FIELD: Final = 1_000
#: Answers that depend on the field say so, for caches.
VARY: Final = {"Vary": "Accept-Language"}


def languages_of(request: Request) -> tuple[str, ...]:
    """Return the visitor's language tags in lower case, the most preferred first, each also without its region."""
    field = request.headers.get("Accept-Language", "")
    weighted = [
        (float(found[2] or 1), found[1].lower())
        for part in field[:_MAX_FIELD].split(",")
        if (found := _RANGE.fullmatch(part))
    ]
    preferred = [tag for weight, tag in sorted(weighted, key=lambda pair: -pair[0]) if weight > 0]
    tags = (tag for each in preferred for tag in (each, each.partition("-")[0]))
    return tuple(dict.fromkeys(tags))[:MAX_LANGUAGES]
