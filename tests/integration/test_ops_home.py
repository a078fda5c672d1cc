"""The home page of operations with real services: what is well, what is away, and the parts that are sent live."""

from __future__ import annotations

import gzip
import html
import json
import re
import socket
import time

import httpx
import pytest
from kombu import Connection
from pydantic import SecretStr
from redis import Redis

from app.broker.outgoing import Outgoing
from app.broker.publishing import Publisher
from app.counters import TASK_RUNS, CountTable
from app.messages.envelopes import site_message
from app.operations.audit import AuditLog
from app.operations.findings import findings, sentence
from app.operations.overview import Overview
from app.operations.queues import QueueFigures, QueueReport, read_queues
from app.storage.open import store_of
from app.timers.timers import Timers, full_pack_callback, incremental_pack_callback
from app.topology.queues import task_queues
from app.web.ops import live
from config.settings import Settings
from tests.support.operators import api_headers, operated, send_form
from tests.support.peers import route, routes
from tests.support.scripted import ScriptedSearchClient
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

HOSTILE = "<script>alert(1)</script>"
#: Seconds of a page that waits for no service. On a busy machine one of several tries takes less.
AT_ONCE = 3.0


def overview(settings: Settings) -> Overview:
    return Overview(settings, routes=ScriptedSearchClient([]).routes)


def texts(client: httpx.Client) -> list[str]:
    """Return the texts of the findings, by the API."""
    answer = client.get("/api/v1/ops/overview", headers=api_headers())
    assert answer.status_code == 200, answer.text
    return [each["text"] for each in answer.json()["findings"]]


def test_with_a_consumer_of_each_queue_everything_is_well(operable: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    # The doctor would find that the consumer of the orchestrator's requests does not reply.
    monkeypatch.setattr("app.operations.overview.run_checks", lambda *_: [])
    found = overview(operable)
    with Connection(operable.broker) as connection:
        for queue in task_queues(operable):
            connection.default_channel.basic_consume(queue.name, no_ack=True)
        eventually(lambda: not findings(found.read()), "nothing is needed", every=0.5)
        assert sentence(findings(found.read())) == "Everything is well."


def test_the_home_page_is_small_and_says_what_is_needed(client: httpx.Client) -> None:
    page = client.get("/ops")
    assert page.status_code == 200
    assert "no worker consumes from" in page.text
    assert page.headers["cache-control"] == "no-store"
    loaded = re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text)
    assert len(loaded) == 2
    files = [client.get(path) for path in loaded]
    assert all("immutable" in file.headers["cache-control"] for file in files)
    # An empty browser loads all of it compressed; the icon is within the page.
    assert sum(len(gzip.compress(each.content)) for each in (page, *files)) < 30_000
    assert 'rel="icon" href="data:' in page.text
    eventually(lambda: "are well" in client.get("/ops").text, "the checks have run", every=0.5)


def test_dead_letters_overdue_timers_and_missing_queues_are_findings(
    operable: Settings, client: httpx.Client, publisher: Publisher, redis: Redis
) -> None:
    dead = Outgoing(exchange="site.dead", routing_key="site.index", body=b"{}", headers={"perennial-reason": HOSTILE})
    publisher.publish([dead, dead, site_message("index", url="https://site.example/")])
    timers = Timers(redis)
    timers.start("late.example", timeout=600, callback=full_pack_callback("late.example"))
    redis.zadd("perennial:timers", {"late.example": time.time() - 3_600})
    with Connection(operable.broker) as connection:
        connection.default_channel.queue_delete("site.pack")
    expected = {
        "2 dead letters",
        "timers are overdue: late.example",
        "the broker has no queue site.pack",
        "no worker consumes from site.index (1 ready)",
    }
    # On a busy machine the first answers may lack what was not read in time.
    eventually(lambda: expected <= set(texts(client)), "the four findings", every=0.5)
    assert HOSTILE not in client.get("/ops").text


def test_a_letter_of_a_worker_whose_clock_is_ahead_died_in_the_present_hour(
    operable: Settings, publisher: Publisher
) -> None:
    now = time.time()
    for failed_at in (now + 60, now - 60, now - 5_000):
        headers = {"perennial-reason": "exception", "perennial-failed-at": failed_at}
        publisher.publish([Outgoing(exchange="site.dead", routing_key="site.index", body=b"{}", headers=headers)])
    dead = overview(operable).dead.read(time.monotonic() + 60).value
    assert dead
    assert (dead.total, list(dead.counts[-2:])) == (3, [1, 2])


def test_the_queue_of_a_receiver_is_no_delay_queue(operable: Settings) -> None:
    settings = operable.model_copy(update={"webhook_url": SecretStr("https://ops.example/")})
    kinds = {queue.name: queue.kind for queue in read_queues(settings).queues}
    assert (kinds["notify.webhook"], kinds["site.delay.250"], kinds["site.page"]) == ("other", "delay", "work")


