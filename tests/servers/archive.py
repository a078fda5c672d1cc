"""The Internet Archive as far as an indexer sees it: its S3 dialect, `/metadata/` and `/download/`; faults on order."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

from pydantic import SecretStr

from tests.servers.faults import Faults
from tests.servers.site import Answer, Request, Site, redirect, reply

ACCESS_KEY, SECRET_KEY = "stand-in-access", "stand-in-secret"
COLLECTIONS = frozenset({"coverartarchive", "eventartarchive"})
_XML = "application/xml"
_IMAGES = (".jpg", ".png", ".gif", ".pdf")
_THUMBNAILS = (250, 500, 1200)
_META = "x-archive-meta-"


@dataclass(slots=True)
class StoredItem:
    """One item, which S3 calls a bucket: what it was made with, and its files by name.

    `written` has the time of an upload in seconds since 1970; a file without one shows none.
    """

    metadata: dict[str, str]
    files: dict[str, bytes] = field(default_factory=dict)
    written: dict[str, float] = field(default_factory=dict)
    dark: bool = False


def error(
    status: int, code: str, message: str, resource: str = "", *, headers: Mapping[str, str] | None = None
) -> Answer:
    """Answer with an error as S3 words it."""
    xml = (
        f"<?xml version='1.0' encoding='UTF-8'?>\n<Error><Code>{escape(code)}</Code>"
        f"<Message>{escape(message)}</Message><Resource>{escape(resource)}</Resource></Error>"
    )
    return reply(xml, status=status, content_type=_XML, headers=headers)


def slow_down(retry_after: str | None = None) -> Answer:
    """Answer that the archive has too many requests."""
    headers = {"Retry-After": retry_after} if retry_after else None
    return error(503, "SlowDown", "Please reduce your request rate.", "total_tasks_queued exceeds", headers=headers)


def spam() -> Answer:
    """Answer as to an upload that is taken for spam: no repetition of it succeeds."""
    return error(503, "SlowDown", "Please reduce your request rate.", "Your upload appears to be spam.")


def denied() -> Answer:
    """Answer that the account may not do this."""
    return error(403, "AccessDenied", "Access Denied", "You lack sufficient privileges to write to this item.")


def taken_offline() -> Answer:
    """Answer as for a dark item."""
    return error(403, "AccessDenied", "Access Denied", "This item has been taken offline.")


def not_retrievable() -> Answer:
    """Answer as to the deletion of something in an item that is no more."""
    resource = "FATAL ERROR: The item you are trying to edit cannot be retrieved."
    return error(500, "InternalError", "We encountered an internal error. Please try again.", resource)


def broken() -> Answer:
    """Answer with an internal error."""
    return error(500, "InternalError", "We encountered an internal error. Please try again.")


class ArchiveServer(Site):
    """`with ArchiveServer() as archive: ...`; path style (`path_url`) or by the Host header (`host_url`).

    `requests` has every request, `files` and `item` tell what is kept, `faults` has it answer otherwise.
    """

    def __init__(self, *, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY) -> None:
        super().__init__()
        self.faults = Faults()
        self._keys = f"{access_key}:{secret_key}"
        self._authorization = f"LOW {self._keys}"
        self._items: dict[str, StoredItem] = {}
        self._state = threading.RLock()

    @property
    def path_url(self) -> str:
        """The template of an object's URL with its bucket in the path."""
        return self.at("/{bucket}/{file}")

    @property
    def host_url(self) -> str:
        """The template of an object's URL with its bucket in the host; the names must resolve to 127.0.0.1."""
        return f"http://{{bucket}}.localhost:{self.port}/{{file}}"

    @property
    def public_url(self) -> str:
        """What `/metadata/` and `/download/` are below."""
        return self.at("")

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a client of this archive."""
        urls = {"archive_url": self.path_url, "archive_public_url": self.public_url}
        return {**urls, "archive_keys": SecretStr(self._keys)}

    def item(self, bucket: str) -> StoredItem | None:
        """Return an item, or None."""
        with self._state:
            return self._items.get(bucket)

    def files(self, bucket: str) -> dict[str, bytes]:
        """Return the files of an item by name; none if there is no such item."""
        with self._state:
            return dict(self._items[bucket].files) if bucket in self._items else {}

    def upload(self, bucket: str, name: str, data: bytes, *, at: float | None = None) -> None:
        """Write a file as a user of the web site does, and derive thumbnails of an image; `at` is its time."""
        with self._state:
            item = self._items.setdefault(bucket, StoredItem({"collection": "coverartarchive", "mediatype": "image"}))
            item.files[name] = data
            item.written.pop(name, None)
            if at is not None:
                item.written[name] = at
            _derive(item, name)

    def clear(self) -> None:
        """Forget every item."""
        with self._state:
            self._items.clear()

    def darken(self, bucket: str) -> None:
        """Take an item offline."""
        with self._state:
            self._items[bucket].dark = True

    def route(self, request: Request) -> Answer:
        """Do what a request asks for, unless a fault is ordered for it, and return the answer."""
        if fault := self.faults.take(request):
            return fault
        url = urlsplit(request.path)
        with self._state:
            bucket, name = _place(request.headers.get("host", ""), url.path)
            if bucket == "metadata":
                return _json(self._metadata(name))
            if bucket == "download":  # The archive redirects to the machine that has the file.
                return redirect(f"/serve/{name}")
            if bucket == "serve":
                return self._read(*_place("", f"/{name}"))
            if request.method in ("GET", "HEAD"):
                return self._read(bucket, name)
            return self._write(request, bucket, name)

    def _write(self, request: Request, bucket: str, name: str) -> Answer:
        if request.headers.get("authorization") != self._authorization:
            return denied()
        if bucket in self._items and self._items[bucket].dark:
            return taken_offline()
        return self._delete(request, bucket, name) if request.method == "DELETE" else self._put(request, bucket, name)

    def _put(self, request: Request, bucket: str, name: str) -> Answer:
        if request.headers.get(f"{_META}collection") not in COLLECTIONS:
            return denied()
        data: bytes | Answer = request.body
        if source := request.headers.get("x-amz-copy-source"):
            data = self._source(*_place("", source))
        if not isinstance(data, bytes):
            return data
        if bucket not in self._items and request.headers.get("x-archive-auto-make-bucket") != "1":
            return error(404, "NoSuchBucket", "The specified bucket does not exist.", bucket)
        item = self._items.setdefault(bucket, StoredItem(_made_with(request.headers)))
        if request.headers.get("x-archive-keep-old-version") == "1":
            _keep(item, name)
        item.files[name] = data
        item.written[name] = time.time()
        _derive(item, name)
        # Many servers call an empty body HTML.
        return reply(b"", content_type="text/html")

    def _delete(self, request: Request, bucket: str, name: str) -> Answer:
        item = self._items.get(bucket)
        if item is None:
            return error(404, "NoSuchBucket", "The specified bucket does not exist.", bucket)
        if request.headers.get("x-archive-keep-old-version") == "1":
            _keep(item, name)
        item.files.pop(name, None)
        if request.headers.get("x-archive-cascade-delete") == "1":
            for thumbnail in _thumbnails(name):
                item.files.pop(thumbnail, None)
        return reply(b"", status=204, content_type="text/html")

    def _read(self, bucket: str, name: str) -> Answer:
        found = self._source(bucket, name)
        if bucket in self._items and self._items[bucket].dark:
            return taken_offline()
        return reply(found, content_type="application/octet-stream") if isinstance(found, bytes) else found

    def _source(self, bucket: str, name: str) -> bytes | Answer:
        item = self._items.get(bucket)
        if item is None:
            return error(404, "NoSuchBucket", "The specified bucket does not exist.", bucket)
        if name not in item.files:
            return error(404, "NoSuchKey", "The specified key does not exist.", f"{bucket}/{name}")
        return item.files[name]

    def _metadata(self, bucket: str) -> dict[str, Any]:
        item = self._items.get(bucket)
        if item is None:
            return {}
        about = {"identifier": bucket, **item.metadata}
        if item.dark:
            return {"is_dark": True, "nodownload": True, "metadata": about}
        return {"files": [_described(item, name) for name in item.files], "metadata": about}


def _place(host: str, path: str) -> tuple[str, str]:
    """Return bucket and file of a URL or a copy's source; a Host that starts with an item's name is the bucket."""
    label = host.partition(".")[0]
    if label.startswith("mbid-"):
        return label, path.removeprefix("/")
    bucket, _, name = path.removeprefix("/").partition("/")
    return bucket, name


def _made_with(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(_META): value for name, value in headers.items() if name.startswith(_META)}


def _keep(item: StoredItem, name: str) -> None:
    """Keep a file below `history/` with a number, as the archive does."""
    if name in item.files:
        kept = sum(other.startswith(f"history/files/{name}.~") for other in item.files)
        item.files[f"history/files/{name}.~{kept + 1}~"] = item.files[name]


def _derive(item: StoredItem, name: str) -> None:
    for thumbnail in _thumbnails(name):
        item.files[thumbnail] = f"{thumbnail} of {hashlib.sha1(item.files[name]).hexdigest()}".encode()


def _thumbnails(name: str) -> list[str]:
    stem, dot, suffix = name.rpartition(".")
    return [f"{stem}_thumb{side}.jpg" for side in _THUMBNAILS] if dot + suffix in _IMAGES else []


def _described(item: StoredItem, name: str) -> dict[str, str]:
    data = item.files[name]
    return {
        **({"mtime": str(int(item.written[name]))} if name in item.written else {}),
        "name": name,
        "source": "derivative" if "_thumb" in name else "original",
        "size": str(len(data)),
        "md5": hashlib.md5(data).hexdigest(),
        "sha1": hashlib.sha1(data).hexdigest(),
        **({"old_version": "true"} if name.startswith("history/") else {}),
    }


def _json(value: Mapping[str, Any]) -> Answer:
    return reply(json.dumps(value), content_type="application/json")
