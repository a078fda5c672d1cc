"""Messages go to the pool one by one while processes are free, else in groups."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery.exceptions import TaskRevokedError, Terminated
from celery.worker import state
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from app.broker.worker import shared_process
from app.broker.worker.celery_internals import TaskPool
from app.broker.worker.dispatcher import Dispatcher
from app.broker.worker.request import Request
from app.broker.worker.shared_process import MAX_TOGETHER, run_together

pytestmark = pytest.mark.unit


class FakeRequest:
    """A request by name, which hands itself to the pool as Celery's does, and notes what the pool reports."""

    def __init__(self, name: str, *, error: Exception | None = None) -> None:
        self.name, self.error = name, error
        self.reports: list[str] = []
        self.run_alone: Any = None
        self.waiting_since = 0.0
        self.is_set_aside = False

    def set_aside(self) -> None:
        self.is_set_aside = True

    def execute_using_pool(self, pool: TaskPool) -> None:
        if self.error:
            raise self.error
        pool.apply_async(
            str.upper,
            args=(self.name,),
            accept_callback=lambda pid, _began: self.reports.append(f"began in {pid}"),
            callback=self.reports.append,
            error_callback=lambda error: self.reports.append(str(error.exception)),
            timeout=len(self.name),
            soft_timeout=1,
        )


class Bench:
    """A dispatcher with a pool whose processes are played by hand."""

    def __init__(self, processes: int) -> None:
        self.jobs: list[tuple[Any, Any, dict[str, Any]]] = []
        self.failures: list[Exception] = []
        self.pool = TaskPool(processes)
        self.pool.on_apply = lambda target, args, _kwargs, **options: self.jobs.append((target, args, options))
        semaphore = LaxBoundedSemaphore(processes)
        controller = SimpleNamespace(semaphore=semaphore, _process_task=lambda each: each.execute_using_pool(self.pool))
        self.dispatcher = Dispatcher(self.pool, controller, self.failures.append)
        self.end_one = semaphore.release

    def offer(self, *names: str, error: Exception | None = None) -> list[FakeRequest]:
        requests = [FakeRequest(name, error=error) for name in names]
        for request in requests:
            self.dispatcher.offer(request)
        return requests

    @property
    def names(self) -> list[list[str]]:
        """The names of the messages of each job."""
        return [
            [args[0] for _, args in given[0]] if target is run_together else list(given)
            for target, given, _ in self.jobs
        ]


def lost_process() -> ExceptionInfo:
    """Return what the pool reports of a process that was lost."""
    try:
        int("lost")
    except ValueError:
        return ExceptionInfo()


def test_messages_that_wait_for_a_process_become_one_job_of_at_most_sixteen() -> None:
    bench = Bench(1)
    names = [f"page-{number}" for number in range(MAX_TOGETHER + 2)]
    bench.offer("first", *names)
    assert bench.names == [["first"]]
    bench.end_one()
    bench.end_one()
    assert bench.names == [["first"], names[:MAX_TOGETHER], names[MAX_TOGETHER:]]


def test_each_request_of_a_job_hears_of_its_own_begin_and_end() -> None:
    bench = Bench(1)
    _, *requests = bench.offer("first", "a", "bb")
    bench.end_one()
    target, args, options = bench.jobs[1]
    assert options["timeout"] == 2
    assert options.get("soft_timeout") is None
    options["accept_callback"](7, 0.0)
    options["callback"](target(*args))
    assert [request.reports for request in requests] == [["began in 7", "A"], ["began in 7", "BB"]]


def test_every_request_of_a_lost_process_hears_of_it_and_can_run_alone_before_the_others() -> None:
    bench = Bench(1)
    _, *lost = bench.offer("first", "a", "b")
    bench.end_one()
    bench.offer("late", "later")
    bench.jobs[1][2]["error_callback"](lost_process())
    for request in lost:
        assert "lost" in request.reports[-1]
        request.run_alone(request)
    for _ in range(3):
        bench.end_one()
    assert bench.names[2:] == [["a"], ["b"], ["late", "later"]]


def test_messages_that_waited_too_long_are_published_again_but_for_the_first_of_a_lost_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(1)
    _, *lost = bench.offer("first", "a", "b", "c")
    bench.end_one()
    bench.jobs[1][2]["error_callback"](lost_process())
    for request in lost:
        request.run_alone(request)
    monkeypatch.setattr("app.broker.worker.dispatcher.MAX_WAIT", 60.0)
    [young] = bench.offer("young")
    for request in lost:
        request.waiting_since -= 61.0
    bench.end_one()
    bench.end_one()
    assert bench.names[2:] == [["a"], ["young"]]
    assert [request.name for request in (*lost, young) if request.is_set_aside] == ["b", "c"]
    # The process is free again.
    bench.end_one()
    bench.offer("next")
    assert bench.names[-1] == ["next"]


