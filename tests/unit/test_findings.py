"""What the overview gathers beside an act, and finds: silent workers, queues without a worker, letters in shards."""

from __future__ import annotations

import os
import re
import time
from dataclasses import fields, replace
from pathlib import Path
from threading import Event

import pytest

from app.operations.doctor.breaker_states import BreakerState
from app.operations.findings import findings
from app.operations.overview import DeadHistory, Overview, Part, PartReading, Snapshot, as_json
from app.operations.queues import Growth, QueueFigures, QueueReport
from app.web.ops.home import fragments
from config.settings import Settings
from tests.support.scripted import ScriptedSearchClient

pytestmark = pytest.mark.unit

#: Readings of services that are all away.
AWAY = Snapshot(**{part.name: PartReading(trouble="away") for part in fields(Snapshot)})


def texts(snapshot: Snapshot) -> list[str]:
    return [each.text for each in findings(snapshot)]


def test_a_worker_without_heartbeats_is_a_finding_until_it_is_forgotten(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    settings.heartbeat_dir.mkdir()
    for name, age in (("fresh", 2), ("silent", 90), ("of last week", 600_000)):
        (settings.heartbeat_dir / name).touch()
        os.utime(settings.heartbeat_dir / name, (time.time() - age, time.time() - age))
    processes = Overview(settings, routes=ScriptedSearchClient([]).routes).processes.read(time.monotonic() + 60)
    found = [text for text in texts(replace(AWAY, processes=processes)) if "heartbeat" in text]
    assert [re.sub(r"\d+ s", "N s", text) for text in found] == ["the worker silent has sent no heartbeat for N s"]
    # Page and metrics name the same workers.
    assert processes.value
    assert [each.name for each in processes.value.workers] == ["fresh", "silent"]


def test_without_the_management_api_all_figures_count_the_letters_of_shards() -> None:
    dead = QueueFigures(name="site.dead", kind="dead", ready=2)
    report = QueueReport(queues=[dead], trouble="no management API")
    snapshot = replace(AWAY, queues=PartReading(report), dead=PartReading(DeadHistory(5_002, (), None)))
    assert "5,002 dead letters" in texts(snapshot)
    assert '<b class="bad">5,002</b>' in fragments(snapshot)["live-figures"]
    assert as_json(snapshot)["ready"] == {"work": 0, "delay": 0, "dead": 5_002}


def test_a_long_queue_that_grows_by_a_message_a_second_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    growth, now = Growth(), 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def found(**ready: int) -> list[str]:
        queues = [QueueFigures(name=name, kind="work", ready=number, consumers=1) for name, number in ready.items()]
        report = growth.compared(QueueReport(queues=queues))
        return [text for text in texts(replace(AWAY, queues=PartReading(report))) if "arrives" in text]

    assert found(grows=900, slowly=5_000, short=0) == []
    now += 10  # Too soon to compare.
    assert found(grows=2_000, slowly=5_000, short=0) == []
    now += 50
    assert found(grows=1_020, slowly=5_059, short=999, new=5_000) == [
        "more arrives than is done: grows (1,020 ready), +120 a minute"
    ]
    now += 60
    assert found(grows=900, slowly=5_100, short=999) == []


@pytest.mark.parametrize(("seconds", "is_paused"), [(30.0, True), (0.0, False)])
def test_a_queue_needs_no_worker_while_one_job_tries_its_service_again(seconds: float, is_paused: bool) -> None:
    queues = QueueReport(queues=[QueueFigures(name="site.index", kind="work", ready=1)])
    tried = BreakerState("store", reason=None, seconds_open=seconds, queues=("site.index",))
    closed = replace(tried, service="archive", seconds_open=0.0)
    snapshot = replace(AWAY, queues=PartReading(queues), breakers=PartReading([tried, closed]))
    assert is_paused != any("site.index" in text for text in texts(snapshot))


def test_a_value_that_was_being_gathered_during_an_act_is_gathered_again() -> None:
    began, acted, values = Event(), Event(), iter(["before the act", "after it"])

    def gather() -> str:
        value = next(values)
        began.set()
        assert acted.wait(30)
        return value

    part = Part("part", gather, every=60.0)
    part.start()
    assert began.wait(30)
    part.forget()
    acted.set()
    assert part.read(time.monotonic() + 30).value == "after it"
