"""Cover art on the operations page: failed events are shown and queued again, and items are indexed again."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import httpx
import pytest
from kombu import Connection
from pydantic import SecretStr
from redis import Redis

from app.coverart.event_state import ReaderStatus
from app.coverart.outages import OUTAGE_ITEMS, ServiceBreakers
from app.operations.art import ArtAudit, KeptFinding, keep_audit
from app.operations.audit import AuditLog
from app.operations.context import OperatorContext
from app.operations.operators import command_operator
from app.redis_state.client import get_redis
from app.storage.open import store_of
from app.topology.declare import declare_all
from config.settings import Settings
from tests.integration.test_art_operations import Desk, database_url, desk
from tests.support.broker import Broker
from tests.support.operators import READ_PASSWORD, api_headers, operated, send_form, with_operators
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

__all__ = ["database_url", "desk"]

GID = "0a000000-0000-4000-8000-000000000001"
STATES = ("queued", "running", "failed")
METRIC = re.compile(r"^(perennial_[^ ]+?(?:{[^}]*})?) ([\d.e+-]+)$", re.MULTILINE)
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def operable(desk: Desk, connection: Any) -> Settings:
    served = with_operators(desk.ops.settings)
    assert not declare_all(connection, served)
    return served


def test_without_cover_art_the_page_says_so(declared: Settings) -> None:
    with operated(with_operators(declared)) as client:
        assert "Cover art is not served here" in client.get("/ops/art").text
        body = {"archive": "cover-art-archive", "gids": [GID]}
        assert client.post("/api/v1/ops/art/reindex", json=body, headers=api_headers()).status_code == 404


def test_metrics_have_the_event_queue_and_the_circuit_breakers_and_say_when_the_database_is_away(
    operable: Settings, client: httpx.Client, desk: Desk
) -> None:
    desk.add(GID)
    desk.db.execute("UPDATE artwork_indexer.event_queue SET created = now() - interval '1 day'")
    desk.add(GID, state="running")
    for gid in ("1", "2"):
        desk.fail(gid, "ArchiveRefused: 400")
    redis = get_redis(operable.redis)
    ReaderStatus(redis).touch()
    archive = ServiceBreakers.of("cover-art-archive", operable, redis).archive
    for item in range(OUTAGE_ITEMS):
        archive.fail(str(item), retry_after=100)
    # On a busy machine the first answer may lack what was not read in time.
    complete = eventually(lambda: _with_both(client.get("/metrics").text), "event queue and Redis are read")
    metrics = {name: float(value) for name, value in METRIC.findall(complete)}
    redis.flushdb()
    of_releases = {state: metrics[f'perennial_events{{state="{state}",type="release"}}'] for state in STATES}
    assert of_releases == {"queued": 1, "running": 1, "failed": 2}
    assert metrics['perennial_events_failed{reason="ArchiveRefused",type="release"}'] == 2
    assert 86_400 <= metrics['perennial_oldest_event_seconds{type="release"}'] < 86_500
    assert metrics["perennial_event_reader_silent_seconds"] < 60
    assert 90 < metrics['perennial_breaker_left_seconds{service="archive of cover-art-archive"}'] <= 100
    assert metrics['perennial_breaker_left_seconds{service="MusicBrainz database"}'] == 0
    assert 90 < metrics['perennial_queue_pause_left_seconds{queue="cover-art-archive.delete"}'] <= 100
    assert metrics['perennial_queue_pause_left_seconds{queue="site.pack"}'] == 0
    assert metrics["perennial_events_known"] == 1
    away = operable.model_copy(update={"art_event_queue_url": SecretStr("postgresql://127.0.0.1:1/away")})
    with operated(away) as client:
        text = client.get("/metrics").text
    assert "perennial_events_known 0.0" in text
    assert "perennial_events{" not in text


def _with_both(metrics: str) -> str:
    return metrics if "perennial_events{" in metrics and "perennial_breaker_left_seconds{" in metrics else ""


def test_failed_events_are_shown_with_their_reasons_and_queued_again(
    operable: Settings, client: httpx.Client, desk: Desk
) -> None:
    failed = desk.fail(GID, HOSTILE)
    child = desk.fail("x", "its parent had failed", attempts=0, depends_on=[failed])
    twin = desk.fail("twin", "503")
    desk.add("twin")
    page = client.get("/ops/art").text
    assert "cover-art-archive.index" in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert HOSTILE not in page
    assert "its parent had failed" in page
    assert [f'name="events" value="{each}"' in page for each in (failed, child)] == [True, False]
    with operated(operable, password=READ_PASSWORD) as reader:
        assert "Queue again" not in reader.get("/ops/art").text
        assert send_form(reader, "/ops/art/requeue", events=str(failed)).status_code == 403
    given = [str(each) for each in (child, failed, twin)]
    answer = send_form(client, "/ops/art/requeue", events=given, why="the archive is back")
    said = "3 events queued again, 1 of them merged with an equal queued event"
    assert said in client.get(answer.headers["location"]).text
    assert [desk.states()[each][0] for each in (failed, child, twin)] == ["queued", "queued", "completed"]
    entries = [each for each in AuditLog(store_of(operable)).entries() if each.act == "requeue events"]
    assert [entry.result.partition(";")[0].partition(":")[0] for entry in entries] == [said, "refused"]
    assert send_form(client, "/ops/art/requeue").status_code == 400
    assert send_form(client, "/ops/art/requeue", events="1e3").status_code == 400


def test_items_are_indexed_again_by_the_page_and_the_api(
    operable: Settings, client: httpx.Client, broker: Broker
) -> None:
    answer = send_form(client, "/ops/art/reindex", archive="cover-art-archive", gids=f"{GID.upper()}\n{GID}")
    assert "index of 1 items enqueued" in client.get(answer.headers["location"]).text
    body = {"archive": "cover-art-archive", "gids": [GID]}
    assert client.post("/api/v1/ops/art/reindex", json=body, headers=api_headers()).json() == {"done": [GID]}
    assert [each.body for each in broker.take("cover-art-archive.index")] in ([GID] * 2, [GID.encode()] * 2)
    assert send_form(client, "/ops/art/reindex", archive="cover-art-archive", gids="no gid").status_code == 400
    assert send_form(client, "/ops/art/reindex", archive="other", gids=GID).status_code == 404


def test_the_state_of_the_events_and_the_last_audit_are_shown_by_page_and_api(
    operable: Settings, client: httpx.Client, desk: Desk
) -> None:
    desk.fail(GID, "ArchiveRefused: 400")
    finding = KeptFinding(gid=GID, kind="listing-stale", file=HOSTILE, fix="index")
    audit = ArtAudit(
        archive="cover-art-archive",
        command="perennial caa audit --all --fix",
        operator="kim@host",
        began=1_000.0,
        ended=8_200.0,
        items=1_400_000,
        unread=2,
        differing=31,
        kinds={"listing-stale": 30, "image-left": 1},
        fixes=True,
        enqueued={"index": 30},
        held_back=1,
        last=GID,
        findings=[finding],
    )
    keep_audit(OperatorContext(operable, command_operator()), audit)
    page = client.get("/ops/art").text
    assert "1,399,998 items were compared, 31 of them differ, 2 could not be read" in page
    for said in ("after 2 h", "kim@host", "30 listing-stale, 1 image-left", "30 index enqueued; 1 image not deleted"):
        assert said in page
    assert "1 ArchiveRefused" in page
    assert "no event reader runs" in page
    assert HOSTILE not in page
    found = client.get("/api/v1/ops/art", headers=api_headers()).json()
    assert found["audits"] == [asdict(audit)]
    assert found["events"]["entities"][0]["failed"] == {"ArchiveRefused": 1}
    store_of(operable).put("art-audits/cover-art-archive.json", b"{")
    page = client.get("/ops/art").text
    assert "The audits are unknown" in page
    # One that is damaged hides no other one, and is no archive without an audit.
    assert page.count("No audit of all items has been kept.") == 0
    found = client.get("/api/v1/ops/art", headers=api_headers()).json()
    assert (found["audits"], "not an audit of cover art" in found["audit_trouble"]) == ([], True)


def test_a_database_that_is_away_is_said_on_the_page(settings: Settings, connection: Connection) -> None:
    away = SecretStr("postgresql://nobody@127.0.0.1:1/none")
    with operated(with_operators(settings, musicbrainz_url=away, art_event_queue_url=away)) as client:
        assert "The events are unknown" in client.get("/ops/art").text
        body = {"events": [1]}
        assert client.post("/api/v1/ops/art/requeue", json=body, headers=api_headers()).status_code == 503


def test_the_reader_is_paused_and_resumed_and_running_events_are_handed_back_by_the_page_and_the_api(
    operable: Settings, client: httpx.Client, desk: Desk, redis: Redis
) -> None:
    fresh, other = desk.add("a", state="running"), desk.add("b", state="running")
    status = ReaderStatus(redis)
    status.touch()

    def said(path: str, **fields: str) -> str:
        return client.get(send_form(client, path, **fields).headers["location"]).text

    def posted(path: str, **body: object) -> httpx.Response:
        return client.post(f"/api/v1/ops/art/{path}", json=body, headers=api_headers())

    assert "2 running events would be queued again" in said("/ops/art/handback", dry_run="true")
    assert send_form(client, "/ops/art/handback").status_code == 400
    assert "pause it first" in posted("handback").json()["detail"]
    page = said("/ops/art/pause", why="a switch")
    assert all(text in page for text in ("The event reader is paused.", 'action="/ops/art/resume"'))
    assert said("/ops/art/resume").count("The event reader is resumed.") == 1
    assert posted("pause").json() == {"done": ["paused"]}
    assert client.get("/api/v1/ops/art", headers=api_headers()).json()["events"]["paused"]
    done = {"done": [str(fresh), str(other)]}
    assert posted("handback", dry_run=True).json() == posted("handback").json() == done
    assert "0 events queued again" in said("/ops/art/handback")
    assert posted("resume").json() == {"done": ["resumed"]}
    with operated(operable, password=READ_PASSWORD) as reader:
        for act in ("pause", "handback"):
            assert f'action="/ops/art/{act}"' not in reader.get("/ops/art").text
            assert send_form(reader, f"/ops/art/{act}").status_code == 403
    assert not status.is_paused()
    entries = list(AuditLog(store_of(operable)).entries())
    acts = [(entry.act, entry.result.partition(":")[0]) for entry in entries if not entry.act.startswith("log")]
    handed = [("hand back events", f"{number} events queued again") for number in (0, 2)]
    steered = [(act, "done") for act in ("pause events", "resume events", "pause events")]
    done_acts = [act for act in acts if act[1] not in ("refused", "failed")]
    assert done_acts == [("resume events", "done"), *handed, *steered]
    whys = [entry.why for entry in entries if entry.act == "pause events" and entry.result == "done"]
    assert whys == ["", "a switch"]
