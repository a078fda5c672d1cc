"""Canvases whose members fail first, wait and run again: values, links of errors and stamps are those of Celery.

The facts are those of Celery's own t/integration/test_canvas.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from celery import chain, chord, group, states
from celery.canvas import StampingVisitor
from celery.result import AsyncResult

from app.private_services import Urls
from tests.support import canvas_app
from tests.support.canvas_app import called_back, fail, hang
from tests.support.canvas_bench import ENDED, Bench, canvas_bench, lines
from tests.support.canvas_tasks import (
    broken_link,
    called_back_by_id,
    late,
    late_add,
    late_add_to_all,
    late_guarded,
    late_more,
    late_priority,
    note_stamps,
)
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.acceptance,
    # Celery says so of each link to a chord, unless it is also for each member of the header.
    pytest.mark.filterwarnings(
        "ignore:task_allow_error_cb_on_chord_header:celery.exceptions.CPendingDeprecationWarning"
    ),
]

#: Members of each kind in one chord.
MIXED = [late.si(1), chain([late.si(2)] * 3), group([late.si(3)] * 3), chord([late.si(4)] * 3, late.si(5))]
#: A canvas, and its value. Each member fails in its first run.
FACTS: dict[str, tuple[Any, Any]] = {
    "groups in a chain": (late.s(1) | group([late_add.s(1)] * 2) | group([late_add.s()] * 2) | late_add.s(), 8),
    "chords in a chain": (chain(chord([late.si(1)] * 3, late_add.s()), chord([late_add.s(1)] * 3, late_add.s())), 12),
    "groups instead of members": (group([late_add_to_all.s([2, 1], 1), late_add_to_all.s([4], 1)]), [[3, 2], [5]]),
    "chord of everything": (group([chord(MIXED, late.s())]), [[1, 2, 3, 3, 3, 5]]),
    "members added by a member": (group([late_more.s([1, 2, 3], 4)]) | late_add.s(), 18),
    "soft time limit that a member catches": (
        chord([late_add.s(1, 2), late_guarded.s(4).set(soft_time_limit=1)], late_add.s()),
        7,
    ),
    "priority of a chain": (late_priority.signature(priority=3) | late_priority.signature(priority=5), 5),
}


@pytest.fixture(scope="module")
def bench(services: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with canvas_bench(services, tmp_path_factory.mktemp("canvas")) as running:
        yield running


@pytest.fixture(scope="module")
def sent(bench: Bench) -> dict[str, AsyncResult]:
    """All canvases, sent at once."""
    return {name: canvas.delay() for name, (canvas, _) in FACTS.items()}


@pytest.mark.parametrize("name", FACTS)
def test_a_canvas_with_members_that_fail_first_has_celerys_own_value(sent: dict[str, AsyncResult], name: str) -> None:
    assert sent[name].get(timeout=2 * ENDED) == FACTS[name][1]


# Links of errors


@dataclass
class Failing:
    """A canvas that fails, with a link that notes the error and the id that it is given."""

    journal: str
    link: Any
    #: The ids of the tasks that are to fail.
    failing: list[str] = field(default_factory=list)
    result: Any = None

    def fails(self) -> Any:
        """Return a new task that fails in each run."""
        task = fail.si(f"{self.journal}.runs")
        self.failing.append(task.freeze().id)
        return task

    def hangs(self) -> Any:
        """Return a new task that meets its hard time limit in each run."""
        task = hang.si(f"{self.journal}.runs")
        self.failing.append(task.freeze().id)
        return task

    def linked(self, canvas: Any) -> Any:
        """Return a canvas with the link."""
        canvas.link_error(self.link)
        return canvas


#: Canvases that fail, and of what the link is called: of each task that failed, or of the last task, the chord's body.
Links = dict[str, tuple[Callable[[Failing], Any], Callable[[Failing], list[str]]]]


def each(failing: Failing) -> list[str]:
    return sorted(failing.failing)


def body(failing: Failing) -> list[str]:
    return [failing.result.id]


LINKS: Links = {
    "task": (lambda its: its.linked(its.fails()), each),
    "task that meets its hard time limit": (lambda its: its.linked(its.hangs()), each),
    "chain": (lambda its: its.linked(late.s(1) | its.fails() | late.s()), each),
    "group of which several fail": (
        lambda its: its.linked(group([late.s(i) for i in range(3)] + [its.fails() for _ in range(5)])),
        each,
    ),
    "header": (lambda its: its.linked(chord([its.fails()], late.s())), body),
    "link of the body": (lambda its: chord([late.si(1), its.fails()], its.linked(late.s())), body),
}
KINDS = {"in the process": called_back, "by id": called_back_by_id}


@pytest.fixture(scope="module")
def ended(bench: Bench) -> dict[str, Failing]:
    """All canvases, sent at once, and the links that they called."""
    all_failing = {}
    for name, (canvas, _) in LINKS.items():
        for kind, link in KINDS.items():
            journal = bench.journal(f"{name} {kind}".replace(" ", "-"))
            its = all_failing[f"{name} {kind}"] = Failing(journal, link.s(journal=journal))
            its.result = canvas(its).delay()
    for its in all_failing.values():
        eventually(its.result.ready, f"{its.journal} ends", seconds=2 * ENDED)
    idle(bench)
    return all_failing


def idle(bench: Bench) -> None:
    """Wait until no message is left: a link that was called too often would have been noted by then."""
    inspect = canvas_app.app.control.inspect(timeout=2)
    queues = ["work", "work.delay.300", "work.delay.600"]

    def is_idle() -> bool:
        waiting = [*(inspect.active() or {"": [1]}).values(), *(inspect.reserved() or {"": [1]}).values()]
        return not any(waiting) and not any(bench.broker.depths(queues))

    eventually(lambda: all(is_idle() for _ in range(2)), "no message is left", seconds=2 * ENDED)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LINKS)
def test_the_link_of_an_error_is_called_once_for_each_dead_letter_that_celery_would_name(
    ended: dict[str, Failing], name: str, kind: str
) -> None:
    its = ended[f"{name} {kind}"]
    with pytest.raises(Exception, match=r"no such shelf|TimeLimitExceeded"):
        its.result.get(timeout=ENDED)
    assert sorted(lines(f"{its.journal}.ids")) == LINKS[name][1](its)


def test_a_link_that_fails_is_retried_or_logged_and_changes_nothing_for_the_message(bench: Bench) -> None:
    """A link that is sent as a task is one with retries. Celery logs what a link raises in the process of the run."""
    journal = bench.journal("link-fails")
    result = fail.apply_async((journal,), link_error=[broken_link.s(), called_back.s(journal=journal)])
    with pytest.raises(KeyError):
        result.get(timeout=ENDED)
    eventually(lambda: "link_error KeyError" in lines(journal), f"{lines(journal)}", seconds=ENDED)
    assert f"Errback {broken_link.name!r} raised an exception" in bench.worker.log

    def letters() -> int:
        return [each.headers["id"] for each in bench.broker.peek("work.dead")].count(result.id)

    eventually(letters, "the message is dead-lettered", seconds=ENDED)
    assert letters() == 1


# Stamps


class Aisle(StampingVisitor):  # type: ignore[misc]
    """Stamps each task of a canvas, and marks links."""

    def on_signature(self, sig: Any, **_: Any) -> dict[str, Any]:
        """Return the stamp."""
        return {"aisle": 7}

    def on_callback(self, callback: Any, **_: Any) -> dict[str, Any]:
        """Return the mark of a link."""
        return {"of": "link"}

    def on_errback(self, errback: Any, **_: Any) -> dict[str, Any]:
        """Return the mark of an error's link."""
        return {"of": "link_error"}


