"""MusicBrainz's web service: what the archive is to know of a release or an event, as XML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from xml.parsers import expat

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
        return cls(settings.musicbrainz_ws_url.rstrip("/"), Client.of(settings))

    def metadata(self, project: Project, gid: str) -> bytes | None:
        """Return the XML of an entity, verbatim, or None if there is no such entity.

        Raises WebServiceError, which may be retried, for every other answer, and for one that is not a whole
        `metadata` document: whatever is returned here ends up in the archive.
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
        if complaint := _complaint(answer.body):
            raise WebServiceError(f"GET {url}: expected whole XML, got {complaint}: {answer.text[:200]!r}")
        return answer.body


def _complaint(body: bytes) -> str:
    """Return what is wrong with an XML document, or nothing if it is whole and its root is `metadata`.

    One whose end is told by the end of the connection may be cut off anywhere, and an error may come as 200.
    """
    names: list[str] = []
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = lambda name, _attributes: names.append(name)
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        return str(error)
    root = names[0].rpartition(" ")[2]
    return "" if root == "metadata" else f"root {root!r}"
