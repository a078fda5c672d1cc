"""The Internet Archive's dialect of S3: LOW authorisation, its own headers, and errors told apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Self

import requests
from pydantic import SecretStr
from requests.auth import AuthBase

from app.coverart.http import Answer, Client
from app.coverart.project import Project
from app.coverart.refusal import Refusal
from app.errors import ArchiveError, ArchiveRefused, ArchiveUnavailable, ConnectionFailed, FetchError, ResponseTimeout
from config.settings import Settings

_KEEP_OLD = {"x-archive-keep-old-version": "1"}
_CASCADE = {"x-archive-cascade-delete": "1"}
#: Characters of a header value that a key may have (RFC 9110 section 5.5), without space and colon.
_KEY = re.compile(r"[!-9;-~]*")


class Archive:
    """Puts, copies and deletes objects. It holds no connection and no state: one serves all threads and forks."""

    def __init__(
        self,
        url: str,
        *,
        access_key: SecretStr,
        secret_key: SecretStr,
        user_agent: str,
        connect_timeout: float = 10.0,
        read_timeout: float = 30.0,
    ) -> None:
        """`url` has `{bucket}` in its host or path, and `{file}`; raises ArchiveRefused for keys no header can hold."""
        self._url = url
        self._auth = _Low(access_key, secret_key)
        self._http = Client(
            user_agent=user_agent, connect_timeout=connect_timeout, read_timeout=read_timeout, auth=self._auth
        )

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the archive that the settings name."""
        return cls(
            settings.archive_url,
            access_key=settings.archive_access_key,
            secret_key=settings.archive_secret_key,
            user_agent=settings.user_agent,
            connect_timeout=settings.archive_connect_timeout,
            read_timeout=settings.archive_read_timeout,
        )

    def __repr__(self) -> str:
        return f"Archive({self._url!r})"

    def put(
        self, project: Project, bucket: str, file: str, body: bytes, *, content_type: str, keep_old: bool = False
    ) -> None:
        """Write an object and make its bucket. `keep_old` keeps what was there below `history/`.

        Raises ArchiveUnavailable, ArchiveRefused or ArchiveError, as every method here.
        """
        headers = {"content-type": content_type, **(_KEEP_OLD if keep_old else {}), **_new_bucket(project)}
        self._done("PUT", bucket, file, headers=headers, body=body)

    def copy(self, project: Project, source: tuple[str, str], target: tuple[str, str]) -> None:
        """Copy an object within the archive, from and to (bucket, file); raises ArchiveNotFound for no source."""
        headers = {"x-amz-copy-source": f"/{source[0]}/{source[1]}", **_KEEP_OLD, **_new_bucket(project)}
        self._done("PUT", *target, headers=headers)

    def delete(self, bucket: str, file: str) -> bool:
        """Delete an object and what was derived of it; return whether it was there, as far as the archive says.

        An item that "cannot be retrieved" has nothing to delete either.
        """
        answer = self._send("DELETE", bucket, file, headers={**_KEEP_OLD, **_CASCADE})
        refusal = Refusal(answer)
        if not refusal.refuses:
            return True
        if refusal.item_gone:
            return False
        raise self._failure("DELETE", bucket, file, answer)

    def exists(self, bucket: str, file: str) -> bool:
        """Return whether an object is there. A redirect says so too: the archive redirects reads to where it is."""
        answer = self._send("HEAD", bucket, file)
        if answer.status < 400:
            return True
        if answer.status == 404:
            return False
        raise self._failure("HEAD", bucket, file, answer)

    def url(self, bucket: str, file: str) -> str:
        """Return the URL of an object."""
        return self._url.replace("{bucket}", bucket).replace("{file}", file)

    def _done(
        self, method: str, bucket: str, file: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> None:
        answer = self._send(method, bucket, file, headers=headers, body=body)
        if Refusal(answer).refuses:
            raise self._failure(method, bucket, file, answer)

    def _send(
        self, method: str, bucket: str, file: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Answer:
        try:
            return self._http.send(method, self.url(bucket, file), headers=headers, body=body)
        except ConnectionFailed as error:
            raise ArchiveUnavailable(str(error)) from error
        except (ResponseTimeout, FetchError) as error:
            raise ArchiveError(str(error)) from error

    def _failure(self, method: str, bucket: str, file: str, answer: Answer) -> ArchiveError:
        return Refusal(answer).error(f"{method} {self.url(bucket, file)}", secrets=self._auth.secrets())


class _Low(AuthBase):
    """`Authorization: LOW access:secret`, added when a request is about to be sent."""

    def __init__(self, access_key: SecretStr, secret_key: SecretStr) -> None:
        for name, key in (("ARCHIVE_ACCESS_KEY", access_key), ("ARCHIVE_SECRET_KEY", secret_key)):
            # Found out here, since the library would quote the whole header in its error.
            if not _KEY.fullmatch(key.get_secret_value()):
                raise ArchiveRefused(f"{name}: expected visible ASCII characters without colon and space")
        self._keys = (access_key, secret_key)

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        access, secret = self.secrets()
        request.headers["authorization"] = f"LOW {access}:{secret}"
        return request

    def secrets(self) -> tuple[str, ...]:
        """Return what must not be shown."""
        return tuple(key.get_secret_value() for key in self._keys)


def _new_bucket(project: Project) -> dict[str, str]:
    """Return the headers that a bucket gets its attributes from, should this be its first object."""
    return {
        "x-archive-auto-make-bucket": "1",
        "x-archive-meta-collection": project.collection,
        "x-archive-meta-mediatype": "image",
        "x-archive-meta-noindex": "true",
    }
