"""`perennial doctor` with a real broker, Redis and store: every check, its problems, and no queue left behind."""

from __future__ import annotations

import json
import re
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr
from redis import Redis
from typer.testing import CliRunner

from app.broker.delivery import Delivery
from app.cli import crawl, up
from app.cli import doctor as command
from app.cluster.protocol import Routes, to_json
from app.coverart.outages import OUTAGE_ITEMS, ServiceBreakers
from app.operations.doctor import checks
from app.operations.doctor.check import CheckResult
from app.operations.doctor.checks import CHECKS, clock_readings, quick_problems, run_checks
from app.redis_state.client import get_redis
from app.storage.marker import MARKER_KEY, read_marker
from app.storage.open import open_store
from app.storage.outage import store_breaker
from app.timers.timers import TickWatch
from app.topology.check import management_api
from app.topology.declare import declare_all
from config.routes import REQUESTS
from config.settings import Settings
from tests.support.answering import ByHand, consumed
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

EVENTS = "event-art-archive"


def results(settings: Settings, *names: str) -> dict[str, list[CheckResult]]:
    """Return the results of the checks of these names, or of all."""
    found: dict[str, list[CheckResult]] = {}
    for result in run_checks(settings, [check for check in CHECKS if check.name in names] if names else None):
        found.setdefault(result.check, []).append(result)
    return found


def changed(settings: Settings, **fields: Any) -> Settings:
    return settings.model_copy(update=fields)


def test_every_check_succeeds_on_a_healthy_broker_and_leaves_nothing_there(declared: Settings, connection: Any) -> None:
    before = management_api(declared, connection).topology()
    found = results(declared)
    assert list(found) == [check.name for check in CHECKS]
    assert {result.text for each in found.values() for result in each if result.status != "ok"} == {
        "no worker consumes from site.index, site.crawl, site.page, site.timer, site.pack, site.tick, orchestrator, "
        "orchestrator.requests now",
        "no tick ran for 60 s, so no site is crawled or packed: are beat and a worker of site.tick running, and do "
        "they hang?",
    }
    assert management_api(declared, connection).topology() == before
    assert len(found["confirms"]) == 3


def test_queues_that_wait_for_the_store_are_not_reported_as_queues_without_a_worker(declared: Settings) -> None:
    store_breaker(get_redis(declared.redis)).fail(reason="503 Slow Down")
    found = results(declared, "work queues", "circuit breakers")
    assert [(result.status, result.text) for result in found["work queues"]] == [
        ("warning", "no worker consumes from site.timer, site.tick, orchestrator, orchestrator.requests now"),
        ("ok", "8 work queue(s) answer"),
    ]
    assert [result.status for result in found["circuit breakers"]] == ["problem"]


def test_a_missing_topology_is_a_problem_and_the_probes_still_succeed(settings: Settings) -> None:
    found = results(settings, "topology", "confirms", "waiting")
    statuses = {name: {result.status for result in each} for name, each in found.items()}
    assert statuses == {"topology": {"problem"}, "confirms": {"ok"}, "waiting": {"ok"}}


def test_a_missing_management_api_is_one_problem_and_what_needs_none_is_checked(declared: Settings) -> None:
    needing = ("topology", "at-least-once", "cluster", "dead sets")
    found = results(changed(declared, broker_api_url=SecretStr("")), *needing, "waiting")
    assert [each.text.partition(":")[0] for each in found["topology"]] == ["BROKER_API_URL is not set"]
    assert found.keys() == {"topology", "waiting"}
    assert {each.status for each in found["waiting"]} == {"ok"}


def test_a_worker_that_looks_at_the_broker_names_a_missing_queue_and_its_remedy(
    declared: Settings, connection: Any
) -> None:
    with connection.channel() as channel:
        channel.queue_delete("site.pack")
    assert quick_problems(declared)["work queues"] == [
        "the broker has no queue site.pack: run perennial topology apply"
    ]


