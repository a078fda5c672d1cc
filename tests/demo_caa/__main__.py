"""`python -m tests.demo_caa`: what `make demo-caa` runs."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psycopg

from app import private_services as services
from app.private_services import install
from config.settings import Settings
from demo.run import wait_for
from demo.supervisor import Supervisor, empty_data_folder, exclusive, exit_status, uninterrupted_stop
from tests.demo_caa.comparison import Row
from tests.demo_caa.screen import CaaScreen, DemoEvent, Events, observe, short
from tests.demo_caa.story import CaaStory, Stage
from tests.demo_caa.tap import MessageTap
from tests.servers.archive import ACCESS_KEY, SECRET_KEY, ArchiveServer
from tests.servers.musicbrainz import database, relay
from tests.servers.musicbrainz_ws import MusicBrainz
from tests.servers.postgres import postgres
from tests.servers.site import Request
from tests.support.programs import postgres_programs

#: What is shorter here than by default: milliseconds of a retry, seconds of the window (off the ladder of other waits).
RETRY_MS, WINDOW = 2_000, 1.5

#: What the first words of the lines mean.
LEGEND = {
    "SQL": "a change that an editor makes in the database",
    "message": "the database posts a job: its kind (index, move, delete) and its body, byte for byte",
    "window": "one edit posts many equal messages; each waits for the others; one runs, the others are dropped",
    "wait": "a message is back from a short wait, no retry spent: another job had its item, or a move had to be first",
    "archive": "a request that goes out to the archive, with the status of its answer",
    "service": "a request that goes out to MusicBrainz's web service, which has the XML",
    "fault": "what the stand-in archive does wrong on purpose",
    "retry": "a job failed; its message waits in the retry queue. mb-retries counts the retries that are left",
    "failed": "no retry is left: the message is in the dead set",
    "replay": "an operator sends a dead message back",
    "event": "a row of the event queue, in which the database writes its jobs since 2024, and how it ended",
    "reader": "a process posts such a row as a message; the worker records in the row how the job ended",
}

#: Seconds that the services may take: they may have to be installed first.
_INSTALLATION = 900.0


def main() -> int:
    """Run the demo; return 0, or 1 where it failed or the archive is not as it should be, or 130."""
    screen = CaaScreen()
    return exit_status(lambda: _run(_given(), screen), screen.say)


def _given() -> Settings:
    """Return the defaults and the data folder: all else is the demo's own, whatever the environment says."""
    for name, field in Settings.model_fields.items():
        if name != "data_dir":
            os.environ.pop(str(field.validation_alias or name).upper(), None)
    return Settings()


def _run(given: Settings, screen: CaaScreen) -> int:
    began = time.monotonic()
    folder = given.data_dir.resolve() / "demo-caa"
    with exclusive(folder), ExitStack() as stack:
        _introduce(screen, given)
        stage = _stage(stack, empty_data_folder(folder / "home"), folder / "processes.log", screen)
        story = _story(stack, stage)
        rows = story.tell()
        screen.heading("What the archive should hold, by the database, and what it holds")
        screen.table(rows)
        screen.say("  Of what is gone the XML stays, and is left out: no message asks for its deletion.")
        seconds = time.monotonic() - began
        _sum_up(screen, story, rows, seconds)
    if not screen.is_terminal:
        print(json.dumps(_report(story, rows, seconds)), flush=True)
    return 0 if all(row.equal for row in rows) else 1


