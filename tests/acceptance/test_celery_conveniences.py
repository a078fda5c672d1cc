"""What Celery promises beside retry policies, with a result backend. Each row of the guide's table has a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, states
from celery.exceptions import ChordError, TaskRevokedError
from kombu import Connection

from app.broker.errors import ApplicationError, Postpone
from app.private_services import Urls
from tests.support import canvas_app
from tests.support.canvas_app import (
    OutOfStock,
    add,
    fail,
    forget,
    hang,
    refuse,
    refuse_oddly,
)
from tests.support.canvas_bench import ENDED, Bench, canvas_bench, lines
from tests.support.canvas_tasks import late_note
from tests.support.waiting import eventually
from tests.support.worker import worker

pytestmark = pytest.mark.acceptance

#: The application of the other tests, watched as its operators would. What is seen is a line of a file.
OBSERVED = """
import sentry_sdk
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from tests.support.canvas_app import app

def note(name, line):
    with open(name, "a") as file:
        file.write(line + "\\n")

class Exporter(SpanExporter):
    def export(self, spans):
        for span in spans:
            errors = [event.attributes["exception.type"] for event in span.events]
            reason = span.attributes.get("celery.retry.reason")
            note("spans", f"{span.name} {span.status.status_code.name} {reason} {errors}")
        return SpanExportResult.SUCCESS

def before_send(event, hint):
    line = hint["exc_info"][0].__name__ if "exc_info" in hint else f"{event['logger']} {event['logentry']['formatted']}"
    note("sentry", line.split(" from ")[0])