def stamps(journal: str) -> list[Any]:
    return [json.loads(line) for line in lines(f"{journal}.stamps")]


def test_stamps_survive_a_retry_a_dead_letter_and_a_replay_and_are_in_each_result(bench: Bench) -> None:
    journal = bench.journal("stamped")
    task = note_stamps.si(journal, 4)
    task.link(note_stamps.si(f"{journal}-link"))
    task.link_error(note_stamps.si(f"{journal}-link_error"))
    task.stamp(visitor=Aisle())
    # It waits for so long that a busy machine sees it wait.
    result = task.apply_async(retry_timeout_ms=1_000)

    def stored() -> dict[str, Any]:
        meta = canvas_app.app.backend.get_task_meta(result.id, cache=False)
        return {name: meta.get(name) for name in ("status", "aisle", "stamped_headers")}

    eventually(lambda: stored()["status"] == states.RETRY, "it is retried", seconds=ENDED, every=0.02)
    kept = {"aisle": 7, "stamped_headers": ["aisle"]}
    assert stored() == {"status": states.RETRY, **kept}
    with pytest.raises(KeyError):
        result.get(timeout=ENDED)
    assert stored() == {"status": states.FAILURE, **kept}
    bench.replay(result.id)
    eventually(lambda: stored() == {"status": states.SUCCESS, **kept}, f"it ends: {stored()}", seconds=ENDED)
    idle(bench)
    assert stamps(journal) == [{"aisle": 7}] * 5
    assert stamps(f"{journal}-link") == [{"aisle": 7, "of": "link"}] * 2
    assert stamps(f"{journal}-link_error") == [{"aisle": 7, "of": "link_error"}] * 2


def test_the_main_process_records_the_retry_and_the_end_of_a_lost_run_with_its_stamps(bench: Bench) -> None:
    task = hang.si(bench.journal("stamped-hang"))
    task.stamp(visitor=Aisle())
    # It waits for so long that a busy machine sees it wait.
    result = task.apply_async(retry_timeout_ms=3_000, retry_max=1)

    def stored() -> tuple[str, Any]:
        meta = canvas_app.app.backend.get_task_meta(result.id, cache=False)
        return meta["status"], meta.get("aisle")

    eventually(lambda: stored() == (states.RETRY, 7), f"it is retried: {stored()}", seconds=ENDED, every=0.02)
    with pytest.raises(Exception, match="TimeLimitExceeded"):
        result.get(timeout=ENDED)
    assert stored() == (states.FAILURE, 7)
