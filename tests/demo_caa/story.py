"""The demo from beginning to end: insert, change, merge and delete in SQL, a retry, a death and a replay."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kombu import Connection

from app.coverart.project import COVER_ART, LISTING_FILE
from app.errors import DemoFailed
from config.routes import art_routes
from config.settings import ROOT, Settings
from demo.supervisor import Supervisor
from tests.demo_caa.comparison import Row, compare
from tests.demo_caa.screen import CaaScreen, DemoEvent, Events, short
from tests.demo_caa.tap import MessageTap
from tests.servers.archive import ArchiveServer, error
from tests.servers.musicbrainz import changes, database
from tests.servers.musicbrainz_ws import MusicBrainz

#: The three releases, and the ids of the images that each begins with.
KEPT, MERGED, DELETED = (f"{name}000000-0000-4000-8000-000000000001" for name in ("a1", "b2", "c3"))
_TITLES = {KEPT: "Blue Train", MERGED: "Blue Train (reissue)", DELETED: "Giant Steps"}
_IMAGES = {KEPT: (101, 102), MERGED: (201,), DELETED: (301,)}
#: The path of the listing that the archive refuses for a while.
_LISTING = f"/{COVER_ART.bucket(KEPT)}/{LISTING_FILE}"

#: Seconds between two looks, of quiet at the end of a chapter (beyond the window), and without any event at all.
_PAUSE, _QUIET, _PATIENCE = 0.05, 0.5, 120.0
#: What the database has not sent, or not seen end; and every event.
_UNSENT = (
    "SELECT FROM amqp.outbox UNION ALL SELECT FROM artwork_indexer.event_queue WHERE state IN ('queued', 'running')"
)
_EVENTS = "SELECT id, action::text, state::text FROM artwork_indexer.event_queue ORDER BY id"

#: An answer that concerns one item alone. Others might be an outage, of which the first ones cost nothing.
_REFUSED = error(400, "InvalidRequest", "The request is invalid.")

#: Seconds of one command.
_COMMAND_TIMEOUT = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Everything that the story plays on."""

    settings: Settings
    database_url: str
    archive: ArchiveServer
    web_service: MusicBrainz
    supervisor: Supervisor
    events: Events
    screen: CaaScreen


