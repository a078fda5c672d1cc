"""What an answer of the Internet Archive that refuses means, by its status and by what its XML says."""

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
_NOT_FOUND = frozenset({"NoSuchKey", "NoSuchBucket"})


class Refusal:
    """An answer that refuses. Its XML is searched, not parsed: nothing in it is expanded, and half of it will do.

    Words are looked for in the error's own message only. A page that a gateway shows while the archive is down may have
    any of them, be it in its style sheet.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._text = answer.text[:_LOOKED_AT]
        self._code, self._message, self._resource = map(self._element, ("Code", "Message", "Resource"))
        self._words = f"{self._message}\n{self._resource}"

    @property
    def refuses(self) -> bool:
        """Whether it is one at all. So is a 200 with an error: S3 may find out after it began to answer a copy."""
        return not self._answer.ok or (bool(self._code) and "<Error>" in self._text)

    @property
    def item_gone(self) -> bool:
        """Whether the item is no more, or the object is not there."""
        return self._not_found or _GONE in self._words

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
        parts = [part for part in (self._code, self._message, self._resource) if part]
        return " ".join(": ".join(parts or [self._text]).split())

    @property
    def _not_found(self) -> bool:
        return self._answer.status == 404 or self._code in _NOT_FOUND

    def _class(self) -> type[ArchiveError]:
        status = self._answer.status
        if status in (400, 401, 403) or _SPAM in self._words or _DARK.search(self._words):
            return ArchiveRefused
        if status == 503 or self._code == "SlowDown":
            return ArchiveUnavailable
        return ArchiveNotFound if self._not_found else ArchiveError

    def _element(self, name: str) -> str:
        found = re.search(rf"<{name}>(.*?)</{name}>", self._text, re.DOTALL)
        return html.unescape(found[1]).strip() if found else ""
