"""MusicBrainz's web service: what the archive is to know of a release or an event, as XML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from app.coverart.http import Client
from app.coverart.project import Project
from app.errors import FetchError, WebServiceError
from config.settings import Settings


@dataclass(frozen=True, slots=True)
class WebService:
    """Reads from the web service at `url`, which has no slash at its end."""

    url: str
    http: Client

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the web service that the settings name."""
        client = Client(
            user_agent=settings.user_agent,
            connect_timeout=settings.archive_connect_timeout,
            read_timeout=settings.archive_read_timeout,
        )
        return cls(settings.musicbrainz_ws_url.rstrip("/"), client)

    def metadata(self, project: Project, gid: str) -> bytes | None:
        """Return the XML of an entity, verbatim, or None if there is no such entity.

        Raises WebServiceError, which may be retried, for every other answer, and for one that is not XML: whatever
        is returned here ends up in the archive.
        """
        url = f"{self.url}/{project.entity}/{gid}?inc={project.inc}"
        try:
            answer = self.http.send("GET", url, headers={"accept": "application/xml"})
        except FetchError as error:
            raise WebServiceError(str(error)) from error
        if answer.status == 404:
            return None
        if not answer.ok:
            raise WebServiceError(f"GET {url}: {answer.status}: {answer.text[:200]!r}", answer.retry_after)
        kind = answer.headers.get("content-type", "")
        if "xml" not in kind or not answer.body:
            raise WebServiceError(f"GET {url}: expected XML, got {len(answer.body)} bytes of {kind!r}")
        return answer.body
