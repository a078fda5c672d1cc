"""Results of messages that share a process come through a pipe before the end of their job."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.broker.worker import early_results
from app.broker.worker.early_results import EarlyReports, EarlyResult, EarlyResults, report
from app.broker.worker.together import run_together
from tests.support.waiting import eventually

pytestmark = pytest.mark.unit


def results_of(pipe: EarlyResults, number: int) -> list[EarlyResult]:
    """Return results that come through the pipe, when there are this many."""
    came: list[EarlyResult] = []

    def all_have_come() -> bool:
        came.extend(pipe.read())
        return len(came) >= number

    eventually(all_have_come, f"{number} results")
    return came


def test_a_result_comes_before_the_end_of_its_job_if_that_takes_long() -> None:
    pipe, quick_are_in = EarlyResults(), threading.Event()

    def slow() -> str:
        assert quick_are_in.wait(60)
        return "slow"

    calls: list[tuple[Any, Any]] = [(slow, ()), (str.upper, ("a",)), (str.upper, ("b",))]
    with ThreadPoolExecutor(1) as worker:
        job = worker.submit(run_together, calls, EarlyReports(pipe.writer, 5))
        came = results_of(pipe, 2)
        assert not job.done()
        quick_are_in.set()
        assert job.result() == ["slow", "A", "B"]
    assert sorted(came, key=lambda each: each.index) == [EarlyResult(5, 1, "A"), EarlyResult(5, 2, "B")]


def test_a_job_that_ends_soon_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_results, "PATIENCE", 60.0)
    pipe = EarlyResults()
    before = threading.active_count()
    assert run_together([(str.upper, ("a",))], EarlyReports(pipe.writer, 1)) == ["A"]
    eventually(lambda: threading.active_count() <= before, "the timer has ended")
    assert pipe.read() == []


def test_long_results_and_those_that_cannot_be_pickled_are_left_to_the_end_of_the_job() -> None:
    pipe = EarlyResults()
    for result in ("x" * 5_000, threading.Lock(), lambda: None, "short"):
        report(pipe.writer, EarlyResult(1, 0, result))
    assert [each.result for each in pipe.read()] == ["short"]


def test_a_result_that_cannot_be_read_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    pipe = EarlyResults()
    report(pipe.writer, EarlyResult(1, 0, "before"))
    os.write(pipe.writer, b"\x00\x03bad")
    report(pipe.writer, EarlyResult(1, 1, "after"))
    assert [each.result for each in pipe.read()] == ["before", "after"]
    assert "cannot be read" in caplog.text


def test_a_process_does_not_wait_for_a_worker_that_does_not_read() -> None:
    pipe = EarlyResults()
    for index in range(1_000):
        report(pipe.writer, EarlyResult(1, index, "x" * 1_000))
    read = pipe.read()
    assert 16 <= len(read) < 1_000
    assert [each.index for each in read] == list(range(len(read)))
    report(pipe.writer, EarlyResult(2, 0, "later"))
    assert pipe.read() == [EarlyResult(2, 0, "later")]


def test_reports_of_several_processes_do_not_mix() -> None:
    pipe, processes, each_reports = EarlyResults(), 4, 300
    children = []
    for number in range(processes):
        child = os.fork()
        if not child:
            os.set_blocking(pipe.writer, True)
            for index in range(each_reports):
                report(pipe.writer, EarlyResult(number, index, str(index) * (index % 700)))
            os._exit(0)
        children.append(child)
    came = results_of(pipe, processes * each_reports)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    for number in range(processes):
        own = [each for each in came if each.job == number]
        assert [(each.index, each.result) for each in own] == [
            (index, str(index) * (index % 700)) for index in range(each_reports)
        ]
