"""MusicBrainz's web service as far as it describes releases and events: XML for those it knows, else 404."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from tests.servers.faults import Faults
from tests.servers.site import Answer, Request, Site, failure, reply

XML = "application/xml; charset=utf-8"
_NAMESPACE = "http://musicbrainz.org/ns/mmd-2.0#"
_INC = {"release": "artists", "event": "artist-rels place-rels"}


def metadata(entity: str, gid: str, title: str) -> bytes:
    """Return the XML of an entity; its bytes are what a copy of it is compared with."""
    name = "title" if entity == "release" else "name"
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<metadata xmlns="{_NAMESPACE}">'
        f'<{entity} id="{gid}"><{name}>{escape(title)}</{name}></{entity}></metadata>'
    ).encode()


class MusicBrainz(Site):
    """`with MusicBrainz() as ws: ws.set_entity("release", gid, "Title")`; `ws.faults` has it answer otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.faults = Faults()
        self._entities: dict[tuple[str, str], bytes] = {}

    @property
    def ws_url(self) -> str:
        """What the web service's URLs start with."""
        return self.at("/ws/2")

    def set_entity(self, entity: str, gid: str, title: str) -> bytes:
        """Add or rename an entity, and return the XML that is sent from now on."""
        self._entities[entity, gid] = metadata(entity, gid, title)
        return self._entities[entity, gid]

    def remove_entity(self, entity: str, gid: str) -> None:
        """Forget an entity."""
        self._entities.pop((entity, gid), None)

    def route(self, request: Request) -> Answer:
        """Return the XML that a request asks for, 400 for what may not be included, or 404."""
        if fault := self.faults.take(request):
            return fault
        url = urlsplit(request.path)
        entity, _, gid = url.path.removeprefix("/ws/2/").partition("/")
        if entity not in _INC or (entity, gid) not in self._entities:
            return _error(404, "Not Found")
        if parse_qs(url.query).get("inc") != [_INC[entity]]:
            return _error(400, f"not a valid inc parameter for the {entity} resource")
        return reply(self._entities[entity, gid], content_type=XML)


def busy(retry_after: str = "5") -> Answer:
    """Answer that too many requests come in."""
    return failure(503, retry_after=retry_after)


def _error(status: int, text: str) -> Answer:
    return reply(f"<error><text>{escape(text)}</text></error>", status=status, content_type=XML)