def _introduce(screen: CaaScreen, given: Settings) -> None:
    screen.say("Cover art: MusicBrainz's database changes, and the archive follows.")
    screen.say(
        "The archive has an item for each release: its images, index.json (their list) and an XML with its title. "
        "Users upload images themselves. All else is written by the worker that you see here."
    )
    screen.say(
        "In chapters 1 to 6 the database posts its jobs as messages, as until 2024. In chapter 7 it writes them into a "
        "table, the event queue, as today. The worker is the same."
    )
    screen.say("Database, broker, Redis and worker are real; archive and web service are stand-ins on loopback.")
    screen.say(
        f"Shortened: a failed message waits {RETRY_MS / 1_000:g} s, not {given.art_retry_ms / 3_600_000:g} h; equal "
        f"messages are gathered for {WINDOW:g} s, not {given.art_window:g} s."
    )
    screen.say("Each line below is one event. Its first word is:")
    for label, meaning in LEGEND.items():
        screen.event(DemoEvent(label, meaning))
    if install.missing(broker=True, redis=True) or postgres_programs() is None:
        screen.say("RabbitMQ, Redis or PostgreSQL are not on this machine: they are installed first (a minute or two).")
    screen.say("Starting ...")


def _stage(stack: ExitStack, home: Path, log: Path, screen: CaaScreen) -> Stage:
    """Start everything but what listens to the broker."""
    events = Events()
    archive, web_service = stack.enter_context(ArchiveServer()), stack.enter_context(MusicBrainz())
    observe(archive, partial(_note, events, "archive"))
    observe(web_service, partial(_note, events, "service"))
    # First of all, and alone: only one can install packages at a time.
    database_url = stack.enter_context(postgres())
    database.install(database_url)
    database.add_event_queue(database_url)
    places = {
        "MUSICBRAINZ_URL": database_url,
        "ART_EVENT_QUEUE_URL": database_url,
        "MUSICBRAINZ_WS_URL": web_service.ws_url,
        "ARCHIVE_URL": archive.path_url,
        "ARCHIVE_PUBLIC_URL": archive.public_url,
        "ARCHIVE_KEYS": f"{ACCESS_KEY}:{SECRET_KEY}",
        "ART_RETRY_MS": str(RETRY_MS),
        "ART_WINDOW": str(WINDOW),
        "PERENNIAL_DATA_DIR": str(home),
    }
    os.environ |= places
    settings = Settings()
    module = Supervisor(places, log=log, module="tests.demo_caa.processes")
    supervisor = stack.enter_context(uninterrupted_stop(module, screen.say))
    up = {"up", "given"}
    wait_for(
        "RabbitMQ and Redis",
        lambda: all(service.state in up for service in services.status(settings)),
        supervisor,
        seconds=_INSTALLATION,
    )
    return Stage(
        settings=settings,
        database_url=database_url,
        archive=archive,
        web_service=web_service,
        supervisor=supervisor,
        events=events,
        screen=screen,
    )


def _story(stack: ExitStack, stage: Stage) -> CaaStory:
    tap = stack.enter_context(MessageTap(stage.settings, stage.events.add))
    stack.enter_context(relay.running(stage.database_url, stage.settings.broker, poll=0.1))
    connection = stack.enter_context(psycopg.connect(stage.database_url, autocommit=True))
    return CaaStory(stage, tap, connection)


def _note(events: Events, label: str, request: Request, status: int) -> None:
    """Tell of a request, in one line."""
    path = request.path.removeprefix("/ws/2")
    source = request.headers.get("x-amz-copy-source")
    copied = f"  (copy of {source.rpartition('/')[2]})" if source else ""
    events.add(DemoEvent(label, short(f"{request.method:<6} {path}  {status}{copied}")))


def _sum_up(screen: CaaScreen, story: CaaStory, rows: list[Row], seconds: float) -> None:
    equal = sum(row.equal for row in rows)
    screen.say(
        f"{equal} of {len(rows)} items are as they should be. {story.tap.published} messages and {story.tap.events} "
        f"events went out; {story.retried} came back from the retry queue and succeeded, {story.dead} died and "
        f"{story.replayed} was replayed. "
        f"{seconds:.0f} s in all."
    )


def _report(story: CaaStory, rows: list[Row], seconds: float) -> dict[str, object]:
    return {
        "equal": all(row.equal for row in rows),
        "items": {row.gid: {"expected": row.text(row.expected), "found": row.text(row.found)} for row in rows},
        "messages": story.tap.published,
        "events": story.tap.events,
        "retried": story.retried,
        "dead": story.dead,
        "replayed": story.replayed,
        "seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
