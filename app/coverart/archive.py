"""The Internet Archive: writes in its dialect of S3, public reads of items, and what its refusals mean."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import quote, urljoin

from pydantic import SecretStr
from urllib3.util import parse_url

from app.counters import ARCHIVE_ANSWERS, status_label
from app.coverart.project import Project
from app.errors import (
    ArchiveDenied,
    ArchiveError,
    ArchiveNotFound,
    ArchiveRefused,
    ArchiveUnavailable,
    ConnectionFailed,
    FetchError,
)
from app.http.api_client import ApiClient
from app.http.response import Response
from config.settings import Settings

_KEEP_OLD = {"x-archive-keep-old-version": "1"}
_CASCADE = {"x-archive-cascade-delete": "1"}
#: Seconds after its upload for which an image may not be in the database yet: users upload it first.
FRESH = 86_400.0

#: A longer Retry-After, in seconds, is taken for this.
MAX_RETRY_AFTER = 3_600.0

#: Characters of an error's XML that are searched, and that are quoted.
_SEARCHED, _QUOTED = 20_000, 300
#: How the archive names an item that was taken down, with any status. The wording is not documented.
_DARK = re.compile(r"\bdark(?:ened)?\b|taken offline", re.IGNORECASE)
_SPAM = "appears to be spam"
_ITEM_GONE = "cannot be retrieved"
_PAGE = re.compile(r"\s*<(?:!doctype html|html)\b", re.IGNORECASE)
#: Redirects that keep method and body; in practice the archive's 301 does, too.
_REDIRECTS, _MAX_REDIRECTS = frozenset({301, 307, 308}), 5
_NOT_FOUND = frozenset({"NoSuchKey", "NoSuchBucket"})
#: How S3 says that a key is unknown, or that the secret key is another one, with any status.
_WRONG_KEYS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSecurity"})

#: Returns the context in which a request about an item's bucket runs.
Reporting = Callable[[str], AbstractContextManager[None]]


def api_client(settings: Settings, *, follow_redirects: bool = False) -> ApiClient:
    """Return a client for the archive or MusicBrainz's web service, with the time-out of the settings."""
    return ApiClient(
        user_agent=settings.user_agent,
        response_timeout=settings.response_timeout,
        follow_redirects=follow_redirects,
        # Every request may be sent twice: a job may run twice.
        keeps_connections=True,
    )