def test_services_that_are_away_are_findings_and_no_page_waits_for_them(
    operable: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    stateful: dict[str, object] = {
        "broker_url": SecretStr("amqp://127.0.0.1:1"),
        "redis_url": SecretStr("redis://127.0.0.1:1"),
        "store_url": "s3://nowhere?endpoint=http://127.0.0.1:1",
    }
    of_api: dict[str, object] = {"broker_api_url": SecretStr("http://127.0.0.1:1/api")}
    for away, expected in (
        (stateful, {"RabbitMQ is away", "Redis is away", "the store is away"}),
        (of_api, {"management API (BROKER_API_URL) does not answer"}),
    ):
        with operated(operable.model_copy(update=away)) as client:
            for path in ("/ops", "/ops/waiting", "/ops/queues", "/ops/art", "/ops/searchers"):
                eventually(lambda: takes(client, path) < AT_ONCE, f"{path} waits for nothing")  # noqa: B023 - Called at once.

            def are_found() -> bool:
                found = "; ".join(texts(client))
                return all(each in found for each in expected)  # noqa: B023

            eventually(are_found, f"the findings {expected}", every=0.5)
            found = samples(client)
            is_read = [found[f'perennial_readable{{part="{part}"}}'] for part in ("queues", "redis")]
            assert is_read == ([0, 0] if away is stateful else [1, 1])
            of_services = ("perennial_queue_", "perennial_timers", "perennial_crawl")
            assert any(name.startswith(of_services) for name in found) == (away is of_api)
            assert found["perennial_routes_known"] == 1


def test_services_that_accept_connections_and_say_nothing_delay_no_page(operable: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        urls = {
            "broker_url": f"amqp://{place}",
            "redis_url": f"redis://{place}",
            "broker_api_url": f"http://{place}/api",
        }
        hanging = operable.model_copy(update={name: SecretStr(url) for name, url in urls.items()})
        with operated(hanging) as client:
            eventually(lambda: takes(client, "/ops") < AT_ONCE, "the page waits for nothing")
            assert "RabbitMQ is away" in client.get("/ops").text
            assert "Redis is away" in client.get("/ops").text
            # Six of them would hold up all others.
            for path in ("/ops/sites", "/ops/sites/a.gov", "/ops/url?url=a.gov", "/ops/dead"):
                assert client.get(path, timeout=5.0).status_code == 503


def takes(client: httpx.Client, path: str) -> float:
    """Return the seconds that a page takes."""
    began = time.monotonic()
    assert client.get(path).status_code == 200, path
    return time.monotonic() - began


def samples(client: httpx.Client) -> dict[str, float]:
    """Return the samples of /metrics by their names and labels."""
    lines = client.get("/metrics", headers={"Accept": "text/plain"}).text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_metrics_have_queues_timers_the_workers_of_the_machine_and_what_workers_count(
    operable: Settings, client: httpx.Client, publisher: Publisher, redis: Redis
) -> None:
    operable.heartbeat_dir.mkdir(parents=True)
    (operable.heartbeat_dir / "worker@here").touch()
    dead = Outgoing(exchange="site.dead", routing_key="site.index", body=b"{}")
    publisher.publish([dead, dead, site_message("index", url="https://site.example/")])
    Timers(redis).start("site.example", timeout=600, callback=full_pack_callback("site.example"))
    counted = CountTable(redis)
    counted.add(TASK_RUNS.name, ("site.page", "site.page", "dead-lettered", "server-error"), 3)
    counted.close()
    with Connection(operable.broker) as connection:
        connection.default_channel.queue_delete("site.pack")

    readable = {'perennial_readable{part="queues"}': 1, 'perennial_readable{part="redis"}': 1}

    def seen() -> dict[str, float]:
        found = samples(client)
        # The figures are kept for two seconds. On a busy machine the first ones lack what was not read in time.
        return found if found.items() >= {"perennial_queues_missing": 1, **readable}.items() else {}

    found = eventually(seen, "the metrics have the missing queue", every=0.5)
    assert found['perennial_queue_messages{kind="dead",queue="site.dead"}'] == 2
    assert found['perennial_queue_messages{kind="work",queue="site.index"}'] == 1
    assert found['perennial_queue_consumers{kind="work",queue="site.index"}'] == 0
    assert found['perennial_queue_unacknowledged{kind="work",queue="site.index"}'] == 0
    assert found["perennial_timers"] == 1
    runs = 'perennial_task_runs_total{outcome="dead-lettered",queue="site.page",reason="server-error",task="site.page"}'
    assert (found[runs], found["perennial_crawl_bytes_total"]) == (3, 0)
    assert 0 <= found['perennial_worker_silent_seconds{worker="worker@here"}'] < 60


def test_without_an_orchestrator_packs_are_unknown_and_the_link_to_further_packs_leads_on_after_a_removal(
    operable: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = ScriptedSearchClient([])
    unknown.unknown = True
    with operated(operable, unknown) as client:
        assert "The orchestrator is away: no orchestrator answers" in client.get("/ops/searchers").text
        assert "the orchestrator is away: no orchestrator answers" in texts(client)
        assert client.get("/api/v1/ops/searchers", headers=api_headers()).status_code == 503
    scripted, found = ScriptedSearchClient([]), [route(f"{number:03}.example", "one") for number in range(150)]
    monkeypatch.setattr(scripted, "routes", lambda: routes(*found))
    with operated(operable, scripted) as client:
        [link] = re.findall(r'href="(/ops/searchers[^"]*)" rel="next"', client.get("/ops/searchers").text)
        del found[99]
        eventually(lambda: "149 packs" in client.get("/ops/searchers").text, "the pack is removed")
        further = client.get(html.unescape(link)).text
        assert "149.example" in further
        assert "000.example" not in further
        assert "There is no pack on this page" in client.get("/ops/searchers", params={"page": 9}).text


def events(client: httpx.Client, number: int) -> list[dict[str, str]]:
    """Return the first fragments of the live stream."""
    found: list[dict[str, str]] = []
    with client.stream("GET", "/ops/live") as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
            if len(found) == number:
                break
    return found


def test_the_live_stream_sends_all_parts_then_those_that_change_and_ends(
    client: httpx.Client, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "INTERVAL", 0.2)
    first = events(client, 6)
    page = client.get("/ops").text
    assert all(f'id="{each["id"]}"' in page and f'id="{each["id"]}"' in each["html"] for each in first)
    publisher.publish([site_message("index", url="https://site.example/")])
    with client.stream("GET", "/ops/live") as answer:
        fragments = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
        changed = next(each for each in fragments if each["id"] == "live-findings" and "1 ready" in each["html"])
    assert "site.index (1 ready)" in changed["html"]
    monkeypatch.setattr(live, "STREAM_SECONDS", 0.5)
    with client.stream("GET", "/ops/live") as answer:
        assert "event: fragment" in answer.read().decode()


def test_more_live_pages_than_the_limit_are_refused_and_a_closed_one_gives_its_place_back(
    operable: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_STREAMS", 2)
    monkeypatch.setattr(live, "INTERVAL", 0.1)
    with operated(operable) as client:
        with client.stream("GET", "/ops/live"), client.stream("GET", "/ops/live"):
            refused = client.get("/ops/live")
            assert refused.status_code == 503
            # A stream takes no place of the operators' requests.
            assert client.get("/ops").status_code == 200
        eventually(lambda: events_or_none(client), "a place is free")


def events_or_none(client: httpx.Client) -> list[str]:
    """Return the first line of a new stream, or nothing if it is refused."""
    with client.stream("GET", "/ops/live") as answer:
        return [next(answer.iter_lines())] if answer.status_code == 200 else []


def test_the_live_stream_ends_with_the_session(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "INTERVAL", 0.1)
    with client.stream("GET", "/ops/live") as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("retry:")
        send_form(client, "/ops/logout")
        for _ in lines:
            pass
    assert client.get("/ops/live").status_code == 303


def test_a_page_that_does_not_list_all_queues_says_so(operable: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = [QueueFigures(name=f"site.searcher.{number}", kind="other", ready=0) for number in range(201)]
    monkeypatch.setattr("app.operations.overview.read_queues", lambda _: QueueReport(queues=queues))
    with operated(operable) as client:
        eventually(lambda: "200 of 201 are listed" in client.get("/ops/queues").text, "the page says so", every=0.5)


def test_a_timer_fires_now(operable: Settings, client: httpx.Client, redis: Redis) -> None:
    timers = Timers(redis)
    timers.start("site.example", timeout=600, callback=incremental_pack_callback("site.example"))
    eventually(lambda: "pack_incremental" in client.get("/ops/queues").text, "the timer is listed", every=0.5)
    assert timers.claim_due() == []
    assert send_form(client, "/ops/timers/fire", domain="site.example", why="it is urgent").status_code == 303
    assert "The timer of site.example is due now." in client.get("/ops/queues").text
    (timer,) = timers.claim_due()
    assert (timer.domain, timer.timeout) == ("site.example", 600)
    entry = next(AuditLog(store_of(operable)).entries())
    assert (entry.act, entry.result, entry.why) == ("timer fire", "done", "it is urgent")
    assert send_form(client, "/ops/timers/fire", domain="other.example").status_code == 404
