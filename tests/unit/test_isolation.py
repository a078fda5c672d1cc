"""Messages that may have crashed their workers run alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from celery.worker import state

from app.broker.headers import is_suspect, is_uncounted, unacknowledged
from app.broker.worker.isolation import Isolation
from tests.support.deliveries import delivery

pytestmark = pytest.mark.unit


@dataclass(eq=False)
class Run:
    """A run by name, as the worker's bookkeeping knows it from its arrival to its end."""

    name: str
    is_suspect: bool = False
    was_set_aside: bool = False

    def set_aside(self) -> None:
        self.was_set_aside = True
        self.end()

    def end(self) -> None:
        state.reserved_requests.discard(self)


class Bench:
    """An isolation whose timer is turned by hand."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self._due: list[Callable[[], None]] = []
        self.isolation = Isolation(lambda run: self.started.append(run.name), lambda _s, due: self._due.append(due))

    def arrive(self, name: str, *, suspect: bool = False) -> Run:
        run = Run(name, suspect)
        state.reserved_requests.add(run)
        self.isolation.offer(run)
        return run

    def pass_time(self) -> None:
        due, self._due = self._due, []
        for each in due:
            each()


@pytest.fixture
def bench() -> Iterator[Bench]:
    state.reserved_requests.clear()
    yield Bench()
    state.reserved_requests.clear()


def test_a_suspect_waits_until_nothing_else_runs_and_what_comes_later_waits_for_its_end(bench: Bench) -> None:
    before = bench.arrive("before")
    assert bench.started == ["before"]
    suspect = bench.arrive("suspect", suspect=True)
    later = bench.arrive("later")
    bench.pass_time()
    assert bench.started == ["before"]
    before.end()
    bench.pass_time()
    latest = bench.arrive("latest")
    bench.pass_time()
    assert bench.started == ["before", "suspect"]
    suspect.end()
    bench.pass_time()
    assert bench.started == ["before", "suspect", later.name, latest.name]
    bench.pass_time()
    assert bench.arrive("again").name in bench.started


def test_another_suspect_is_set_aside_and_is_not_in_the_worker_when_the_first_one_kills_it(bench: Bench) -> None:
    first = bench.arrive("first", suspect=True)
    second = bench.arrive("second", suspect=True)
    assert (bench.started, second.was_set_aside) == ([], True)
    bench.pass_time()
    assert bench.started == ["first"]
    first.end()
    bench.pass_time()
    assert not bench.arrive("second again", suspect=True).was_set_aside
    bench.pass_time()
    assert bench.started == ["first", "second again"]


def test_a_lost_connection_forgets_what_waits_and_a_running_suspect_still_runs_alone(bench: Bench) -> None:
    running, waiting = bench.arrive("running", suspect=True), bench.arrive("waiting")
    bench.pass_time()
    bench.isolation.connection_lost()
    waiting.end()
    delivered_again = bench.arrive("waiting again")
    bench.pass_time()
    assert bench.started == ["running"]
    running.end()
    bench.pass_time()
    assert bench.started == ["running", delivered_again.name]
    lost = bench.arrive("other")
    bench.arrive("lost suspect", suspect=True).end()
    bench.isolation.connection_lost()
    lost.end()
    bench.pass_time()
    bench.arrive("new")
    assert bench.started[2:] == ["other", "new"]


def test_a_run_that_ends_in_another_thread_meanwhile_does_not_stop_the_isolation(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ChangedOnce(set[Run]):
        failures = 1

        def __iter__(self) -> Iterator[Run]:
            if self.failures:
                self.failures -= 1
                raise RuntimeError("Set changed size during iteration")
            return super().__iter__()

    monkeypatch.setattr(state, "reserved_requests", ChangedOnce())
    bench.arrive("suspect", suspect=True)
    bench.pass_time()
    assert bench.started == ["suspect"]


def test_a_first_redelivery_proves_nothing_and_a_second_one_makes_a_suspect() -> None:
    came = replace(delivery(), redelivered=True)
    counts = [replace(came, headers={"x-delivery-count": count}) for count in (1, 2)]
    assert [is_suspect(each) for each in (delivery(), came, *counts)] == [False, False, False, True]
    assert is_suspect(replace(delivery(), headers={"perennial-deliveries": 2}))
    assert unacknowledged(replace(counts[0], headers={"x-delivery-count": 1, "perennial-deliveries": 1})) == 2


@pytest.mark.parametrize(("count", "crashes"), [(1, 1), (3, 0), (5, 2)])
def test_rejections_that_rabbitmq_4_counts_as_deliveries_are_no_crashes(count: int, crashes: int) -> None:
    deaths = [{"reason": "rejected", "count": 2}, {"reason": "expired", "count": 9}, {"reason": "rejected"}, "no entry"]
    headers = {"x-delivery-count": count, "x-death": deaths}
    assert unacknowledged(replace(delivery(), redelivered=True, headers=headers)) == crashes


def test_a_redelivery_is_counted_by_the_worker_where_the_broker_does_not() -> None:
    again = replace(delivery(), redelivered=True)
    by_broker = [replace(again, headers={name: 0}) for name in ("x-delivery-count", "x-acquired-count")]
    assert [is_uncounted(each) for each in (delivery(), again, *by_broker)] == [False, True, False, False]


def test_a_count_that_a_producer_invented_is_no_count() -> None:
    assert unacknowledged(replace(delivery(), headers={"x-delivery-count": 99})) == 0