@dataclass(frozen=True)
class Archive:
    """Puts, copies and deletes objects. It has no state: threads and forks may share it.

    `template` is a URL with `{bucket}` in its host or path, and `{file}`. `keys` are `access:secret`, of which neither
    appears in an error's text. Every request runs in the context that `reporting` returns for its bucket.
    """

    template: str
    http: ApiClient
    keys: SecretStr
    reporting: Reporting

    @classmethod
    def of(cls, settings: Settings, *, reporting: Reporting = lambda _: nullcontext()) -> Self:
        """Return the archive of the settings."""
        return cls(settings.archive_url, api_client(settings), settings.archive_keys, reporting)

    def put(
        self, project: Project, bucket: str, file: str, body: bytes, *, content_type: str, keep_old: bool = False
    ) -> None:
        """Write an object and make its bucket. `keep_old` keeps the former version below `history/`.

        Raises ArchiveUnavailable, ArchiveRefused or ArchiveError, as every method of this class.
        """
        headers = {"content-type": content_type, **(_KEEP_OLD if keep_old else {}), **_new_bucket(project)}
        self._request("PUT", bucket, file, headers, body=body)

    def copy(self, project: Project, source: tuple[str, str], target: tuple[str, str]) -> None:
        """Copy an object within the archive; both are (bucket, file). Raises ArchiveNotFound for a missing source."""
        self._request(
            "PUT", *target, {"x-amz-copy-source": f"/{source[0]}/{source[1]}", **_KEEP_OLD, **_new_bucket(project)}
        )

    def delete(self, bucket: str, file: str) -> bool:
        """Delete an object and its derivatives; return whether it existed, as far as the archive reports it.

        An item that "cannot be retrieved" has nothing to delete either.
        """
        return self._request("DELETE", bucket, file, {**_KEEP_OLD, **_CASCADE})

    def exists(self, bucket: str, file: str) -> bool:
        """Return whether an object exists. A redirect means yes: the archive redirects reads to the file's server."""
        return self._request("HEAD", bucket, file, {})

    def _request(self, method: str, bucket: str, file: str, headers: Mapping[str, str], *, body: bytes = b"") -> bool:
        """Return whether the archive did it; False for a missing object that is not written.

        Raises the error of a refusal.
        """
        first = url = self.template.replace("{bucket}", bucket).replace("{file}", file)
        keys = self.keys.get_secret_value()
        # The settings accept no key that a header cannot contain.
        headers = {"authorization": f"LOW {keys}", **headers}
        with self.reporting(bucket):
            for _ in range(_MAX_REDIRECTS):
                response = _send(self.http, method, url, headers=headers, body=body)
                target = self.redirect_target(url, response.headers.get("location", ""))
                # A read that is redirected has found its object, and needs no more.
                if method == "HEAD" or response.status not in _REDIRECTS or target is None:
                    break
                url = target
            answer = ArchiveResponse(response)
            if not answer.is_refusal or (method == "HEAD" and response.status < 400):
                return True
            if method != "PUT" and answer.item_gone:
                return False
            raise answer.error(f"{method} {first}", secrets=keys.split(":"))

    def redirect_target(self, url: str, location: str) -> str | None:
        """Return where a redirect of `url` leads if that is a host of the archive, which may get the keys; else None.

        That is the host of `url`, that of the settings, or one of its domain: `ia800.us.archive.org` for
        `s3.us.archive.org`. Not one of a domain of two labels, which may be a suffix such as `co.uk`.
        """
        try:
            target = urljoin(url, location)
            # As the library reads it that sends the request: another parser may find another host.
            own, other = parse_url(self.template.replace("{bucket}.", "").replace("{bucket}", "")), parse_url(target)
        except ValueError:
            return None
        if (own.scheme == "https" != other.scheme) or not other.netloc:
            return None
        domain = (own.host or "").partition(".")[2]
        is_name = domain.rpartition(".")[2].isalpha() and domain.count(".") >= 2
        is_own = other.netloc in (own.netloc, parse_url(url).netloc)
        return target if is_own or (is_name and other.netloc.endswith(f".{domain}")) else None


def _new_bucket(project: Project) -> dict[str, str]:
    """Return the headers with the attributes of a bucket, which the archive uses for a bucket's first object."""
    return {
        "x-archive-auto-make-bucket": "1",
        "x-archive-meta-collection": project.collection,
        "x-archive-meta-mediatype": "image",
        "x-archive-meta-noindex": "true",
    }


@dataclass(frozen=True, slots=True)
class ArchiveItem:
    """One item: the names of its uploaded files with their MD5 in hexadecimal; derived and old files are left out.

    A dark item shows no files. `written` has the time of each file's upload in seconds since 1970, where it has one.
    """

    files: Mapping[str, str]
    dark: bool = False
    written: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RemoteReader:
    """Reads from a service at `url`, which has no slash at its end.

    Every read about an item runs in the context that `reporting` returns for its bucket.
    """

    url: str
    http: ApiClient
    reporting: Reporting


class PublicArchive(RemoteReader):
    """Reads the public part of the archive."""

    @classmethod
    def of(cls, settings: Settings, *, reporting: Reporting = lambda _: nullcontext()) -> Self:
        """Return the public archive of the settings. It redirects reads to the file's server."""
        return cls(settings.archive_public_url.rstrip("/"), api_client(settings, follow_redirects=True), reporting)

    def item(self, bucket: str) -> ArchiveItem | None:
        """Return an item, or None if it does not exist; raises ArchiveUnavailable or ArchiveError."""
        url = f"{self.url}/metadata/{bucket}"
        with self.reporting(bucket):
            response = _send(self.http, "GET", url)
            if not response.ok:
                raise ArchiveResponse(response).error(f"GET {url}")
            try:
                metadata = response.json()
                if not metadata:  # They are empty for an item that does not exist.
                    return None
                if metadata.get("is_dark"):
                    return ArchiveItem({}, dark=True)
                # An error has no files either, and must not be taken for an item that has lost all of them.
                uploaded = [
                    file
                    for file in metadata["files"]
                    if file.get("source") != "derivative" and not file["name"].startswith("history/")
                ]
                files = {file["name"]: str(file.get("md5", "")) for file in uploaded}
                # `mtime` is seconds since 1970 as text; some files have none.
                written = {file["name"]: float(file["mtime"]) for file in uploaded if file.get("mtime")}
                return ArchiveItem(files, written=written)
            except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
                raise ArchiveError(f"GET {url}: not an item's metadata: {response.text[:60]!r}") from error

    def file(self, bucket: str, name: str) -> bytes | None:
        """Return a file, or None if it does not exist; raises as `item` does."""
        url = f"{self.url}/download/{bucket}/{name}"
        with self.reporting(bucket):
            response = _send(self.http, "GET", url)
            if response.ok:
                return response.body
            if response.status == 404:
                return None
            raise ArchiveResponse(response).error(f"GET {url}")