sentry_sdk.init(dsn="http://key@127.0.0.1:1/1", before_send=before_send)
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Exporter()))
trace.set_tracer_provider(provider)
CeleryInstrumentor().instrument()
"""

DEAD = "work.dead"


@pytest.fixture(scope="module")
def bench(services: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with canvas_bench(services, tmp_path_factory.mktemp("canvas"), queues=["work", "picky"]) as running:
        yield running


def test_called_applied_or_eager_a_task_raises_what_it_raised(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        fail(str(tmp_path / "called"))
    applied = fail.apply((str(tmp_path / "applied"),))
    assert (applied.state, len(lines(str(tmp_path / "applied")))) == (states.FAILURE, 4)
    with pytest.raises(KeyError, match="no such shelf"):
        applied.get()
    with pytest.raises(Postpone):
        canvas_app.wait_for.apply((str(tmp_path / "waits"),), throw=True)
    canvas_app.app.conf.update(task_always_eager=True, task_eager_propagates=True)
    try:
        assert fail.delay(str(tmp_path / "eager"), 0, 5).get() == 5
        with pytest.raises(KeyError):
            fail.delay(str(tmp_path / "propagated"))
    finally:
        canvas_app.app.conf.update(task_always_eager=False, task_eager_propagates=False)


def test_a_result_follows_the_retries_and_raises_the_class_of_the_last_error(bench: Bench) -> None:
    journal = bench.journal("result")
    # Each retry waits for so long that a busy machine sees it wait.
    result = fail.apply_async((journal,), retry_timeout_ms=3_000)
    eventually(lambda: result.state == states.RETRY, "the result is RETRY", seconds=ENDED, every=0.02)
    with pytest.raises(KeyError, match="no such shelf"):
        result.get(timeout=ENDED)
    assert (result.state, lines(journal).count("run")) == (states.FAILURE, 3)
    assert "in fail" in str(result.traceback)


def test_hooks_and_signals_tell_a_retry_from_a_failure_and_a_success(bench: Bench) -> None:
    journal = bench.journal("hooks")
    assert fail.delay(journal, 1, 4).get(timeout=ENDED) == 4
    again = ["run", "on_retry KeyError", "task_retry True"]
    eventually(lambda: lines(journal) == [*again, "run", "on_success", "after_return SUCCESS"], f"{lines(journal)}")
    failed = bench.journal("failure")
    with pytest.raises(OutOfStock):
        refuse.delay(failed).get(timeout=ENDED)
    end = ["run", "on_failure OutOfStock", "task_failure OutOfStock True", "after_return FAILURE"]
    eventually(lambda: lines(failed) == end, f"{lines(failed)}")


def test_a_failure_that_the_policy_of_its_queue_does_not_retry_is_announced_once(bench: Bench) -> None:
    journal = bench.journal("picky")
    with pytest.raises(KeyError):
        fail.apply_async((journal,), queue="picky").get(timeout=ENDED)
    eventually(lambda: bench.broker.depth("picky.failed") == 1, "it is dead-lettered", seconds=ENDED)
    assert lines(journal) == ["run", "on_failure KeyError", "task_failure KeyError True", "after_return FAILURE"]


@pytest.mark.parametrize(
    ("task", "error", "name"),
    [(refuse_oddly, ApplicationError, "ApplicationError"), (hang, Exception, "TimeLimitExceeded")],
)
def test_the_worker_announces_what_a_process_cannot(bench: Bench, task: Any, error: type[Exception], name: str) -> None:
    journal = bench.journal(name)
    with pytest.raises(error):
        task.delay(journal).get(timeout=ENDED)
    retries = [line for line in lines(journal) if "retry" in line]
    ends = [f"on_failure {name}", "after_return FAILURE", f"task_failure {name} True"]
    eventually(lambda: set(ends) <= set(lines(journal)), f"the end is announced: {lines(journal)}")
    assert sorted(lines(journal)) == sorted(["run"] * 3 + retries + ends)
    assert (len(retries), retries.count("task_retry True")) == (4, 2)


def test_a_link_follows_the_end_and_not_the_retries(bench: Bench) -> None:
    journal = bench.journal("link")
    linked = fail.apply_async((journal, 2, 3), link=add.s(10))
    assert linked.get(timeout=ENDED) == 3
    assert eventually(lambda: linked.children, "the link is sent")[0].get(timeout=ENDED) == 13
    assert [value for _, value in linked.collect()] == [3, 13]


def test_a_chain_goes_on_after_retries_and_after_the_replay_of_a_dead_letter(bench: Bench) -> None:
    journal, stopped = bench.journal("chain"), bench.journal("stopped")
    assert chain(fail.s(journal, 2, 1), add.s(1), add.s(1)).delay().get(timeout=ENDED) == 3
    result = chain(fail.si(stopped, 3, 5), add.s(1)).delay()
    with pytest.raises(KeyError):
        result.parent.get(timeout=ENDED)
    eventually(lambda: result.state == states.FAILURE, "the rest of the chain has failed, too", seconds=ENDED)
    bench.replay(result.parent.id)

    def now() -> str:
        # A result that has ended is never read again.
        return str(canvas_app.app.AsyncResult(result.id).state)

    eventually(lambda: now() == states.SUCCESS, "the chain ends", seconds=ENDED)
    assert canvas_app.app.AsyncResult(result.id).get() == 6


def test_a_chord_fails_with_the_dead_letter_of_a_member(bench: Bench) -> None:
    journal, other = bench.journal("chord"), bench.journal("chord-other")
    result = chord([fail.s(journal, 3, 5), late_note.s(other, "ran")], add.s()).delay()
    eventually(lambda: result.state == states.FAILURE, "the chord fails", seconds=ENDED)
    assert isinstance(result.result, ChordError)
    assert "KeyError('no such shelf')" in str(result.result)
    eventually(lambda: "ran" in lines(other), "its other members run", seconds=ENDED)


@pytest.mark.parametrize("task", [canvas_app.wait_for, canvas_app.requeue])
def test_a_postponed_or_requeued_message_keeps_its_state_and_its_budget(bench: Bench, task: Any) -> None:
    journal = bench.journal(task.name)
    result = task.delay(journal)
    eventually(lambda: lines(journal).count("run") > 3, "it waits more often than it may fail", seconds=ENDED)
    assert result.state == states.PENDING
    Path(f"{journal}.stock").touch()
    assert result.get(timeout=ENDED) is None


def test_a_task_that_is_replaced_after_a_failure_has_the_result_of_the_other(bench: Bench) -> None:
    journal = bench.journal("replaced")
    assert canvas_app.replaced.delay(journal, 1).get(timeout=ENDED) == 7
    assert (lines(journal).count("before"), lines(journal).count("run")) == (2, 2)


def test_a_result_that_is_ignored_is_never_stored(bench: Bench) -> None:
    journal = bench.journal("ignored")
    result = forget.delay(journal)
    bench.replay(result.id)
    eventually(lambda: lines(journal).count("run") == 6, "it fails again", seconds=ENDED)
    assert canvas_app.app.backend.get_state(result.id) == states.PENDING


def test_a_revoked_message_is_neither_run_nor_dead_lettered(bench: Bench) -> None:
    journal = bench.journal("revoked")
    # It waits for so long that a busy machine sees it wait.
    result = fail.apply_async((journal,), retry_timeout_ms=3_000)
    eventually(lambda: result.state == states.RETRY, "it waits for its retry", seconds=ENDED, every=0.02)
    result.revoke()
    with pytest.raises(TaskRevokedError):
        result.get(timeout=ENDED)
    assert lines(journal).count("run") < 3
    assert not [each for each in bench.broker.peek(DEAD) if each.headers.get("id") == result.id]


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent", "eventlet"])
def test_other_pools_keep_the_promises(bench: Bench, pool: str) -> None:
    """The worker of the other tests has Celery's default, prefork."""
    journal = bench.journal(pool)
    options = [f"--pool={pool}", "--loglevel=INFO"]
    log, name, queues = bench.folder / f"{pool}.log", "tests.support.canvas_app", ["slow", "watched"]
    with Connection(bench.url) as connection:
        connection.channel().queue_delete("watched")
    bench.broker.bind_new("watched")  # With other arguments.
    # A process of its own: gevent and eventlet replace what others would have imported before.
    with (
        worker(bench.environment, log, app=name, queues=queues, options=options, folder=bench.folder),
        Connection(bench.url) as connection,
    ):
        with pytest.raises(OutOfStock):
            refuse.apply_async((journal,), queue="slow").get(timeout=ENDED)
        result = fail.apply_async((f"{journal}-again",), queue="slow")
        eventually(lambda: result.state == states.RETRY, "it is retried", seconds=ENDED)
        assert (type(result.result), "in fail" in str(result.traceback)) == (KeyError, True)
        connection.channel().queue_delete("watched")
        started = "Started consuming from watched"
        eventually(lambda: started in log.read_text(), "the refused queue is served", seconds=ENDED)
    end = ["run", "on_failure OutOfStock", "task_failure OutOfStock True", "after_return FAILURE"]
    assert lines(journal) == end


