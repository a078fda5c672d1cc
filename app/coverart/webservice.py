"""MusicBrainz's web service: the description of a release or an event as XML, which the archive gets a copy of."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Self
from xml.parsers import expat

from app.coverart.archive import MAX_RETRY_AFTER, RemoteReader, Reporting, api_client
from app.coverart.project import Project
from app.errors import FetchError, WebServiceError, WebServiceUnavailable
from config.settings import Settings

#: Statuses of an overloaded service, and of a gateway before one that is away. 500 may concern one entity only.
_UNAVAILABLE = frozenset({429, 502, 503, 504})


class WebService(RemoteReader):
    """Reads from the web service."""

    @classmethod
    def of(cls, settings: Settings, *, reporting: Reporting = lambda _: nullcontext()) -> Self:
        """Return the web service of the settings."""
        return cls(settings.musicbrainz_ws_url.rstrip("/"), api_client(settings), reporting)

    def metadata(self, project: Project, gid: str) -> bytes | None:
        """Return the XML of an entity, unchanged, or None if the entity does not exist.

        Raises WebServiceUnavailable where the service did not answer, and WebServiceError for every other response,
        both retryable. A body that is not a complete `metadata` document is an error, too, since the result is written
        to the archive.
        """
        url = f"{self.url}/{project.entity}/{gid}?inc={project.inc}"
        with self.reporting(project.bucket(gid)):
            try:
                response = self.http.send("GET", url, headers={"accept": "application/xml"})
            except FetchError as error:
                raise WebServiceUnavailable(str(error)) from error
            if response.status == 404:
                return None
            if not response.ok:
                kind = WebServiceUnavailable if response.status in _UNAVAILABLE else WebServiceError
                retry_after = response.retry_after(cap=MAX_RETRY_AFTER)
                raise kind(f"GET {url}: {response.status}: {response.text[:200]!r}", retry_after)
            content_type = response.headers.get("content-type", "")
            if "xml" not in content_type.lower() or not response.body:
                raise WebServiceError(f"GET {url}: expected XML, got {len(response.body)} bytes of {content_type!r}")
            if problem := _problem(response.body):
                raise WebServiceError(f"GET {url}: expected complete XML, got {problem}: {response.text[:200]!r}")
            return response.body


def _problem(body: bytes) -> str:
    """Return what is wrong with an XML document: empty if it is complete and its root is `metadata`.

    A body that ends with the connection may be cut anywhere, and an error may have the status 200.
    """
    names: list[str] = []
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = lambda name, _attributes: names.append(name)
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, LookupError, ValueError) as error:  # The latter two: an encoding that Python lacks.
        return str(error)
    root = names[0].rpartition(" ")[2]
    return "" if root == "metadata" else f"root {root!r}"
