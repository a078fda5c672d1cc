"""The whole of cover art in a test: MusicBrainz's database and web service, a relay, a worker, the archive."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from app.coverart.project import COVER_ART, Project
from app.demo.musicbrainz import relay
from config.settings import Settings
from tests.servers.archive import ACCESS_KEY, SECRET_KEY, ArchiveServer
from tests.servers.musicbrainz_ws import MusicBrainz
from tests.support.broker import Broker
from tests.support.worker import Worker, worker

#: Retries after 300 ms instead of 4 hours, equal messages gathered for 200 ms, an outage of a second.
BRIEF = {"ART_RETRY_MS": "300", "ART_WINDOW": "0.2", "ART_OUTAGE_PAUSE": "1"}


@dataclass(frozen=True)
class ArtSystem:
    """What a test sees. `database` commits each statement at once."""

    database: psycopg.Connection[tuple[Any, ...]]
    archive: ArchiveServer
    web_service: MusicBrainz
    broker: Broker
    environment: Mapping[str, str]
    folder: Path
    project: Project = COVER_ART

    @contextmanager
    def worker(self, name: str = "coverart", **options: Any) -> Iterator[Worker]:
        """Run a worker on the three queues for the block."""
        with worker(self.environment, self.folder / f"{name}.log", queues=self.queues, **options) as running:
            yield running

    @property
    def queues(self) -> list[str]:
        """The work queues."""
        return [f"{self.project.prefix}.{kind}" for kind in ("index", "move", "delete")]

    def post(self, kind: str, body: bytes, **properties: Any) -> None:
        """Post a plain message as MusicBrainz would."""
        self.broker.post(body, exchange=self.project.prefix, key=kind, **properties)

    def listing(self, gid: str) -> Any:
        """Return the `index.json` of an item, or None."""
        data = self.archive.files(self.project.bucket(gid)).get("index.json")
        return None if data is None else json.loads(data)

    def images(self, gid: str) -> list[int]:
        """Return the ids of the images in an item's listing; none where there is no listing."""
        return [image["id"] for image in (self.listing(gid) or {"images": []})["images"]]


@contextmanager
def art_system(
    settings: Settings, environment: Mapping[str, str], database_url: str, folder: Path, **more: str
) -> Iterator[ArtSystem]:
    """Run everything but the worker for the block."""
    with (
        ArchiveServer() as archive,
        MusicBrainz() as web_service,
        psycopg.connect(database_url, autocommit=True) as database,
        relay.running(database_url, settings.broker, poll=0.1),
    ):
        places = {
            "MUSICBRAINZ_URL": database_url,
            "MUSICBRAINZ_WS_URL": web_service.ws_url,
            "ARCHIVE_URL": archive.path_url,
            "ARCHIVE_PUBLIC_URL": archive.public_url,
            "ARCHIVE_ACCESS_KEY": ACCESS_KEY,
            "ARCHIVE_SECRET_KEY": SECRET_KEY,
        }
        ours = {**environment, **places, **BRIEF, **more}
        yield ArtSystem(database, archive, web_service, Broker(settings.broker), ours, folder)