def test_sentry_and_opentelemetry_see_a_dead_letter_as_an_error_and_a_retry_as_none(bench: Bench) -> None:
    """What the main process announces is an error in Sentry by its log line only, and none in OpenTelemetry."""
    log, spans, seen = bench.folder / "observed.log", str(bench.folder / "spans"), str(bench.folder / "sentry")
    (bench.folder / "observed.py").write_text(OBSERVED)
    options = ["--loglevel=INFO"]
    with worker(bench.environment, log, app="observed", queues=["watched"], options=options, folder=bench.folder):
        for task, error in [(fail, KeyError), (refuse_oddly, ApplicationError), (hang, Exception)]:
            with pytest.raises(error):
                task.apply_async((bench.journal(f"observed-{task.name}"),), queue="watched").get(timeout=ENDED)
    name = "tests.support.canvas_app"
    of_fail, oddly = [f"run/{name}.fail UNSET KeyError: 'no such shelf' []"] * 2, f"run/{name}.refuse_oddly UNSET"
    of_fail += [f"run/{name}.fail ERROR None ['KeyError']"]
    of_oddly = [f"{oddly} Unpicklable: shelf-3 []"] * 2 + [f"{oddly} None []"]
    # A run that is killed may leave a span, or none.
    assert [line for line in lines(spans) if ".hang UNSET" not in line] == of_fail + of_oddly
    dead = [f"app.broker.worker.failures Dead-lettered {name}.{each}" for each in ("fail", "hang", "refuse_oddly")]
    assert sorted(line for line in lines(seen) if "Dead-lettered" in line) == dead
    assert [line for line in lines(seen) if " " not in line] == ["KeyError"]


def test_a_rate_limit_holds_for_retries_too(bench: Bench) -> None:
    journal = bench.journal("limited")
    results = [canvas_app.limited.delay(journal, each) for each in range(6)]
    assert [result.get(timeout=ENDED) for result in results] == list(range(6))
    times = sorted(float(line.split()[1]) for line in lines(journal) if line.startswith("at "))
    assert len(times) == 7
    # Six runs after the first one, at five a second; less one, since the worker notes a time after it began.
    assert times[-1] - times[0] >= 5 / 5
