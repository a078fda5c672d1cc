"""Outages that cover art jobs meet: errors that open a circuit breaker, that spend a retry; none shows the keys."""

from __future__ import annotations

import logging
import pickle
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr
from redis import Redis

from app.broker.errors import Postpone
from app.broker.worker.failures import failure_of
from app.counters import ARCHIVE_ANSWERS, ART_JOBS, CountTable, read_counts
from app.coverart.indexer import Indexer
from app.coverart.jobs import Delete, Index, Job, Move
from app.coverart.outages import FIRST_FREE_RUNS, FREE_RUNS, MAX_FREE_RUNS, OUTAGE_ITEMS, reporting_to
from app.coverart.project import Entity, Image
from app.errors import (
    ArchiveError,
    ArchiveNotFound,
    ArchiveRefused,
    ArchiveUnavailable,
    DatabaseUnavailable,
    WebServiceBehind,
)
from config.settings import Settings
from tests.servers import archive as stand_in
from tests.servers import hazards
from tests.servers.archive import ArchiveServer
from tests.servers.musicbrainz_ws import MusicBrainz, busy
from tests.servers.site import Answer, failure, redirect, reply

pytestmark = pytest.mark.integration

#: The gid that every image belongs to.
PRESENT = str(uuid.UUID(int=1))

#: Keys with characters that XML, JSON and URLs write otherwise.
ACCESS, SECRET = "sentinel-access/1+&", 'sentinel-secret/2+&"\\'


@pytest.fixture
def server() -> Iterator[ArchiveServer]:
    with ArchiveServer(access_key=ACCESS, secret_key=SECRET) as running:
        yield running


@pytest.fixture
def web_service() -> Iterator[MusicBrainz]:
    with MusicBrainz() as running:
        yield running


def indexer_for(redis: Redis, archive: ArchiveServer, ws_url: str, **more: Any) -> Indexer:
    """Return an indexer whose database has every release, with one image each, and that waits for its servers."""
    given: dict[str, Any] = {
        "musicbrainz_url": SecretStr("postgresql://nobody@127.0.0.1:1/nowhere"),
        "musicbrainz_ws_url": ws_url,
        "art_window": 0,
        "retry_timeout_ms": 30_000,
    }
    settings = Settings(**{**given, **archive.settings, **more})
    return replace(
        Indexer.of("cover-art-archive", settings, redis),
        read_entity=lambda gid: Entity(gid, (Image(1, "jpg", "", 1, True, True, False, ("Front",)),)),
        read_gid_of_image=lambda _: PRESENT,
    )


@pytest.fixture
def indexer(redis: Redis, server: ArchiveServer, web_service: MusicBrainz) -> Indexer:
    return indexer_for(redis, server, web_service.ws_url)


@pytest.fixture
def impatient(redis: Redis, server: ArchiveServer, web_service: MusicBrainz) -> Indexer:
    """Return an indexer that gives up a silent server soon; it shares circuit breakers with `indexer`."""
    return indexer_for(redis, server, web_service.ws_url, response_timeout=0.3)


def handle(indexer: Indexer, job: Job, headers: Mapping[str, Any] | None = None) -> Exception | None:
    """Handle a message and return the exception, if any: a Postpone spends no retry, any other one does."""
    try:
        indexer.handle(job, str(uuid.uuid4()), headers or {})
    except Exception as error:  # noqa: BLE001
        return error
    return None


def gids(count: int) -> list[str]:
    return [str(uuid.uuid4()) for _ in range(count)]


def end_pause(redis: Redis) -> None:
    for key in redis.keys("perennial:outage:*:until"):
        redis.delete(key)


def quoting() -> Answer:
    """Answer as a server that quotes the whole request, in every form that it can take in XML."""
    header = f"LOW {ACCESS}:{SECRET}"
    escaped = header.replace("&", "&amp;").replace('"', "&quot;")
    return reply(f"<h1>Bad gateway</h1><pre>{header} {escaped}</pre>", status=502)


#: Faults of the archive for every request, one of each kind; tests/unit/test_coverart_answers.py has further answers.
OUTAGES: dict[str, Callable[[], Answer]] = {
    "503 SlowDown": stand_in.slow_down,
    "429 with Retry-After": lambda: failure(429, retry_after="100"),
    "200 with an error": lambda: stand_in.error(200, "InternalError", "Try again."),
    "hang": hazards.silence,
    "reset": hazards.reset,
    "redirect": lambda: redirect("http://127.0.0.1:1/elsewhere", status=307),
    "quotes the keys": quoting,
    "401": lambda: failure(401),
    "InvalidAccessKeyId": lambda: stand_in.error(403, "InvalidAccessKeyId", f"No {ACCESS}", f"LOW {ACCESS}:{SECRET}"),
}


