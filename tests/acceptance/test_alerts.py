"""Each alert rule fires in a real Prometheus, for a real fault of the real processes, and resolves when that is over.

The rules are those of docs/monitoring/alerts.yml with shorter times and the same thresholds. What would take hours has
its age from the start: a pack, a message, an event.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psutil
import pytest
from kombu import Connection
from ruamel.yaml import YAML

from app import private_services as private
from app.broker.publishing import Publisher
from app.coverart.event_table import MAX_ATTEMPTS
from app.coverart.outages import OUTAGE_ITEMS
from app.messages.envelopes import site_message
from app.processes.process_states import ProcessState, current_states, send_signal
from app.processes.procfile import procfile
from app.redis_state.client import get_redis
from app.storage.layout import frames_key
from app.storage.open import open_store
from config.settings import ROOT, Settings
from tests.servers import archive
from tests.servers.musicbrainz import database
from tests.servers.site import Site, failure, page
from tests.support.art import ArtSystem, art_system
from tests.support.command import perennial
from tests.support.corner import environment_of, own_vhost, settings_for
from tests.support.fleet import Packs
from tests.support.kill import service_processes
from tests.support.prometheus import Prometheus, prometheus
from tests.support.waiting import eventually
from tests.support.web import free_port
from tests.support.worker import start_module

pytestmark = [pytest.mark.acceptance, pytest.mark.long, pytest.mark.timeout(600)]

[GROUP] = YAML(typ="safe").load((ROOT / "docs/monitoring/alerts.yml").read_text())["groups"]
#: Ranges of expressions, and the shorter ones in their place. The times of `for` become 0.
RANGES = {"[1h:1m]": "[2s:1s]", "[5m]": "[10s]"}


def quick(rule: dict[str, Any]) -> dict[str, Any]:
    """Return a rule with shorter times, and nothing else changed."""
    return {**rule, "expr": re.sub(r"\[.*?\]", lambda found: RANGES[found[0]], rule["expr"]), "for": "0s"}


@dataclass
class MonitoredSystem:
    """The processes of `perennial up`, and a Prometheus that scrapes its web process."""

    art: ArtSystem
    settings: Settings
    services: Settings
    site: Site
    prometheus: Prometheus

    def start(self) -> None:
        """Start all processes."""
        self._up = start_module(self.art.environment, self.art.folder / "up.log", "app.cli.main", "up")

    def stop(self) -> None:
        """Stop all processes."""
        self._up.process.terminate()
        self._up.process.wait(60)

    def state(self, name: str) -> ProcessState:
        """Return the state of a process of the Procfile."""
        return next(each for each in current_states(self.settings.data_dir) if each.name == name)

    def perennial(self, *arguments: str) -> None:
        """Run a command of an operator, which succeeds."""
        done = perennial(self.art.environment, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr

    def publish(self, kind: str, count: int = 1, **payload: Any) -> None:
        """Publish equal messages of `site`."""
        publisher = Publisher(self.settings.broker)
        publisher.publish([site_message(kind, **payload)] * count)
        publisher.close()

    def await_alerts(self, *expected: str) -> None:
        """Wait until exactly these alerts fire."""
        eventually(lambda: self.prometheus.alerts() == set(expected), f"{expected} alone fire", seconds=200, every=0.5)


@pytest.fixture(scope="module")
def system(
    private_services: Settings, event_queue_template: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MonitoredSystem]:
    """Run everything, with a site that was crawled and packed."""
    folder, web, urls = tmp_path_factory.mktemp("alerts"), free_port(), private.up(private_services)
    ours = {"WEB_ADDRESS": f"127.0.0.1:{web}", "FLOWER_ADDRESS": f"127.0.0.1:{free_port()}", "WORKER_CONCURRENCY": "1"}
    ours |= {"SEARCHER_PROCESSES": "1", "RETRY_MAX": "1", "RETRY_TIMEOUT_MS": "1000"}
    with ExitStack() as running:
        running.callback(get_redis(urls.redis_url).flushdb)
        broker_url = running.enter_context(own_vhost(urls))
        database_url = running.enter_context(database.copy_of(*event_queue_template))
        settings = settings_for(folder, broker_url, urls.redis_url, urls.broker_api_url)
        environment = environment_of(settings)
        art = running.enter_context(art_system(settings, environment, database_url, folder, "event_queue", **ours))
        site = running.enter_context(Site({"/": page("Home", "amber"), "/robots.txt": failure(404)}))
        watching = running.enter_context(
            prometheus(folder, f"127.0.0.1:{web}", [quick(rule) for rule in GROUP["rules"]])
        )
        found = MonitoredSystem(art, settings, private_services, site, watching)
        found.start()
        running.callback(found.stop)
        found.perennial("index", "--crawl", site.url)
        eventually(lambda: watching.query('perennial_packs{state="placed"} == 1'), "it is placed", seconds=200)
        yield found


# Faults, each with what removes it

Fault = Callable[[MonitoredSystem], Iterator[None]]
#: Each fault, and the alerts that it causes.
FAULTS: dict[str, tuple[Callable[[MonitoredSystem], AbstractContextManager[None]], set[str]]] = {}


def causes(*alerts: str) -> Callable[[Fault], Fault]:
    """Add a fault that exists while it yields."""

    def add(fault: Fault) -> Fault:
        FAULTS[fault.__name__] = contextmanager(fault), set(alerts)
        return fault

    return add


@contextmanager
def hanging(*processes: psutil.Process) -> Iterator[None]:
    """Stop processes for the block."""
    assert processes
    try:
        for process in processes:
            process.suspend()
        yield
    finally:
        for process in processes:
            process.resume()


def of_procfile(system: MonitoredSystem, *names: str) -> Iterator[psutil.Process]:
    """Yield running processes of the Procfile."""
    for name in names:
        running = system.state(name).id
        assert running
        yield psutil.Process(running.pid)


def put_pack(system: MonitoredSystem, domain: str, version: int, *, days: int = 0, is_damaged: bool = False) -> None:
    """Put a pack that is some days old into the store, and announce it; a damaged one lacks its data."""
    packs, built_at = Packs(system.settings, system.art.folder / "packs"), datetime.now(UTC) - timedelta(days=days)
    manifest = packs.publish(domain, version, built_at=built_at.isoformat())
    if is_damaged:
        open_store(system.settings.store).delete(frames_key(domain, manifest.own_object))
    packs.announce(domain)


def post_deletion(system: MonitoredSystem, **properties: Any) -> None:
    """Post the deletion of an image, as MusicBrainz does."""
    system.art.post("delete", f"1\n{uuid4()}\njpg".encode(), **properties)


def add_event(system: MonitoredSystem, gid: str, *, hours: int = 0) -> None:
    """Queue the deletion of an image, as a trigger of the database did some hours ago."""
    system.art.database.execute(
        "INSERT INTO artwork_indexer.event_queue (entity_type, action, message, created)"
        " VALUES ('release', 'delete_image', %s, now() - make_interval(hours => %s))",
        (json.dumps({"gid": gid, "artwork_id": 1, "suffix": "jpg"}), hours),
    )


@causes("PerennialNotReady", "PerennialEventReaderSilent")
def beat_and_the_event_reader_hang(system: MonitoredSystem) -> Iterator[None]:
    with hanging(*of_procfile(system, "beat", "eventreader")):
        yield


# Redis also has the reader's last sign of life.
@causes('PerennialPartUnreadable{part="redis"}', "PerennialEventReaderSilent")
def redis_hangs(system: MonitoredSystem) -> Iterator[None]:
    with hanging(*service_processes("redis-server", system.services.data_dir)):
        yield


@causes('PerennialPartUnreadable{part="queues"}')
def rabbitmq_hangs(system: MonitoredSystem) -> Iterator[None]:
    with hanging(*service_processes("beam.smp", system.services.data_dir)):
        yield


@causes('PerennialDeadLetters{queue="site.dead"}')
def a_page_fails(system: MonitoredSystem) -> Iterator[None]:
    system.site.set("/broken", failure(500))
    system.publish("index", url=system.site.at("/broken"))
    yield
    system.site.set("/broken", page("Repaired", "amber"))
    system.perennial("dead", "replay", "--all")


@causes('PerennialQueueNotDrained{queue="site.timer"}')
def a_worker_hangs_with_a_backlog(system: MonitoredSystem) -> Iterator[None]:
    with hanging(*of_procfile(system, "worker")):
        system.publish("reset_timer", 1_100, domain=system.site.domain)
        yield


# RabbitMQ reports the age of classic queues only, such as this one, and of messages whose sender gave the time.
@causes('PerennialOldMessage{queue="cover-art-archive.delete"}')
def a_worker_hangs_with_an_old_message(system: MonitoredSystem) -> Iterator[None]:
    with hanging(*of_procfile(system, "coverart")):
        post_deletion(system, timestamp=int(time.time()) - 7_200)
        yield


@causes("PerennialQueueMissing")
def a_queue_is_deleted(system: MonitoredSystem) -> Iterator[None]:
    with Connection(system.settings.broker) as connection:
        connection.default_channel.queue_delete("site.delay.512000")
    yield
    system.perennial("topology", "apply")


@causes("PerennialPackMissing", "PerennialCopiesMissing")
def a_pack_is_damaged(system: MonitoredSystem) -> Iterator[None]:
    put_pack(system, "damaged.example", 1, is_damaged=True)
    yield
    put_pack(system, "damaged.example", 2)


@causes("PerennialCopiesMissing")
def a_searcher_hangs(system: MonitoredSystem) -> Iterator[None]:
    with hanging(*of_procfile(system, "searcher.2")):
        yield


@causes('PerennialPackTooOld{domain="old.example"}')
def a_site_was_not_packed(system: MonitoredSystem) -> Iterator[None]:
    put_pack(system, "old.example", 1, days=9)
    yield
    put_pack(system, "old.example", 2)


@causes('PerennialBreakerOpen{service="archive of cover-art-archive"}')
def the_archive_is_away(system: MonitoredSystem) -> Iterator[None]:
    with system.art.archive.away():
        # More than open the circuit breaker: the others wait in the queue, which has no consumer then.
        for _ in range(4 * OUTAGE_ITEMS):
            post_deletion(system)
        yield


@causes('PerennialEventsWait{type="release"}')
def the_event_reader_is_paused(system: MonitoredSystem) -> Iterator[None]:
    system.perennial("caa", "events", "pause")
    add_event(system, str(uuid4()), hours=2)
    yield
    system.perennial("caa", "events", "resume")


@causes('PerennialEventsFailed{type="release"}', 'PerennialDeadLetters{queue="cover-art-archive.failed"}')
def the_archive_refuses_an_event(system: MonitoredSystem) -> Iterator[None]:
    gid, refused = str(uuid4()), archive.error(400, "InvalidRequest", "The request is invalid.")
    system.art.archive.faults.add(refused, path=f"/mbid-{gid}/*", times=MAX_ATTEMPTS)
    add_event(system, gid)
    yield
    system.perennial("caa", "events", "requeue", "--all")


@causes('PerennialProcessDown{instance="web", process="packer"}', 'PerennialQueueWithoutConsumer{queue="site.pack"}')
def the_packer_crashes_again_and_again(system: MonitoredSystem) -> Iterator[None]:
    def is_down() -> bool:
        packer = system.state("packer")
        if packer.id:
            send_signal(packer.id, signal.SIGKILL, group=True)
        return packer.state == "down"

    eventually(is_down, "it stays down", seconds=90)
    system.publish("pack_full", domain=system.site.domain)
    yield
    system.stop()
    system.start()


def test_no_alert_fires_in_a_healthy_system_that_has_the_metrics_of_all_rules(system: MonitoredSystem) -> None:
    quiet = "absent_over_time(ALERTS[20s]) and on () min_over_time(up[20s]) == 1"
    eventually(lambda: system.prometheus.query(quiet), "no alert fired for 20 s", seconds=90)
    running = system.prometheus.query("perennial_process_running == 1")
    assert {each["metric"]["process"].partition(".")[0] for each in running} == set(procfile())
    used = set(re.findall(r"perennial_\w+", str(GROUP)))
    # No event failed, and no message waits.
    assert {name for name in used if not system.prometheus.query(name)} == {
        "perennial_events_failed",
        "perennial_queue_oldest_seconds",
    }


@pytest.mark.parametrize("fault", FAULTS)
def test_the_alerts_of_a_fault_alone_fire_and_resolve(system: MonitoredSystem, fault: str) -> None:
    cause, expected = FAULTS[fault]
    system.await_alerts()
    with cause(system):
        system.await_alerts(*expected)
    system.await_alerts()


def test_each_rule_has_a_fault_and_only_times_are_shortened() -> None:
    caused = {alert.partition("{")[0] for _, alerts in FAULTS.values() for alert in alerts}
    assert caused == {rule["alert"] for rule in GROUP["rules"]}
    changed = {rule["alert"] for rule in GROUP["rules"] if quick(rule)["expr"] != rule["expr"]}
    assert changed == {"PerennialQueueNotDrained", "PerennialBreakerOpen"}
