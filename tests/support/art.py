"""The whole of cover art in a test: MusicBrainz's database and web service, a relay, a worker, the archive."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import redis
import requests

from app.coverart.project import COVER_ART, Project
from app.private_services import Urls
from config.settings import Settings
from tests.servers.archive import ACCESS_KEY, SECRET_KEY, ArchiveServer
from tests.servers.musicbrainz import changes, database, relay
from tests.servers.musicbrainz_ws import MusicBrainz
from tests.servers.site import Request
from tests.support.broker import Broker
from tests.support.corner import environment_of, own_vhost, settings_for
from tests.support.worker import Worker, start_module, worker

#: Retries after 300 ms instead of 4 hours, equal messages gathered for 200 ms, an outage of a second.
BRIEF = {"ART_RETRY_MS": "300", "ART_WINDOW": "0.2", "RETRY_TIMEOUT_MS": "1000"}

#: What HTTP itself needs, and says nothing of a job.
_TRANSPORT = {"host", "accept-encoding", "connection", "content-length"}

#: Method, URL without its host, headers, body.
Sent = tuple[str, str, dict[str, str], bytes]


@dataclass(frozen=True)
class ArtSystem:
    """What a test sees. `database` commits each statement at once."""

    database: psycopg.Connection[tuple[Any, ...]]
    archive: ArchiveServer
    web_service: MusicBrainz
    broker: Broker
    environment: Mapping[str, str]
    folder: Path

    @contextmanager
    def worker(
        self, name: str = "coverart", *, projects: tuple[Project, ...] = (COVER_ART,), **options: Any
    ) -> Iterator[Worker]:
        """Run a worker on the three queues of each project for the block."""
        queues = [queue for project in projects for queue in queues_of(project)]
        with worker(self.environment, self.folder / f"{name}.log", queues=queues, **options) as running:
            yield running

    @contextmanager
    def reader(self, name: str = "reader") -> Iterator[Worker]:
        """Run the process that publishes the events of the database, for the block."""
        running = start_module(self.environment, self.folder / f"{name}.log", "app.messages.art_event_reader")
        try:
            yield running
        finally:
            if running.process.poll() is None:
                running.leave()

    @property
    def queues(self) -> list[str]:
        """The work queues."""
        return queues_of(COVER_ART)

    @property
    def failed(self) -> str:
        """The dead set."""
        return f"{COVER_ART.prefix}.failed"

    def add_releases(self, gids: Sequence[str]) -> None:
        """Add releases with an image each, numbered from 1 on; their messages or events wait to be published."""
        artist = changes.add_artist(self.database, "Various Artists")
        for number, gid in enumerate(gids, start=1):
            changes.add_release(self.database, f"Volume {number}", artist, gid=gid)
            self.web_service.set_entity("release", gid, f"Volume {number}")
            changes.add_cover(self.database, gid, number)

    def post(self, kind: str, body: bytes, **properties: Any) -> None:
        """Post a plain message as MusicBrainz would."""
        self.broker.post(body, exchange=COVER_ART.prefix, key=kind, **properties)

    def listing(self, gid: str) -> Any:
        """Return the `index.json` of an item, or None."""
        data = self.archive.files(COVER_ART.bucket(gid)).get("index.json")
        return None if data is None else json.loads(data)

    def images(self, gid: str) -> list[int]:
        """Return the ids of the images in an item's listing; none where there is no listing."""
        return [image["id"] for image in (self.listing(gid) or {"images": []})["images"]]

    def requests(self) -> list[Request]:
        """Return the requests to both servers, in order of arrival."""
        return sorted([*self.archive.requests, *self.web_service.requests], key=lambda request: request.at)

    def on_broker(self, kind: str) -> list[dict[str, Any]]:
        """Return the `queues`, `exchanges` or `bindings` of the management API."""
        vhost = quote(urlsplit(self.environment["BROKER_URL"]).path.removeprefix("/"), safe="")
        answer = requests.get(f"{self.environment['BROKER_API_URL'].rstrip('/')}/{kind}/{vhost}", timeout=30)
        answer.raise_for_status()
        answered: list[dict[str, Any]] = answer.json()
        return answered

    def waiting(self) -> dict[str, int]:
        """Return how many messages are ready in each queue of the project but the dead set, empty ones left out."""
        names = [queue["name"] for queue in self.on_broker("queues")]
        names = [name for name in names if name.startswith(f"{COVER_ART.prefix}.") and name != self.failed]
        return {name: depth for name, depth in zip(names, self.broker.depths(names), strict=True) if depth}


def queues_of(project: Project) -> list[str]:
    """Return the names of a project's work queues."""
    return [f"{project.prefix}.{kind}" for kind in ("index", "move", "delete")]


def sent(request: Request) -> Sent:
    """Return a request as what a job is about."""
    headers = {name: value for name, value in request.headers.items() if name not in _TRANSPORT}
    return request.method, request.path, headers, request.body


@contextmanager
def art_system(
    settings: Settings,
    environment: Mapping[str, str],
    database_url: str,
    folder: Path,
    producer: str = "outbox",
    **more: str,
) -> Iterator[ArtSystem]:
    """Run everything but worker and event reader for the block; no log may have the archive's secret afterwards."""
    relaying = relay.running(database_url, settings.broker, poll=0.1) if producer == "outbox" else nullcontext()
    with (
        ArchiveServer() as archive,
        MusicBrainz() as web_service,
        psycopg.connect(database_url, autocommit=True) as editor,
        relaying,
    ):
        places = {
            "MUSICBRAINZ_URL": database_url,
            "MUSICBRAINZ_WS_URL": web_service.ws_url,
            "ARCHIVE_URL": archive.path_url,
            "ARCHIVE_PUBLIC_URL": archive.public_url,
            "ARCHIVE_KEYS": f"{ACCESS_KEY}:{SECRET_KEY}",
        }
        places |= {"ART_EVENT_QUEUE_URL": database_url} if producer == "event_queue" else {}
        ours = {**environment, **places, **BRIEF, **more}
        yield ArtSystem(editor, archive, web_service, Broker(settings.broker), ours, folder)
    for log in folder.glob("*.log"):
        assert SECRET_KEY not in log.read_text(errors="replace"), f"{log.name} has the secret key"


@contextmanager
def art_corner(
    services: Urls, template: tuple[str, str], folder: Path, producer: str = "outbox", **more: str
) -> Iterator[ArtSystem]:
    """Run everything but the worker for the block, with a vhost, a database and an empty Redis of its own."""
    with (
        own_vhost(services) as broker_url,
        database.copy_of(*template) as database_url,
        redis.Redis.from_url(services.redis_url) as client,
    ):
        client.flushdb()
        settings = settings_for(folder, broker_url, services.redis_url, services.broker_api_url)
        with art_system(settings, environment_of(settings), database_url, folder, producer, **more) as system:
            yield system
        client.flushdb()