@pytest.mark.parametrize("fault", OUTAGES)
def test_an_outage_opens_the_circuit_breaker_and_no_key_is_seen(
    fault: str,
    redis: Redis,
    server: ArchiveServer,
    indexer: Indexer,
    impatient: Indexer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    server.faults.add(OUTAGES[fault](), times=100)
    meeting = impatient if fault == "hang" else indexer
    errors = [handle(meeting, Delete(gid, 1)) for gid in gids(OUTAGE_ITEMS)]
    assert [type(error) for error in errors] == [Postpone] * OUTAGE_ITEMS
    assert indexer.breakers.archive.seconds_open() > (90 if "Retry-After" in fault else 25)
    requested = len(server.requests)
    errors.append(handle(indexer, Delete(gids(1)[0], 1)))
    assert isinstance(errors[-1], Postpone)
    assert len(server.requests) == requested
    is_loud = any(record.levelno == logging.ERROR and "ARCHIVE_KEYS" in record.message for record in caplog.records)
    assert is_loud == (fault in ("401", "InvalidAccessKeyId"))
    assert_no_key(caplog.text + repr(indexer), redis, *errors)
    server.faults.clear()
    end_pause(redis)
    assert handle(indexer, Delete(gids(1)[0], 1)) is None
    assert indexer.breakers.archive.seconds_open() == 0


def assert_no_key(log: str, redis: Redis, *errors: Exception | None) -> None:
    """Search all that leaves the process: log, reprs, error, traceback, what goes to dead sets and to Redis."""
    parts = [log]
    for error in filter(None, errors):
        failure = failure_of(error, trace="".join(traceback.format_exception(error)))
        parts += [repr(error), repr(failure), repr(getattr(error, "headers", "")), repr(pickle.dumps(error))]
    parts += [repr(redis.get(key)) for key in redis.keys("perennial:outage:*:until")]
    for part in parts:
        assert "sentinel" not in part


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (stand_in.spam, ArchiveRefused),
        (lambda: stand_in.error(404, "NoSuchBucket", "none"), ArchiveNotFound),
    ],
)
def test_what_concerns_one_item_only_opens_nothing_and_spends_a_retry(
    answer: Callable[[], Answer], kind: type[Exception], server: ArchiveServer, indexer: Indexer
) -> None:
    server.faults.add(answer(), method="PUT", times=100)
    for gid in gids(3 * OUTAGE_ITEMS):
        assert type(handle(indexer, Index(gid))) is kind
    assert indexer.breakers.archive.seconds_open() == 0


def test_an_answer_that_refuses_one_item_ends_the_count_of_failures(indexer: Indexer) -> None:
    breaker = indexer.breakers.archive
    for number in range(2 * OUTAGE_ITEMS - 1):
        if number == OUTAGE_ITEMS - 1:
            with pytest.raises(ArchiveRefused), reporting_to(breaker, "refused"):
                raise ArchiveRefused("spam")
        else:
            breaker.fail(f"item {number}")
    assert breaker.seconds_open() == 0
    breaker.fail("one more")
    assert breaker.seconds_open() > 0


def test_an_item_that_fails_alone_waits_for_what_others_meet_and_then_spends_its_retries(
    server: ArchiveServer, indexer: Indexer
) -> None:
    broken, *others = gids(10)
    server.faults.add(failure(500), path=f"/mbid-{broken}/*", times=100)
    for run in range(FIRST_FREE_RUNS):
        postponed = handle(indexer, Delete(broken, 1), {FREE_RUNS: run})
        assert isinstance(postponed, Postpone)
        assert postponed.headers == {FREE_RUNS: run + 1}
    for gid in others:
        assert isinstance(handle(indexer, Delete(broken, 1), {FREE_RUNS: FIRST_FREE_RUNS}), ArchiveError)
        assert handle(indexer, Delete(gid, 1)) is None
    for _ in others:
        assert isinstance(handle(indexer, Delete(broken, 1), {FREE_RUNS: FIRST_FREE_RUNS}), ArchiveError)
    assert indexer.breakers.archive.seconds_open() == 0


def test_an_item_that_the_archive_throttles_waits_for_a_while_and_then_spends_retries(
    server: ArchiveServer, indexer: Indexer
) -> None:
    [gid] = gids(1)
    server.faults.add(failure(429, retry_after="7"), times=100)
    postponed = handle(indexer, Delete(gid, 1), {FREE_RUNS: 3})
    assert isinstance(postponed, Postpone)
    assert (postponed.seconds, postponed.exactly, postponed.headers) == (8, True, {FREE_RUNS: 4})
    assert isinstance(handle(indexer, Delete(gid, 1), {FREE_RUNS: MAX_FREE_RUNS}), ArchiveError)


