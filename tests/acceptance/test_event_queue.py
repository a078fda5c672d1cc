"""The event queue of MusicBrainz's database, emptied by a reader and a worker: the exact requests of each change."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, LiteralString

import pytest

from app.coverart.event_table import MAX_ATTEMPTS
from app.coverart.project import COVER_ART, EVENT_ART, Entity, Image, Project, listing
from app.private_services import Urls
from config.settings import Settings
from tests.servers import archive as stand_in
from tests.servers.archive import ACCESS_KEY, SECRET_KEY
from tests.servers.musicbrainz import changes
from tests.servers.musicbrainz_ws import metadata
from tests.support.art import ArtSystem, Sent, art_corner, sent
from tests.support.command import perennial
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

AGENT = {"user-agent": Settings.model_fields["user_agent"].default}
LOW = AGENT | {"authorization": f"LOW {ACCESS_KEY}:{SECRET_KEY}"}
KEEP = {"x-archive-keep-old-version": "1"}
CASCADE = {"x-archive-cascade-delete": "1"}
TITLE = "Kind of Blue"
REFUSED = stand_in.error(400, "InvalidRequest", "The request is invalid.")


#: Action, state and attempts of an event.
Row = tuple[str, str, int]


@dataclass
class Scene:
    """An entity with an image, and one without; `expected` are the requests that its change must cause."""

    art: ArtSystem
    project: Project
    number: int
    one: str = field(default_factory=lambda: str(uuid.uuid4()))
    two: str = field(default_factory=lambda: str(uuid.uuid4()))
    image: Image = field(init=False)
    expected: list[Sent] = field(default_factory=list)
    #: The rows that the change leaves, and the actions of the parents of each.
    ended: list[Row] = field(default_factory=lambda: [("index", "completed", 1)])
    parents: list[list[str]] = field(default_factory=lambda: [[]])

    def set_up(self) -> None:
        db = self.art.database
        artist = changes.add_artist(db, "Miles Davis")
        for gid in (self.one, self.two):
            if self.project == COVER_ART:
                changes.add_release(db, TITLE, artist, gid=gid)
            else:
                changes.add_event(db, TITLE, gid=gid)
            self.art.web_service.set_entity(self.project.entity, gid, TITLE)
        edit = changes.add_art(db, self.project, self.one, self.number, types=(1,))
        kind = "Front" if self.project == COVER_ART else "Poster"
        self.image = Image(self.number, "jpg", "", edit, approved=True, front=True, back=False, types=(kind,))
        self.art.archive.upload(f"mbid-{self.one}", self.file(self.one), b"picture")

    def file(self, gid: str) -> str:
        return self.project.image_file(gid, self.number, "jpg")

    def indexed(self, gid: str, *images: Image) -> None:
        """Expect a listing and the metadata."""
        bucket, made = f"/mbid-{gid}", LOW | self._new_item()
        json_type, xml_type = ({"content-type": f"application/{kind}; charset=utf-8"} for kind in ("json", "xml"))
        body, xml = listing(self.project, Entity(gid, images)), metadata(self.project.entity, gid, TITLE)
        query = f"/ws/2/{self.project.entity}/{gid}?inc={self.project.inc}"
        self.expected += [
            ("PUT", f"{bucket}/index.json", made | json_type | KEEP, body),
            ("GET", query, AGENT | {"accept": "application/xml"}, b""),
            ("PUT", f"{bucket}/{self.project.metadata_file(gid)}", made | xml_type, xml),
        ]

    def copied(self) -> None:
        source = {"x-amz-copy-source": f"/mbid-{self.one}/{self.file(self.one)}"}
        path = f"/mbid-{self.two}/{self.file(self.two)}"
        self.expected.append(("PUT", path, LOW | source | KEEP | self._new_item(), b""))

    def deleted(self, file: str) -> None:
        self.expected.append(("DELETE", f"/mbid-{self.one}/{file}", LOW | KEEP | CASCADE, b""))

    def rows(self) -> list[Row]:
        """Return the events of this scene, in their order."""
        return [(action, state, attempts) for action, state, attempts in self._select("action, state, attempts")]

    def has_rows(self, expected: list[Row]) -> bool:
        return self.rows() == expected

    def parents_found(self) -> list[list[str]]:
        """Return the actions of the parents of each event of this scene."""
        actions = dict(self._select("id, action"))
        return [[actions[parent] for parent in parents or ()] for (parents,) in self._select("depends_on")]

    def reasons(self) -> list[list[str]]:
        """Return the reasons of the failures of each event of this scene."""
        table = "artwork_indexer.event_failure_reason"
        found = self._select(f"ARRAY(SELECT failure_reason FROM {table} WHERE event = id ORDER BY {table}.created)")
        return [reasons for (reasons,) in found]

    def because_of_first(self) -> str:
        """Return the reason of an event that failed with the first one of this scene."""
        [first, *_] = self._select("id")
        return f"This event was marked as failed because an event it depended on ({first[0]}) had failed."

    def _select(self, columns: LiteralString) -> list[tuple[Any, ...]]:
        return self.art.database.execute(
            f"SELECT {columns} FROM artwork_indexer.event_queue WHERE message::text LIKE ANY(%s) ORDER BY id",
            ([f"%{self.one}%", f"%{self.two}%"],),
        ).fetchall()

    def update(self, assignment: str, where: str = "true") -> None:
        """Change the rows of this scene as an operator does, and wake the reader."""
        self.art.database.execute(
            f"UPDATE artwork_indexer.event_queue SET {assignment} WHERE {where} AND message::text LIKE ANY(%s)",
            ([f"%{self.one}%", f"%{self.two}%"],),
        )
        self.art.database.execute("NOTIFY artwork_indexer_event_queue")

    def _new_item(self) -> dict[str, str]:
        return {
            "x-archive-auto-make-bucket": "1",
            "x-archive-meta-collection": "coverartarchive" if self.project == COVER_ART else "eventartarchive",
            "x-archive-meta-mediatype": "image",
            "x-archive-meta-noindex": "true",
        }


def insert_art(scene: Scene) -> None:
    edit = changes.add_art(scene.art.database, scene.project, scene.one, scene.number + 1, comment="page 1")
    page = Image(scene.number + 1, "jpg", "page 1", edit, approved=True, front=False, back=False, types=())
    scene.indexed(scene.one, scene.image, page)


def delete_art(scene: Scene) -> None:
    changes.remove_art(scene.art.database, scene.project, scene.number)
    scene.deleted(scene.file(scene.one))
    scene.indexed(scene.one)
    scene.ended = [("delete_image", "completed", 1), ("index", "completed", 1)]
    scene.parents = [[], ["delete_image"]]


def merge_with_failing_copy(scene: Scene) -> None:
    """Merge an entity whose listing was about to be written; the copy is refused, and it is its last attempt."""
    target = f"/mbid-{scene.two}/{scene.file(scene.two)}"
    scene.art.archive.faults.add(REFUSED, method="PUT", path=target)
    with scene.art.database.transaction():
        changes.comment_on(scene.art.database, scene.project, scene.number, "x")
        changes.merge(scene.art.database, scene.project, scene.one, scene.two)
        scene.update("attempts = 4, last_updated = now() - interval '1 day'", "action = 'copy_image'")
    scene.copied()
    failed = [
        ("copy_image", "failed", 5),
        ("delete_image", "failed", 0),
        ("index", "failed", 0),
        ("deindex", "failed", 0),
    ]
    eventually(lambda: scene.rows() == failed, f"the copy failed with all that depends on it: {scene.rows()}")
    [copy_reason], *others = scene.reasons()
    assert "400" in copy_reason
    assert others == [[scene.because_of_first()]] * 3
    # The operator takes away what was in the way.
    scene.update("attempts = 0, state = 'queued'", "action = 'copy_image'")
    scene.copied()
    scene.deleted(scene.file(scene.one))
    eventually(lambda: scene.rows()[1][1] == "completed", "the image is moved")
    # Listing and deletion depend on the moved image only: either may come first.
    scene.indexed(scene.two, replace(scene.image, comment="x"))
    scene.deleted("index.json")
    scene.ended = [(action, "completed", 1) for action in ("copy_image", "delete_image", "index", "deindex")]
    scene.parents = [[], ["copy_image"], ["delete_image"], ["delete_image"]]


def delete_with_art(scene: Scene) -> None:
    with scene.art.database.transaction():
        changes.comment_on(scene.art.database, scene.project, scene.number, "never seen")
        changes.delete(scene.art.database, scene.project, scene.one)
    scene.deleted(scene.file(scene.one))
    scene.deleted("index.json")
    scene.ended = [("delete_image", "completed", 1), ("deindex", "completed", 1)]
    scene.parents = [[], []]


#: The changes whose events differ. Whatever else changes an entity queues an `index` as a new image does.
SCENARIOS: dict[str, tuple[Project, Callable[[Scene], None]]] = {
    f"{project.entity}: {name}": (project, change)
    for project in (COVER_ART, EVENT_ART)
    for name, change in {
        "an image is inserted": insert_art,
        "an image is deleted": delete_art,
        "it is merged, and the copy fails": merge_with_failing_copy,
        "it is deleted with art": delete_with_art,
    }.items()
}


@pytest.fixture(scope="module")
def art(
    services: Urls, event_queue_template: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ArtSystem]:
    folder = tmp_path_factory.mktemp("events")
    with art_corner(
        services, event_queue_template, folder, "event_queue", EVENT_ART_EXCHANGE="event-art-archive"
    ) as system:
        yield system


@pytest.fixture(scope="module")
def scenes(art: ArtSystem) -> Iterator[dict[str, Scene]]:
    """Make every change; when all events have ended, yield the scenes, with reader and worker still running."""
    made = {
        name: Scene(art, project, 100 * number)
        for number, (name, (project, _)) in enumerate(SCENARIOS.items(), start=1)
    }
    for scene in made.values():
        scene.set_up()
    art.database.execute("DELETE FROM artwork_indexer.event_queue")
    with art.reader(), art.worker(projects=(COVER_ART, EVENT_ART), concurrency=4):
        for name, (_, change) in SCENARIOS.items():
            change(made[name])
        unended = "SELECT FROM artwork_indexer.event_queue WHERE state IN ('queued', 'running') LIMIT 1"
        eventually(lambda: art.database.execute(unended).fetchone() is None, "all events have ended", seconds=60)
        yield made


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_change_leaves_its_rows_and_the_archive_gets_exactly_its_requests(
    scenes: dict[str, Scene], name: str
) -> None:
    scene = scenes[name]
    assert (scene.rows(), scene.parents_found()) == (scene.ended, scene.parents)
    found = [
        sent(request) for request in scene.art.requests() if scene.one in request.path or scene.two in request.path
    ]
    if scene.expected[-1:] and "merged" in name:
        # What depends on the moved image alone comes in either order.
        assert found[:3] == scene.expected[:3]
        found, expected = (sorted(each, key=repr) for each in (found, scene.expected))
        assert found == expected
    else:
        assert found == scene.expected


def dead(art: ArtSystem, *arguments: str) -> Any:
    """Run `perennial dead` and return what it prints."""
    done = perennial(art.environment, "dead", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_job_that_fails_too_often_fails_its_event_and_its_replay_completes_it(
    art: ArtSystem, scenes: dict[str, Scene]
) -> None:
    scene = Scene(art, COVER_ART, 10_000)
    with art.database.transaction():
        scene.set_up()
    eventually(lambda: scene.has_rows([("index", "completed", 1)]), "the image is indexed")
    art.broker.take(art.failed)
    art.archive.faults.add(REFUSED, method="DELETE", times=MAX_ATTEMPTS)
    changes.remove_art(art.database, COVER_ART, scene.number)
    indexed = ("index", "completed", 1)
    failed = [indexed, ("delete_image", "failed", MAX_ATTEMPTS), ("index", "failed", 0)]
    eventually(lambda: scene.has_rows(failed), "it failed with its dependant", seconds=60)
    reasons = art.database.execute(
        "SELECT failure_reason FROM artwork_indexer.event_failure_reason AS failure"
        " JOIN artwork_indexer.event_queue ON event = id WHERE message ->> 'gid' = %s",
        (scene.one,),
    ).fetchall()
    kinds = Counter(reason.partition(" ")[0] for (reason,) in reasons)
    # The other one names the event that its dependant waited for.
    assert kinds == {"ArchiveRefused:": MAX_ATTEMPTS, "This": 1}
    [letter] = dead(art, "list", "--set", art.failed)
    assert (letter["task"], letter["reason"], letter["attempts"]) == (
        "coverart.delete",
        "archive-refused",
        MAX_ATTEMPTS,
    )
    assert dead(art, "replay", letter["id"])["replayed"] == [letter["id"]]
    done = [indexed, ("delete_image", "completed", 1), indexed]
    eventually(lambda: scene.has_rows(done), "the replay completed it, and its dependant ran", seconds=60)
    assert art.listing(scene.one)["images"] == []
