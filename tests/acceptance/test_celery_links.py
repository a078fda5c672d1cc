"""Links of errors, and stamps, of canvases whose members are retried, dead-lettered and replayed.

The facts are those of Celery's own t/integration/test_canvas.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from celery import chain, chord, group, signature, states
from celery.canvas import StampingVisitor
from celery.exceptions import ChordError

from app.private_services import Urls
from tests.support import canvas_app
from tests.support.canvas_app import called_back, fail, hang
from tests.support.canvas_bench import ENDED, Bench, canvas_bench, lines, without_retries
from tests.support.canvas_tasks import (
    broken_link,
    called_back_by_id,
    late,
    late_failing,
    late_failing_chain,
    late_note,
    late_stamped_other,
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


def first(failing: Failing) -> list[str]:
    return failing.failing[:1]


def body(failing: Failing) -> list[str]:
    return [failing.result.id]


def by_name(failing: Failing) -> Any:
    task = failing.fails()
    return failing.linked(signature(task.task, args=task.args, immutable=True, app=canvas_app.app).set(task_id=task.id))


LINKS: Links = {
    "task": (lambda its: its.linked(its.fails()), each),
    "task by name": (by_name, each),
    "task that meets its hard time limit": (lambda its: its.linked(its.hangs()), each),
    "chain": (lambda its: its.linked(late.s(1) | its.fails() | late.s()), each),
    "members of a chain": (lambda its: chain(its.linked(its.fails()) for _ in range(9)), first),
    "group whose first member fails": (lambda its: its.linked(group(its.fails(), late.s(1))), each),
    "group of which several fail": (
        lambda its: its.linked(group([late.s(i) for i in range(3)] + [its.fails() for _ in range(5)])),
        each,
    ),
    "header": (lambda its: its.linked(chord([its.fails()], late.s())), body),
    "body": (lambda its: its.linked(chord([late.si(1)], its.fails())), each),
    "link of the body": (lambda its: chord([late.si(1), its.fails()], its.linked(late.s())), body),
    "chain in a header": (lambda its: its.linked(chord([chain(late.si(1), its.fails(), late.s())], late.s())), body),
    "chain that is a body": (lambda its: its.linked(chord([late.si(1)], chain(late.s(), its.fails(), late.s()))), each),
    "group that is a body, of which several fail": (
        lambda its: its.linked(chord([late.si(1)], group([late.si(1), *(its.fails() for _ in range(5))]))),
        each,
    ),
}
KINDS = {"in the process": called_back, "by id": called_back_by_id}


@pytest.fixture(scope="module")
def bench(services: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with canvas_bench(services, tmp_path_factory.mktemp("links")) as running:
        yield running


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


#: A header's members that fail, and the others.
HEADERS = ["f", "fff", "fo", "foo", "fof", "fofo", "fofof"]


@pytest.fixture
def errors_of_headers() -> Iterator[None]:
    """Let a link to a chord be one to each member of its header, too."""
    canvas_app.app.conf.task_allow_error_cb_on_chord_header = True
    yield
    canvas_app.app.conf.task_allow_error_cb_on_chord_header = False


@pytest.mark.usefixtures("errors_of_headers")
def test_links_of_a_header_are_called_for_each_dead_letter_and_once_for_the_body(bench: Bench) -> None:
    all_failing = []
    for members in HEADERS:
        for kind in ("chord", "chain"):
            journal = bench.journal(f"header-{members}-{kind}")
            its = Failing(journal, called_back.s(journal=journal))
            header = [its.fails() if member == "f" else late.si(42) for member in members]
            its.result = its.linked(
                chord(header, late.s()) if kind == "chord" else chain(group(header), late.s())
            ).delay()
            all_failing.append(its)
    for its in all_failing:
        with pytest.raises((KeyError, ChordError)):
            its.result.get(timeout=2 * ENDED)
    idle(bench)
    for its in all_failing:
        # Of one member Celery makes no header, but a chain.
        is_chain = its.journal.endswith("header-f-chain")
        assert sorted(lines(f"{its.journal}.ids")) == sorted(its.failing + body(its) * (not is_chain)), its.journal


def test_links_inside_and_outside_of_what_replaced_a_member_are_both_called_once(bench: Bench) -> None:
    inner, outer, member = bench.journal("inner"), bench.journal("outer"), bench.journal("replaced")
    canvas = late.s("Hello") | late_failing_chain.si(f"{inner}.runs", inner) | late.s()
    canvas.link_error(late_note.si(outer, "link_error"))
    replaced = late_failing.si(f"{member}.runs")
    replaced.link_error(late_note.si(member, "link_error"))
    results = [canvas.delay(), (replaced | late.s()).delay(), group(replaced.clone(), late.s(42)).delay()]
    for result in results:
        with pytest.raises(KeyError):
            result.get(timeout=ENDED)
    idle(bench)
    assert [without_retries(journal) for journal in (inner, outer, member)] == [
        ["link_error"],
        ["link_error"],
        ["link_error"] * 2,
    ]


def test_a_chord_in_a_header_calls_the_link_of_the_outer_chord_once_and_no_body(bench: Bench) -> None:
    journal, ran = bench.journal("nested"), bench.journal("nested-body")
    inner = chord([late.si("t1"), fail.si(f"{journal}.runs")], late.si("t2"))
    canvas = chord(group([late.si("t3"), inner]), late_note.si(ran, "body"))
    canvas.link_error(late_note.si(journal, "link_error"))
    with pytest.raises(ChordError):
        canvas.delay().get(timeout=ENDED)
    idle(bench)
    assert (without_retries(journal), lines(ran)) == (["link_error"], [])


def test_a_dead_letter_fails_a_chord_whatever_its_body_is(bench: Bench) -> None:
    bodies = [
        late.si(1),
        late.si(1) | late.si(2),
        group(late.si(1), late.si(2)),
        chord(group(late.si(1), late.si(2)), late.si(3)),
    ]
    failing = fail.si(bench.journal("bodies"))
    canvases = [chain(group(late.si(1), failing.clone()), body) for body in bodies]
    canvases += [chain(chain(group(late.si(1), failing.clone()), late.s()), late.s())]
    canvases += [group(late.si(1), chain(failing.clone(), group(late.si(2), late.si(3)), late.si(4))) | late.s()]
    canvases += [late.s(1) | late.s() | group(late.s(), failing.clone())]
    for result in [canvas.delay() for canvas in canvases]:
        with pytest.raises((KeyError, ChordError)):
            result.get(timeout=ENDED)
    assert "task_id must not be empty" not in bench.worker.log


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


def test_each_run_of_each_member_of_a_canvas_has_its_stamps(bench: Bench) -> None:
    journals: list[str] = []

    def stamped() -> Any:
        journals.append(bench.journal(f"stamps-{len(journals)}"))
        return note_stamps.si(journals[-1])

    canvases = [
        stamped(),
        group(stamped(), stamped()),
        chain(stamped(), stamped()),
        chord([stamped(), stamped()], stamped()),
        chain(group(stamped()), stamped()),
        group(stamped() | stamped(), stamped() | stamped()),
        chain(chain(stamped() | stamped(), stamped() | stamped()), stamped() | stamped()),
        chord(group(stamped() | stamped(), chord([stamped(), stamped()], stamped())), stamped()),
    ]
    for canvas in canvases:
        canvas.stamp(visitor=Aisle())
    for result in [canvas.delay() for canvas in canvases]:
        result.get(timeout=ENDED)
    assert [stamps(journal) for journal in journals] == [[{"aisle": 7}] * 2] * len(journals)


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


def test_the_main_process_keeps_the_stamps_of_what_it_announces(bench: Bench) -> None:
    task = hang.si(bench.journal("stamped-hang"))
    task.stamp(visitor=Aisle())
    result = task.delay()
    with pytest.raises(Exception, match="TimeLimitExceeded"):
        result.get(timeout=ENDED)
    assert canvas_app.app.backend.get_task_meta(result.id, cache=False)["aisle"] == 7


def test_what_replaces_a_task_has_the_stamps_that_it_was_given_as_in_celery(bench: Bench) -> None:
    journal = bench.journal("stamped-other")
    task = late_stamped_other.si(journal)
    task.stamp(visitor=Aisle())
    task.delay().get(timeout=ENDED)
    assert stamps(journal) == [{"replaced": "yes"}] * 2