def test_a_revoked_message_is_left_out_and_a_job_of_none_leaves_its_process_to_others() -> None:
    bench = Bench(1)
    bench.offer("first")
    bench.offer("gone", "gone too", error=TaskRevokedError("gone"))
    bench.end_one()
    bench.offer("next")
    assert bench.names == [["first"], ["next"]]


def test_what_waits_is_forgotten_with_the_connection_and_delivered_again() -> None:
    bench = Bench(1)
    bench.offer("first", "a", "b")
    bench.dispatcher._semaphore.clear()  # As Celery does.
    bench.dispatcher.connection_lost()
    bench.offer("a", "b", "c")
    bench.end_one()
    assert bench.names == [["first"], ["a"], ["b", "c"]]


def test_a_message_that_waits_to_run_again_is_not_active_so_that_a_lost_connection_forgets_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    request: Any = Request.__new__(Request)
    request._message = SimpleNamespace(channel=SimpleNamespace(is_open=True))
    request._request_dict = {"delivery_info": {}}
    request.name, request.id, request._kwargs = "shop.mail", "1", {}
    alone: list[Request] = []
    state.active_requests.add(request)
    request._run_again(alone.append, WorkerLostError("9"))
    assert alone == [request]
    assert request not in state.active_requests
    assert request.request_dict["delivery_info"]["redelivered"]
    about = vars(caplog.records[-1])
    assert (about["task_id"], about["task"], about["attempt"], about["task_kwargs"]) == ("1", "shop.mail", 1, {})


def test_a_failure_to_start_is_no_fault_of_the_message() -> None:
    bench = Bench(1)
    bench.offer("first")
    bench.offer("a", error=RuntimeError())
    bench.offer("b")
    bench.end_one()
    assert [type(error) for error in bench.failures] == [RuntimeError]
    assert bench.names[1:] == [["b"]]


def test_a_job_that_cannot_start_leaves_its_process_to_others() -> None:
    bench = Bench(1)
    bench.offer("first", "a", "b")
    play = bench.pool.on_apply

    def fail(*_args: Any, **_options: Any) -> None:
        raise RuntimeError

    bench.pool.on_apply = fail
    bench.end_one()
    bench.pool.on_apply = play
    bench.offer("next")
    assert [type(error) for error in bench.failures] == [RuntimeError]
    assert bench.names == [["first"], ["next"]]


class Full(list[str]):
    """Reports that take no more."""

    def append(self, _report: str) -> None:
        raise RuntimeError


@pytest.mark.parametrize("callback", ["accept_callback", "callback", "error_callback"])
def test_a_request_that_fails_to_handle_a_report_keeps_it_from_no_other(callback: str) -> None:
    bench = Bench(1)
    _, bad, good = bench.offer("first", "a", "b")
    bad.reports = Full()
    bench.end_one()
    options = bench.jobs[1][2]
    reports = {"accept_callback": (7, 0.0), "callback": (["A", "B"],), "error_callback": (lost_process(),)}
    options[callback](*reports[callback])
    assert len(good.reports) == 1


def test_a_message_runs_again_if_another_one_of_its_process_was_terminated() -> None:
    class Shared(Request):
        def __init__(self) -> None:
            self.again: list[BaseException] = []
            self.run_alone = lambda _request: None

        def _run_again(self, _run_alone: Any, error: BaseException) -> None:
            self.again.append(error)

    request = Shared()
    try:
        raise Terminated(15)  # noqa: TRY301 - ExceptionInfo takes the exception at hand.
    except Terminated:
        request.on_failure(ExceptionInfo())
    assert [type(error) for error in request.again] == [Terminated]


def test_no_call_begins_after_its_job_failed_for_want_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started, ran = threading.Thread.start, [0], []

    def start_two(thread: threading.Thread) -> None:
        started[0] += 1
        if started[0] > 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    def call(number: int) -> None:
        threading.Event().wait(0.05)
        ran.append(number)

    shared_process._threads.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_two)
        with pytest.raises(RuntimeError, match="new thread"):
            run_together([(call, (number,)) for number in range(6)])
    had_run = list(ran)
    assert run_together([(str.upper, ("a",)), (str.upper, ("b",))]) == ["A", "B"]
    assert sorted(had_run) == sorted(ran) == [1, 2]


def test_calls_run_at_the_same_time_and_an_exception_that_escapes_ends_the_job() -> None:
    assert run_together([(str.upper, ("a",)), (str.lower, ("B",)), (max, (1, 2))]) == ["A", "b", 2]
    with pytest.raises(ZeroDivisionError):
        run_together([(str.upper, ("a",)), (divmod, (1, 0))])
    with pytest.raises(ZeroDivisionError):
        run_together([(divmod, (1, 0)), (str.upper, ("a",))])