def test_classic_queues_are_a_warning(settings: Settings, connection: Any) -> None:
    classic = changed(settings, queue_type="classic")
    assert not declare_all(connection, classic)
    found = results(classic, "at-least-once", "waiting")
    assert [result.status for result in found["at-least-once"]] == ["warning"]
    assert "lose a message if the broker dies" in found["at-least-once"][0].text
    assert [result.status for result in found["waiting"]] == ["ok"]


def test_a_short_consumer_timeout_of_a_queue_is_a_problem(declared: Settings, connection: Any) -> None:
    """RabbitMQ 3.12 and later read `consumer-timeout`; it is in the arguments of the queue or in a policy."""
    with connection.channel() as channel:
        channel.queue_delete("site.pack")
        arguments = {"x-queue-type": "quorum", "x-consumer-timeout": 60_000}
        channel.queue_declare("site.pack", durable=True, auto_delete=False, arguments=arguments)
    # The broker's report has the arguments.
    found = results(declared, "topology", "consumer_timeout")["consumer_timeout"]
    [packer] = [result for result in found if result.text.startswith("packer")]
    assert (packer.status, "60 s (as site.pack or its policy says)" in packer.text) == ("problem", True)


def test_a_clock_that_differs_by_more_than_two_seconds_is_named_with_its_skew(
    declared: Settings, connection: Any
) -> None:
    now = [reading.is_skewed() for reading in clock_readings(declared, connection)]
    early = clock_readings(declared, connection, now=lambda: time.time() - 3_600)
    assert now == [False, False]

    def skewed() -> list[str]:
        late = clock_readings(declared, connection, now=lambda: time.time() + 3)
        return [str(reading) for reading in late if reading.is_skewed()]

    # A reading says less where its answer was slow.
    eventually(lambda: "Redis 3.0 s behind this machine" in skewed(), "Redis is skewed")
    assert [(each.owner, each.is_skewed(), round(each.ahead, -1)) for each in early] == [
        ("Redis", True, 3_600),
        ("the broker", True, 3_600),
    ]


def test_a_broker_and_a_redis_that_are_away_are_outages_of_one_line_each_and_redis_is_waited_for_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=10) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        broker_url = SecretStr("amqp://user:secret@127.0.0.1:1//")
        away = changed(settings, broker_url=broker_url, redis_url=SecretStr(url))
        found = results(away)
        assert list(found) == ["broker", "redis", *(check.name for check in CHECKS if not check.needs)]
        assert len(found["redis"]) == 1
        assert "secret" not in found["broker"][0].text
        assert found["broker"][0].text.endswith(". Check BROKER_URL")
        silent.accept()[0].close()
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()
        assert [each.status for each in found["store"]] == ["ok", "ok"]
        monkeypatch.setattr(up, "get_settings", lambda: away)
        first, second = CliRunner().invoke(crawl.cli, ["status"]).stderr.splitlines()
        assert first.startswith("RabbitMQ does not answer: ")
        assert second.startswith("Redis does not answer: Timeout")