def _send(
    http: ApiClient, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> Response:
    """Send one request; raises ArchiveUnavailable where no connection was made, ArchiveError where it broke."""
    try:
        response = http.send(method, url, headers=headers, body=body)
    except FetchError as error:
        kind = ArchiveUnavailable if isinstance(error, ConnectionFailed) else ArchiveError
        raise kind(str(error)) from error
    ARCHIVE_ANSWERS.add(method, status_label(response.status))
    return response


def masked(text: str, secrets: Iterable[str]) -> str:
    """Return a server's text without the secrets that it may quote, also as HTML, JSON or part of a URL."""
    for secret in filter(None, secrets):
        for form in (secret, html.escape(secret), json.dumps(secret)[1:-1], quote(secret, safe="")):
            text = text.replace(form, "********")
    return text


class ArchiveResponse:
    """A response that may refuse the request. Its XML is searched, not parsed: it may be incomplete or hostile.

    Words are searched in the error's own message only. A gateway's error page may contain any of them.
    """

    def __init__(self, response: Response) -> None:
        self._response = response
        self._text = response.text[:_SEARCHED]
        self._parts = [self._element(name) for name in ("Code", "Message", "Resource")]
        self._code, *words = self._parts
        self._words = "\n".join(words)
        is_html = "text/html" in response.headers.get("content-type", "").lower()
        # A gateway sent it, and not S3. Many servers call an empty body HTML.
        self._is_page = bool(self._text.strip() and (is_html or _PAGE.match(self._text)))
        self._not_found = self._code in _NOT_FOUND or (response.status == 404 and not self._is_page)

    def _element(self, name: str) -> str:
        found = re.search(rf"<{name}>(.*?)</{name}>", self._text, re.DOTALL)
        return html.unescape(found[1]).strip() if found else ""

    @property
    def is_refusal(self) -> bool:
        """Whether the archive refused the request.

        A 200 with a page or an error is a refusal, too: S3 may fail after it has begun to answer a copy. The error
        may be cut off. Any other body is a success, as for MusicBrainz's own indexers.
        """
        return not self._response.ok or self._is_page or "<Error" in self._text

    @property
    def item_gone(self) -> bool:
        """Whether the item or the object does not exist."""
        return self._not_found or _ITEM_GONE in self._words

    def error(self, request: str, *, secrets: Iterable[str] = ()) -> ArchiveError:
        """Return the error to raise, with `secrets` masked: a server may quote them."""
        status, retry_after = self._response.status, self._response.retry_after(cap=MAX_RETRY_AFTER)
        if location := self._response.headers.get("location"):
            text = f"redirected to {location}"
        else:
            # The beginning of a gateway's page is markup; its title says what is wrong.
            found = ": ".join(filter(None, self._parts)) or self._element("title") or self._text
            text = " ".join(found.split())
        message = f"{request}: {status}{': ' if text else ''}{masked(text, secrets)[:_QUOTED]}"
        kind: type[ArchiveError] = ArchiveNotFound if self._not_found else ArchiveError
        if _SPAM in self._words or _DARK.search(self._words):
            kind = ArchiveRefused
        elif status in (401, 403) or self._code in _WRONG_KEYS:
            kind = ArchiveDenied
        elif status == 400:
            kind = ArchiveRefused
        elif status == 429 or self._code == "SlowDown":
            # It asks for fewer requests: where it does not say for how long, 0 stands for any time.
            kind, retry_after = ArchiveUnavailable, retry_after or 0.0
        elif status == 503:
            kind = ArchiveUnavailable
        return kind(message, retry_after)