@dataclass(slots=True)
class CaaStory:
    """One run. `retried` counts messages that failed, waited in the broker and succeeded; `dead` those that died."""

    stage: Stage
    tap: MessageTap
    database: changes.Db
    pictures: dict[int, bytes] = field(default_factory=dict)
    retried: int = 0
    dead: int = 0
    replayed: int = 0

    def tell(self) -> list[Row]:
        """Play all chapters; return the rows of the final comparison."""
        self._await_worker()
        artist = self._insert()
        self._change()
        self._rename(artist)
        self._replay()
        self._merge()
        self._delete()
        self._use_event_queue()
        return self.rows()

    def rows(self) -> list[Row]:
        """Return what each item should be and is."""
        stage = self.stage
        return compare(stage.database_url, stage.archive, list(_TITLES), self.pictures)

    def _insert(self) -> int:
        self._heading("1. Three releases get their images")
        self._sql("INSERT an artist, 3 releases, 4 images; users have uploaded the files")
        with self.database.transaction():
            artist = changes.add_artist(self.database, "J. Coltrane")
            for gid, title in _TITLES.items():
                changes.add_release(self.database, title, artist, gid=gid)
                self._publish_title(gid, title)
                for place, image in enumerate(_IMAGES[gid], 1):
                    self.pictures[image] = f"picture {image}".encode()
                    file = COVER_ART.image_file(gid, image, "jpg")
                    self.stage.archive.upload(COVER_ART.bucket(gid), file, self.pictures[image])
                    changes.add_cover(self.database, gid, image, types=(place,))
        self._settle("the three items")
        return artist

    def _change(self) -> None:
        self._heading("2. A release is renamed, and the archive fails once")
        self._fault("the next PUT of this index.json is answered with 400")
        self.stage.archive.faults.add(_REFUSED, method="PUT", path=_LISTING)
        title = "Blue Train (1957)"
        self._sql(f"UPDATE release {KEPT}: another name; UPDATE image 101: a comment")
        with self.database.transaction():
            self._publish_title(KEPT, title)
            changes.rename(self.database, COVER_ART, KEPT, title)
            changes.comment_on(self.database, COVER_ART, 101, "first pressing")
        self._settle("the renamed release")

    def _rename(self, artist: int) -> None:
        self._heading("3. An artist is renamed, and the archive refuses one release for a while")
        self._fault("every PUT of this index.json is answered with 400")
        self.stage.archive.faults.add(_REFUSED, method="PUT", path=_LISTING, times=1_000_000)
        self._sql("UPDATE artist: another name; all three releases are theirs")
        with self.database.transaction():
            changes.rename_artist(self.database, artist, "John Coltrane")
        self._settle("the death of a message", lambda: self._depths()[-1] == 1)

    def _replay(self) -> None:
        self._heading("4. The archive works again, and the dead message is replayed")
        [letter] = json.loads(self._perennial("dead", "list", "--json"))
        self.stage.screen.event(
            DemoEvent("dead", short(f"{letter['id'][:8]}: {letter['attempts']} runs, {letter['error']}"))
        )
        self._fault("over: the archive answers as it should")
        self.stage.archive.faults.clear()
        text = json.loads(self._perennial("dead", "replay", letter["id"][:8], "--canary", "--json"))
        self.replayed = len(text["replayed"])
        self._settle("the replayed release")

    def _merge(self) -> None:
        self._heading("5. One release is merged into another")
        self._sql(f"merge {MERGED} into {KEPT}")
        with self.database.transaction():
            changes.merge(self.database, COVER_ART, MERGED, KEPT)
        self._settle("the merged release")

    def _delete(self) -> None:
        self._heading("6. A release is deleted")
        self._sql(f"DELETE release {DELETED}")
        with self.database.transaction():
            changes.delete(self.database, COVER_ART, DELETED)
        self._settle("the deleted release")

    def _use_event_queue(self) -> None:
        self._heading("7. The same by the event queue, as MusicBrainz works since 2024")
        self._sql("the triggers write rows of artwork_indexer.event_queue from now on, and no messages")
        database.queue_events(self.stage.database_url)
        self._sql("DELETE image 201; its row must be completed before that of the new index.json runs")
        del self.pictures[201]
        changes.remove_art(self.database, COVER_ART, 201)
        self._settle("the release with one image less")
        for number, action, state in self.database.execute(_EVENTS):
            self.stage.screen.event(DemoEvent("event", f"{number}: {action}, {state}"))

    def _publish_title(self, gid: str, title: str) -> None:
        """Have the web service tell a release's name, as it would once the transaction is over."""
        self.stage.web_service.set_entity(COVER_ART.entity, gid, title)

    def _heading(self, text: str) -> None:
        self.stage.screen.heading(text)

    def _sql(self, text: str) -> None:
        self.stage.screen.event(DemoEvent("SQL", short(text)))

    def _fault(self, text: str) -> None:
        self.stage.screen.event(DemoEvent("fault", text))

    def _perennial(self, *arguments: str) -> str:
        """Run the command as a user does; return what it printed, or raise DemoFailed."""
        self.stage.screen.event(DemoEvent("$", f"perennial {' '.join(arguments)}"))
        done = subprocess.run(
            [sys.executable, "-m", "app.cli.main", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT,
            check=False,
        )
        if done.returncode:
            raise DemoFailed(f"perennial {' '.join(arguments)} failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def _settle(self, goal: str, condition: Callable[[], bool] | None = None) -> None:
        """Tell what happens until nothing does and the condition holds: by default, that all is as it should be."""
        reached = condition or (lambda: all(row.equal for row in self.rows()))
        began, quiet = time.monotonic(), self.stage.settings.art_window + _QUIET
        while True:
            self._show()
            silent = time.monotonic() - max(began, self.stage.events.last)
            if silent > quiet and self._is_idle() and reached():
                break
            if silent > _PATIENCE:
                self.stage.screen.table(self.rows())
                raise DemoFailed(
                    f"waited for {goal}: nothing happened for {_PATIENCE:.0f} s; {self.stage.supervisor.last_lines()}"
                )
            self._pause()
        self._show()
        self._count()

    def _count(self) -> None:
        """Count what failed in this chapter: a message is known by its key and its body."""
        failed = set(self.tap.failed)
        self.retried += len(set(self.tap.retried) - failed)
        self.dead += len(failed)
        self.tap.retried.clear()
        self.tap.failed.clear()

    def _show(self) -> None:
        for event, count in self.stage.events.take():
            self.stage.screen.event(event, count)

    def _is_idle(self) -> bool:
        """Tell whether nothing is in the outbox, the event queue, the work queues, or waiting for a retry."""
        unsent = self.database.execute(_UNSENT).fetchone()
        return unsent is None and not any(self._depths()[:-1])

    def _depths(self) -> list[int]:
        """Return the depths of the work queues, of the retry queue, and of the dead set."""
        names = [
            *(route.queue for route in art_routes(COVER_ART.prefix)),
            f"{COVER_ART.prefix}.retry",
            f"{COVER_ART.prefix}.failed",
        ]
        return [declared.message_count for declared in self._declared(names)]

    def _declared(self, names: list[str]) -> list[Any]:
        with Connection(self.stage.settings.broker, connect_timeout=5) as connection, connection.channel() as channel:
            return [channel.queue_declare(name, passive=True) for name in names]

    def _await_worker(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        queues = [route.queue for route in art_routes(COVER_ART.prefix)]
        while not all(declared.consumer_count for declared in self._declared(queues)):
            if time.monotonic() > deadline:
                raise DemoFailed(f"waited {_PATIENCE:.0f} s for a worker; {self.stage.supervisor.last_lines()}")
            self._pause()

    def _pause(self) -> None:
        self.stage.supervisor.check()
        threading.Event().wait(_PAUSE)
