"""The facts of Celery's own t/integration/test_canvas.py hold when members fail first, wait and run again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ImproperlyConfigured
from celery.result import AsyncResult, ResultSet
from celery.signals import before_task_publish

from app.private_services import Urls
from tests.support import canvas_app
from tests.support.canvas_app import fail
from tests.support.canvas_bench import ENDED, Bench, canvas_bench, lines, without_retries
from tests.support.canvas_tasks import (
    late,
    late_add,
    late_add_to_all,
    late_chain,
    late_chord_more,
    late_empty,
    late_group,
    late_guarded,
    late_ids,
    late_more,
    late_nest,
    late_note,
    late_plus_other,
    late_priority,
    late_rebuilt,
    late_signature,
    late_started,
    late_tenth,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

#: A canvas, and its value. Each member fails in its first run.
FACTS: dict[str, tuple[Any, Any]] = {
    "chain": (late_add.s(4, 4) | late_add.s(8) | late_add.s(16), 32),
    "chains in a group": (late_add.s(5, 6) | group(late_add.s(1) | late_add.s(2), late_add.s(3)), [14, 14]),
    "nested groups": (group(late.s(1), group(late.s(2), group(late.s(3), late.s(4)))), [1, 2, 3, 4]),
    "groups in a chain": (late.s(1) | group([late_add.s(1)] * 2) | group([late_add.s()] * 2) | late_add.s(), 8),
    "chords in a chain": (chain(chord([late.si(1)] * 3, late_add.s()), chord([late_add.s(1)] * 3, late_add.s())), 12),
    "order of a chord": (chord((late.si(i) for i in range(10)), late.s()), list(range(10))),
    "chord with one member": (chord([late_add.s(2, 5)], late_add_to_all.s(9)), [16]),
    "chord without members": (chord([], late_add_to_all.s(9)), []),
    "groups instead of members": (group([late_add_to_all.s([2, 1], 1), late_add_to_all.s([4], 1)]), [[3, 2], [5]]),
    "chords in a chord": (
        chord([chord([late.s(3), late.s(7)], late.s()), chord([late.s(1)], late.s())], late.s()),
        [[3, 7], [1]],
    ),
    "chain instead of a member": (chord([late.s(1), late_chain.s(2), late.s(3)], late.s()), [1, 2, 3]),
    "chain instead of a body": (chord([late.s(42)], late.s() | late_chain.s() | late.s()), [42]),
}
#: Members of each kind in one chord.
MIXED = [late.si(1), chain([late.si(2)] * 3), group([late.si(3)] * 3), chord([late.si(4)] * 3, late.si(5))]
FACTS["chord of everything"] = (group([chord(MIXED, late.s())]), [[1, 2, 3, 3, 3, 5]])


FACTS |= {
    "chain with one member": (chain(late_add.s(3, 4)), 7),
    "task instead of a member": (late_add.s(2, 2) | (late_add.s(4) | late_plus_other.s(8) | late_add.s(16)), 32),
    "chain instead of the first": (chain(late_chain.si(42), late.s()), 42),
    "two chains of chords": (
        chain(*(chord([late_add.s(i)] * 2, late_add.s()) for i in (1, 1, 0)))
        | chain(*(chord([late_add.s(i)] * 2, late_add.s()) for i in (10, 0, 1))),
        178,
    ),
    "parallel chords": (group([chord([late_add.s(1, 2), late_add.s(3, 4)], late_add.s())] * 2), [10, 10]),
    "groups instead of members in chords": (
        chord(
            [
                chord([late_add.s(1, 2), late_plus_other.s(3, 4)], late_add_to_all.s(5)) | late_add.s(),
                chord([late_plus_other.s(6, 7), late_add.s(0, 0)], late_add_to_all.s(8)) | late_add.s(),
            ],
            late_add_to_all.s(9),
        ),
        [29, 38],
    ),
    "chord in a chord in a chord": (
        chord(
            [late_add.s(0, 1)],
            chord([late_add.s()] * 2, chain(late_add.s(), group(late_add.s(8), late_add.s(16)), late_add.s())),
        ),
        28,
    ),
    "members added by a member": (group([late_more.s([1, 2, 3], 4)]) | late_add.s(), 18),
    "chord added by a member": (group([late_chord_more.s([1, 2, 3], 4)]) | late_add.s(), 18),
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


@pytest.mark.parametrize("members", [100, pytest.param(1_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_large_groups_and_chords_of_which_every_tenth_member_fails_first_have_celerys_own_value(
    bench: Bench, members: int
) -> None:
    large = {
        "group": (group(late_tenth.s(i) for i in range(members)), list(range(members))),
        "chord": (group(late_tenth.si(i) for i in range(members)) | late_add.s(), sum(range(members))),
        "chord in a chain": (late.si(1) | group(late_tenth.s() for _ in range(members)) | late_add.s(), members),
    }
    for name, (canvas, value) in large.items():
        assert canvas.delay().get(timeout=3 * ENDED) == value, name


def test_members_that_fail_first_run_in_celerys_own_order(bench: Bench) -> None:
    journal, nested = bench.journal("order"), bench.journal("nested")
    before, between, after = (late_note.si(journal, when) for when in ("before", "between", "after"))
    (group([before] * 3) | between | group([after] * 2)).delay().get(timeout=ENDED)
    assert without_retries(journal) == ["before"] * 3 + ["between"] + ["after"] * 2
    late_nest.delay(nested, "ab").get(timeout=ENDED)
    assert without_retries(nested) == ["in a", "in b", "innermost", "out b", "out a"]


def test_members_that_fail_first_keep_their_root_and_parent(bench: Bench) -> None:
    header = group(late_ids.si(i) for i in range(3, 6))
    last = (late_ids.si(1) | late_ids.si(2) | header | late_ids.s(50) | late_ids.si(51)).delay()
    body, members = last.parent, last.parent.parent
    second, first = members.parent, members.parent.parent
    assert last.get(timeout=ENDED) == [first.id, body.id, 51]
    root, parent, noted, number = body.get(timeout=ENDED)
    assert (root, noted, number) == (first.id, [[first.id, second.id, i] for i in range(3, 6)], 50)
    assert parent in [member.id for member in members.results]
    assert second.get(timeout=ENDED) == [first.id, first.id, 2]
    assert first.get(timeout=ENDED) == [first.id, None, 1]


def test_arguments_of_a_call_reach_the_first_members(bench: Bench) -> None:
    adding = group(late_add.s(i) for i in range(4)) | late_add_to_all.s(8)
    both = (late_add.s(2, 2) | adding).apply_async(kwargs={"more": 1})
    group_only = adding.apply_async(args=(4,), kwargs={"more": 1})
    assert both.get(timeout=ENDED) == [13, 14, 15, 16]
    assert sorted(group_only.get(timeout=ENDED)) == [13, 14, 15, 16]


def test_each_member_of_groups_in_a_chain_runs_once(bench: Bench) -> None:
    journal = bench.journal("once")
    echo = [late_note.si(journal, str(number)) for number in range(10)]
    chain(chord(echo[:3], group(echo[3:6])), group(echo[6:7]), group(echo[7:8]), echo[8], echo[9]).delay().get(
        timeout=ENDED
    )
    assert without_retries(journal)[6:] == ["6", "7", "8", "9"]
    assert sorted(without_retries(journal)[:6]) == [str(number) for number in range(6)]


def test_members_of_a_generator_are_sent_while_it_goes_on(bench: Bench) -> None:
    journal = bench.journal("generator")

    def members() -> Iterator[Any]:
        # Celery sends a member when it has the next one.
        yield from (late_note.si(journal, line) for line in ("first", "second"))
        eventually(lambda: "first" in lines(journal), "the first member runs before the last is made", seconds=ENDED)
        yield late_note.si(journal, "last")

    assert chord(members(), late.s()).delay().get(timeout=ENDED) == [None] * 3


def test_the_header_of_a_chord_has_one_id_even_if_the_member_before_it_is_delivered_twice(bench: Bench) -> None:
    journal = bench.journal("twice")

    def publish_too(**message: Any) -> None:
        before_task_publish.disconnect(publish_too)
        with canvas_app.app.producer_or_acquire() as producer:
            target = {name: message[name] for name in ("exchange", "routing_key", "headers")}
            producer.publish(message["body"], serializer="json", **target, **message["properties"])

    before_task_publish.connect(publish_too, weak=False)
    chain(late.s(42), chord([late_group.s(journal), late.s()], late.s())).delay()
    eventually(lambda: len(without_retries(journal)) == 2, f"it runs twice: {lines(journal)}", seconds=ENDED)
    assert len(set(without_retries(journal))) == 1


def test_results_that_are_results_or_signatures_can_be_read(bench: Bench) -> None:
    started = late_started.delay()
    kinds = [f"{outer} of {inner}" for outer in ("chain", "group", "chord") for inner in ("chain", "group", "chord")]
    rebuilt = [(late_signature.s(kind) | late_rebuilt.s()).delay() for kind in kinds]
    (ident, parents), children = started.get(timeout=ENDED)
    assert canvas_app.app.AsyncResult(ident).get(timeout=ENDED) == [5, 6], (parents, children)
    for kind, result in zip(kinds, rebuilt, strict=True):
        assert "late" in result.get(timeout=ENDED), kind


def test_a_set_of_results_has_each_value_and_each_failure(bench: Bench) -> None:
    failing = fail.delay(bench.journal("set"))
    results = ResultSet([failing])
    results.add(late_add.delay(1, 1))
    assert isinstance(results.get(timeout=ENDED, propagate=False)[0], KeyError)
    assert [result.failed() for result in results.results] == [True, False]
    assert (results.ready(), results.successful(), results.failed(), results.completed_count()) == (
        True,
        False,
        True,
        1,
    )


def test_a_task_that_is_replaced_by_nothing_fails(bench: Bench) -> None:
    with pytest.raises(ImproperlyConfigured, match="Cannot replace with an empty chain"):
        (late.s(1) | late_empty.s()).delay().get(timeout=ENDED)