def test_a_redis_without_a_limit_of_memory_or_that_evicts_keys_is_named_with_what_to_do(
    settings: Settings, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy: Any = redis.info()
    assert healthy["maxmemory"] > 2**28

    def named(**differs: Any) -> list[tuple[str, str]]:
        """Return what the check says of a Redis that differs in its INFO."""
        stub = SimpleNamespace(ping=lambda: True, info=lambda: healthy | differs)
        monkeypatch.setattr(checks, "get_quick_redis", lambda _url: stub)
        return [(result.status, result.text) for result in results(settings, "redis")["redis"]]

    [(status, text)] = named()
    assert (status, "survive a restart" in text) == ("ok", True)
    for differs, status, text in (
        ({"maxmemory": 0}, "warning", "Set maxmemory"),
        ({"maxmemory_policy": "allkeys-lru"}, "problem", "use noeviction"),
        ({"aof_enabled": 0}, "warning", "a restart loses timers and frontier"),
        ({"aof_last_write_status": "err"}, "problem", "cannot write its append-only file: err"),
    ):
        assert [text in said for found, said in named(**differs) if found == status] == [True], differs


def test_ticks_that_stopped_are_a_warning_although_all_queues_have_consumers(settings: Settings, redis: Redis) -> None:
    TickWatch(redis).note()
    (result,) = results(settings, "ticks")["ticks"]
    assert (result.status, result.text) == ("ok", "the last tick ran 0 s ago: timers and schedules work")
    redis.delete("perennial:ticked")
    (result,) = results(settings, "ticks")["ticks"]
    assert result.status == "warning"


def test_doctor_and_status_name_every_open_circuit_breaker_and_the_error_that_opened_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"musicbrainz_url": SecretStr("postgresql://127.0.0.1/x"), "broker_url": SecretStr("amqp://127.0.0.1:1//")}
    served = changed(settings, **given)
    redis = get_redis(served.redis)
    art = ServiceBreakers.of("cover-art-archive", served, redis)
    store = store_breaker(redis)
    for breaker in (*art, store):
        for item in range(OUTAGE_ITEMS):
            breaker.fail(str(item), reason=f"503 of {breaker.name}")
    found = [(result.status, result.text) for result in results(served, "circuit breakers")["circuit breakers"]]
    services = {
        "archive of cover-art-archive": "art:cover-art-archive",
        "MusicBrainz database": "musicbrainz:database",
        "MusicBrainz web service": "musicbrainz:web-service",
        "public archive": "art-public",
        "store": "store",
    }
    assert [status for status, _ in found] == ["problem"] * len(services)
    monkeypatch.setattr(up, "get_settings", lambda: served)
    shown = CliRunner().invoke(crawl.cli, ["status"])
    broker, *lines, database = shown.stderr.splitlines()
    assert broker.startswith("RabbitMQ does not answer: ")
    assert 'connection to server at "127.0.0.1"' in database
    for texts in ([text for _, text in found], lines):
        assert [re.sub(r"wait \d+ s more", "wait", text) for text in texts] == [
            f"the {service} is unavailable, its messages wait: 503 of {name}" for service, name in services.items()
        ]
    assert shown.stdout == "perennial up does not run here\n"


def test_a_store_without_its_marker_is_a_problem(settings: Settings) -> None:
    away = changed(settings, broker_url=SecretStr("amqp://127.0.0.1:1//"))
    assert [result.text for result in results(away, "store")["store"]][1] == "it has its marker, store.json"
    open_store(settings.store).delete(MARKER_KEY)
    writes, marker = results(away, "store")["store"]
    assert (writes.status, marker.status) == ("ok", "problem")
    assert "`perennial store create` writes one" in marker.text


def test_an_orchestrator_that_reads_another_store_is_a_problem(declared: Settings, by_hand: ByHand) -> None:
    ours = read_marker(open_store(declared.store))
    read = ["another", ours]

    def reply(request: Delivery) -> None:
        routes = Routes(orchestrator="o", ready=True, routes=(), searchers=(), store_id=read.pop())
        by_hand.reply(request, to_json(routes))

    with consumed(declared.broker, reply, queue=REQUESTS, exists=True):
        [same], [another] = (results(declared, "orchestrator")["orchestrator"] for _ in range(2))
    assert (same.status, same.text) == ("ok", "it reads the same store")
    assert another.status == "problem"
    assert f"another store (another) than STORE_URL ({ours})" in another.text


def test_the_command_prints_json_and_exits_with_1_on_a_problem(
    declared: Settings, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "get_settings", lambda: declared)
    good = CliRunner().invoke(command.cli, ["--json"])
    assert good.exit_code == 0
    assert {each["status"] for each in json.loads(good.stdout)} == {"ok", "warning"}
    with connection.channel() as channel:
        channel.queue_delete("site.tick")
    bad = CliRunner().invoke(command.cli, [])
    assert bad.exit_code == 1
    assert "problem  topology:         queue site.tick: missing; perennial topology apply" in bad.stdout
