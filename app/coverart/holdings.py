"""What the archive holds of an entity, as anybody may read it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from app.coverart.http import Answer, Client
from app.coverart.refusal import Refusal
from app.errors import ArchiveError, ArchiveUnavailable, ConnectionFailed, FetchError
from config.settings import Settings

#: Seconds for which a file is fresh.
FRESH = 86_400.0


@dataclass(frozen=True, slots=True)
class Item:
    """One item: the names of the files that were put there, each with its MD5 in hexadecimal, derived ones left out.

    A dark item shows no files. Files below `history/` are not among them. `fresh` are the names of those that were put
    there lately: users upload an image before the database hears of it.
    """

    bucket: str
    files: Mapping[str, str]
    dark: bool = False
    fresh: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Holdings:
    """Reads items from `url`, which has no slash at its end."""

    url: str
    http: Client

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the holdings of the archive that the settings name."""
        # The archive redirects reads to the machine that has the file.
        return cls(settings.archive_public_url.rstrip("/"), Client.of(settings, redirects=True))

    def item(self, bucket: str) -> Item | None:
        """Return an item, or None if there is none; raises ArchiveUnavailable or ArchiveError."""
        url = f"{self.url}/metadata/{bucket}"
        answer = self._get(url)
        if not answer.ok:
            raise Refusal(answer).error(f"GET {url}")
        try:
            return _item(bucket, json.loads(answer.body))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ArchiveError(f"GET {url}: not an item's metadata: {answer.text[:60]!r}") from error

    def file(self, bucket: str, name: str) -> bytes | None:
        """Return a file, or None if it is not there; raises as `item` does."""
        url = f"{self.url}/download/{bucket}/{name}"
        answer = self._get(url)
        if answer.ok:
            return answer.body
        if answer.status == 404:
            return None
        raise Refusal(answer).error(f"GET {url}")

    def _get(self, url: str) -> Answer:
        try:
            return self.http.send("GET", url)
        except ConnectionFailed as error:
            raise ArchiveUnavailable(str(error)) from error
        except FetchError as error:
            raise ArchiveError(str(error)) from error


def _item(bucket: str, metadata: Mapping[str, Any]) -> Item | None:
    """Return an item as the archive's metadata describe it; those of an item that there is not are empty."""
    if not metadata:
        return None
    kept = [
        file
        for file in metadata.get("files", ())
        if file.get("source") != "derivative" and not file["name"].startswith("history/")
    ]
    files = {file["name"]: str(file.get("md5", "")) for file in kept}
    lately = time.time() - FRESH
    # Seconds since 1970 as text; some files have none.
    fresh = frozenset(file["name"] for file in kept if float(file.get("mtime") or 0) > lately)
    return Item(bucket, files, dark=bool(metadata.get("is_dark")), fresh=fresh)
