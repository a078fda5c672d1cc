"""What an answer of the Internet Archive that is not 2xx means, by its status and by what its XML says."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from app.coverart.http import Answer
from app.errors import ArchiveError, ArchiveNotFound, ArchiveRefused, ArchiveUnavailable

#: How much of an error's XML is looked at, and how much of it is quoted, in characters.
_LOOKED_AT, _QUOTED = 20_000, 300
#: How an item that was taken down is named, whatever the status. The archive documents no wording.
_DARK = re.compile(r"\bdark(?:ened)?\b|taken offline", re.IGNORECASE)
_SPAM = "appears to be spam"
_GONE = "cannot be retrieved"


class Refusal:
    """An answer that is not 2xx. Its XML is searched, not parsed: nothing in it is expanded, and half of it will do."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._text = answer.text[:_LOOKED_AT]
        self._code = self._element("Code")

    @property
    def item_gone(self) -> bool:
        """Whether the item is no more, or the object is not there."""
        return self._answer.status == 404 or _GONE in self._text

    def error(self, what: str, *, secrets: Iterable[str] = ()) -> ArchiveError:
        """Return the error to raise. `what` was asked; of `secrets`, which a server may quote, nothing is shown."""
        said = self._said()
        for secret in filter(None, secrets):
            said = said.replace(secret, "********")
        message = f"{what}: {self._answer.status}{': ' if said else ''}{said[:_QUOTED]}"
        return self._class()(message, self._answer.retry_after)

    def _said(self) -> str:
        """Return code, message and resource, or what else it says, in one line; of a redirect where to."""
        if location := self._answer.headers.get("location"):
            return f"redirected to {location}"
        parts = [part for part in (self._code, self._element("Message"), self._element("Resource")) if part]
        return " ".join(": ".join(parts or [self._text]).split())

    def _class(self) -> type[ArchiveError]:
        status = self._answer.status
        if status in (400, 401, 403) or _SPAM in self._text or _DARK.search(self._text):
            return ArchiveRefused
        if status == 503 or self._code == "SlowDown":
            return ArchiveUnavailable
        return ArchiveNotFound if status == 404 else ArchiveError

    def _element(self, name: str) -> str:
        found = re.search(rf"<{name}>(.*?)</{name}>", self._text, re.DOTALL)
        return html.unescape(found[1]).strip() if found else ""