@pytest.mark.parametrize("fault", [busy, hazards.reset], ids=["503 with Retry-After", "reset"])
def test_while_the_web_service_is_away_jobs_that_need_it_wait_and_the_others_run(
    fault: Callable[[], Answer], web_service: MusicBrainz, indexer: Indexer
) -> None:
    web_service.faults.add(fault(), times=100)
    for gid in gids(OUTAGE_ITEMS):
        assert isinstance(handle(indexer, Index(gid)), Postpone)
    requested = len(web_service.requests)
    assert isinstance(handle(indexer, Index(gids(1)[0])), Postpone)
    assert len(web_service.requests) == requested
    assert handle(indexer, Delete(gids(1)[0], 1)) is None
    assert indexer.breakers.archive.seconds_open() == 0


def test_while_the_database_is_away_jobs_that_need_it_wait_and_the_others_run(
    redis: Redis, server: ArchiveServer, web_service: MusicBrainz, indexer: Indexer
) -> None:
    nowhere = Settings(musicbrainz_url=SecretStr("postgresql://nobody@127.0.0.1:1/nowhere"), art_window=0)
    read = Indexer.of("cover-art-archive", nowhere, redis).read_entity
    away = replace(indexer, read_entity=read)
    for gid in gids(OUTAGE_ITEMS):
        error = handle(away, Index(gid))
        assert isinstance(error, Postpone)
        assert isinstance(error.__cause__, DatabaseUnavailable)
    for job in (Index(gids(1)[0]), Delete(gids(1)[0])):
        postponed = handle(indexer, job)
        assert isinstance(postponed, Postpone)
        assert "MusicBrainz database" in postponed.why
    assert handle(indexer, Delete(gids(1)[0], 1)) is None


def test_the_keys_go_to_no_server_that_a_redirect_names(redis: Redis, server: ArchiveServer, indexer: Indexer) -> None:
    with ArchiveServer() as other:
        for status in (301, 302, 303, 307, 308):
            server.faults.add(redirect(other.at("/mbid-a/index.json"), status=status), times=3)
            for job in (Delete(gids(1)[0], 1), Index(gids(1)[0]), Move(1, gids(1)[0], PRESENT, "jpg")):
                handle(indexer, job)
                indexer.breakers.archive.succeed()
                redis.flushdb()
            server.faults.clear()
        assert len(server.requests) >= 15
        assert other.requests == []


def test_a_404_of_the_web_service_is_no_deletion_while_the_database_has_the_release(
    server: ArchiveServer, web_service: MusicBrainz, indexer: Indexer
) -> None:
    [gid] = gids(1)
    web_service.remove_entity("release", gid)
    postponed = handle(indexer, Index(gid))
    assert isinstance(postponed, Postpone)
    assert "the database has it" in postponed.why
    assert isinstance(handle(indexer, Index(gid), {FREE_RUNS: MAX_FREE_RUNS}), WebServiceBehind)
    assert indexer.breakers.web_service.seconds_open() == 0
    reads = iter([indexer.read_entity(gid), None])
    assert handle(replace(indexer, read_entity=lambda _: next(reads)), Index(gid)) is None
    assert {path.rpartition("/")[2] for path in server.paths()} == {"index.json"}


def test_a_redirect_within_the_archive_is_followed_with_method_and_body(
    server: ArchiveServer, web_service: MusicBrainz, indexer: Indexer
) -> None:
    [gid] = gids(1)
    web_service.set_entity("release", gid, "Kind of Blue")
    server.faults.add(redirect(f"/mbid-{gid}/index.json?moved=1", status=307), method="PUT", times=1)
    assert handle(indexer, Index(gid)) is None
    first, second = [request for request in server.requests if request.path.partition("?")[0].endswith("index.json")]
    assert (second.method, second.path) == ("PUT", f"/mbid-{gid}/index.json?moved=1")
    assert second.body == first.body
    assert second.headers["authorization"] == first.headers["authorization"]


def test_jobs_are_counted_by_outcome_and_answers_of_the_archive_by_status(
    redis: Redis, redis_url: str, server: ArchiveServer, indexer: Indexer, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = CountTable(redis)
    monkeypatch.setattr("app.counters._current", table)
    [gid] = gids(1)
    assert handle(indexer, Delete(gid, 1)) is None
    server.faults.add(failure(429, retry_after="7"))
    assert isinstance(handle(indexer, Delete(gid, 1)), Postpone)
    table.close()
    found = read_counts(redis_url)
    assert found[ART_JOBS] == {("delete", "skipped"): 1, ("delete", ArchiveUnavailable.reason): 1}
    assert found[ARCHIVE_ANSWERS] == {("DELETE", "404"): 1, ("DELETE", "429"): 1}
