"""What Celery's user guide promises holds for each run, with a result backend. Rows of our guide's table have tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group, states
from celery.exceptions import ChordError, TaskRevokedError
from kombu import Connection

from app.broker.errors import ApplicationError, Postpone
from app.private_services import Urls
from tests.support import canvas_app
from tests.support.canvas_app import (
    OutOfStock,
    add,
    describe,
    expected,
    fail,
    forget,
    forget_success,
    hang,
    hooked_badly,
    ignore,
    leave,
    refuse,
    refuse_oddly,
    unstorable,
    wait_for,
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

#: What `self.request` says in each run.
KEPT = (
    *("id", "root_id", "parent_id", "correlation_id", "reply_to", "args", "kwargs", "argsrepr", "kwargsrepr", "origin"),
    *("shadow", "expires", "timelimit", "time_limit", "soft_time_limit", "stamps", "stamped_headers", "customer"),
    *("eta", "replaced_task_nesting", "delivery_info", "hostname", "called_directly", "is_eager"),
    *("group", "chain", "chord", "callbacks", "errbacks"),
)


@pytest.fixture(scope="module")
def bench(services: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with canvas_bench(services, tmp_path_factory.mktemp("canvas"), queues=["work", "picky"]) as running:
        yield running


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return str(tmp_path / "journal")


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


def test_a_result_follows_the_retries_and_raises_the_class_of_the_last_error(bench: Bench, journal: str) -> None:
    # Each retry waits for so long that a busy machine sees it wait.
    result = fail.apply_async((journal,), retry_timeout_ms=3_000)
    eventually(lambda: result.state == states.RETRY, "the result is RETRY", seconds=ENDED, every=0.02)
    with pytest.raises(KeyError, match="no such shelf"):
        result.get(timeout=ENDED)
    assert (result.state, lines(journal).count("run")) == (states.FAILURE, 3)
    assert "in fail" in str(result.traceback)


def test_hooks_and_signals_tell_a_retry_from_a_failure_and_a_success(bench: Bench, journal: str) -> None:
    assert fail.delay(journal, 1, 4).get(timeout=ENDED) == 4
    again = ["run", "on_retry KeyError", "task_retry True"]
    eventually(lambda: lines(journal) == [*again, "run", "on_success", "after_return SUCCESS"], f"{lines(journal)}")
    failed = bench.journal("failure")
    with pytest.raises(OutOfStock):
        refuse.delay(failed).get(timeout=ENDED)
    end = ["run", "on_failure OutOfStock", "task_failure OutOfStock True", "after_return FAILURE"]
    eventually(lambda: lines(failed) == end, f"{lines(failed)}")


def test_a_failure_that_the_policy_of_its_queue_does_not_retry_is_announced_once(bench: Bench, journal: str) -> None:
    with pytest.raises(KeyError):
        fail.apply_async((journal,), queue="picky").get(timeout=ENDED)
    eventually(lambda: bench.broker.depth("picky.failed") == 1, "it is dead-lettered", seconds=ENDED)
    assert lines(journal) == ["run", "on_failure KeyError", "task_failure KeyError True", "after_return FAILURE"]


@pytest.mark.parametrize(
    ("task", "error", "name"),
    [(refuse_oddly, ApplicationError, "ApplicationError"), (hang, Exception, "TimeLimitExceeded")],
)
def test_the_worker_announces_what_a_process_cannot(
    bench: Bench, journal: str, task: Any, error: type[Exception], name: str
) -> None:
    with pytest.raises(error):
        task.delay(journal).get(timeout=ENDED)
    retries = [line for line in lines(journal) if "retry" in line]
    ends = [f"on_failure {name}", "after_return FAILURE", f"task_failure {name} True"]
    eventually(lambda: set(ends) <= set(lines(journal)), f"the end is announced: {lines(journal)}")
    assert sorted(lines(journal)) == sorted(["run"] * 3 + retries + ends)
    assert (len(retries), retries.count("task_retry True")) == (4, 2)


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


@pytest.mark.parametrize(("task", "redelivered"), [(wait_for, False), (canvas_app.requeue, True)])
def test_a_postponed_or_requeued_message_keeps_its_state_and_its_budget_and_the_second_is_redelivered(
    bench: Bench, journal: str, task: Any, redelivered: bool
) -> None:
    result = task.delay(journal)
    eventually(lambda: lines(journal).count("run") > 3, "it waits more often than it may fail", seconds=ENDED)
    assert result.state == states.PENDING
    Path(f"{journal}.stock").touch()
    assert result.get(timeout=ENDED) is None
    assert lines(journal)[-1] == f"redelivered {redelivered}"


def test_a_message_that_waits_can_be_revoked_by_its_id_or_stamps_or_as_a_group(bench: Bench, journal: str) -> None:
    # It waits for so long that a busy machine sees it wait.
    failed, stamped = fail.apply_async((journal,), retry_timeout_ms=3_000), wait_for.si(f"{journal}-stamped")
    stamped.stamp(aisle="nine")
    waiting = [stamped.delay(), group(wait_for.si(f"{journal}-group") for _ in range(2)).delay()]
    eventually(lambda: failed.state == states.RETRY, "it waits for its retry", seconds=ENDED, every=0.02)
    eventually(lambda: lines(f"{journal}-stamped") and lines(f"{journal}-group"), "they wait", seconds=ENDED)
    canvas_app.app.control.revoke_by_stamped_headers({"aisle": "nine"})
    for result in (failed, waiting[1]):
        result.revoke()
    for result in (failed, *waiting):
        with pytest.raises(TaskRevokedError):
            result.get(timeout=ENDED)
    assert lines(journal).count("run") < 3
    assert not [each for each in bench.broker.peek("work.dead") if each.headers.get("id") == failed.id]


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_other_pools_keep_the_promises(bench: Bench, journal: str, pool: str) -> None:
    """The worker of the other tests has Celery's default, prefork."""
    options = [f"--pool={pool}", "--loglevel=INFO"]
    log, name, queues = bench.folder / f"{pool}.log", "tests.support.canvas_app", ["slow", "watched"]
    with Connection(bench.url) as connection:
        connection.channel().queue_delete("watched")
    bench.broker.bind_new("watched")  # With other arguments.
    # A process of its own: gevent replaces what others would have imported before.
    with (
        worker(bench.environment, log, app=name, queues=queues, options=options, folder=bench.folder) as running,
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
        with pytest.raises(ApplicationError, match="SystemExit"):
            leave.apply_async((f"{journal}-exit",), queue="watched").get(timeout=ENDED)
        assert lines(f"{journal}-exit").count("run") == 3, "where no process ends, an exit spends the budget, too"
        quick = [add.apply_async((number,), queue="slow") for number in range(11)]
        assert [each.get(timeout=ENDED) for each in quick] == list(range(11))
        running.leave()
        eventually(lambda: bench.broker.consumers("slow") == 0, "the broker has noticed the end")
        assert bench.broker.depth("slow") == 0, "what was completed is acknowledged"
    end = ["run", "on_failure OutOfStock", "task_failure OutOfStock True", "after_return FAILURE"]
    assert lines(journal) == end


def test_the_options_of_a_call_reach_each_run(bench: Bench, journal: str) -> None:
    sent = describe.s(journal, 2, shelf=3).stamp(aisle="7")
    limits = {"time_limit": 50, "soft_time_limit": 40, "expires": 300}
    names = {"shadow": "shown", "argsrepr": "(hidden)", "headers": {"customer": "8"}, "reply_to": "answers"}
    result = sent.apply_async(priority=5, serializer="yaml", compression="bzip2", **limits, **names)
    result.get(timeout=ENDED)
    first, second = (json.loads(line) for line in lines(f"{journal}.requests"))
    assert {name: first[name] for name in KEPT} == {name: second[name] for name in KEPT}
    assert (first["retries"], second["retries"]) == (0, 1)
    given = ("customer", "shadow", "argsrepr", "reply_to", "timelimit", "args", "kwargs")
    values = ["8", "shown", "(hidden)", "answers", [50, 40], [journal, 2], {"shelf": 3}]
    assert [second[name] for name in given] == values
    assert (second["delivery_info"]["priority"], second["stamps"]) == (5, {"aisle": "7"})
    eventually(lambda: f"Task shown[{result.id}] retry" in bench.worker.log, "its name in the log", seconds=ENDED)


def test_hooks_and_signals_surround_each_run_and_the_caller_sees_its_states(bench: Bench, journal: str) -> None:
    seen: list[tuple[str, str]] = []
    result = describe.delay(journal)
    # The queue of this caller has the results of other tests' messages, too.
    result.get(timeout=ENDED, on_message=lambda message: seen.append((message["task_id"], message["status"])))
    states_of_run = [states.STARTED, "PROGRESS"]
    statuses = [status for task_id, status in seen if task_id == result.id]
    assert statuses == [*states_of_run, states.RETRY, *states_of_run, states.SUCCESS]
    begin = ["task_received", "task_prerun", "before_start", "run"]
    run = [*begin, "task_retry True", "task_postrun RETRY", *begin, "task_success", "task_postrun SUCCESS"]
    eventually(lambda: lines(journal) == run, f"{lines(journal)}", seconds=ENDED)


def test_messages_that_are_no_task_are_signalled_and_one_of_an_unknown_task_fails(
    bench: Bench, journal: str, tmp_path: Path
) -> None:
    result = canvas_app.app.send_task("shop.unknown", (journal,))
    with pytest.raises(ApplicationError, match=r"task 'shop\.unknown' is not registered"):
        result.get(timeout=ENDED)
    eventually(lambda: "task_unknown shop.unknown" in lines(journal), f"{lines(journal)}", seconds=ENDED)
    strange = str(tmp_path / "strange")
    with canvas_app.app.producer_or_acquire() as producer:
        producer.publish([strange], exchange="", routing_key="work")
    eventually(lambda: "task_rejected" in lines(strange), f"{lines(strange)}", seconds=ENDED)


def test_an_expected_error_is_logged_without_a_traceback(bench: Bench, journal: str) -> None:
    result = expected.delay(journal)
    with pytest.raises(KeyError):
        result.get(timeout=ENDED)
    assert lines(journal).count("run") == 3
    logged = f"Task {expected.name}[{result.id}] raised expected"
    eventually(lambda: logged in bench.worker.log, bench.worker.log, seconds=ENDED)


def test_a_message_that_expires_while_it_waits_is_signalled_as_revoked(bench: Bench, journal: str) -> None:
    with pytest.raises(TaskRevokedError):
        wait_for.apply_async((journal,), expires=2).get(timeout=ENDED)
    eventually(lambda: "task_revoked True" in lines(journal), f"{lines(journal)}", seconds=ENDED)


def test_a_result_is_ignored_by_the_call_or_by_the_task_whose_error_may_be_kept(bench: Bench, journal: str) -> None:
    ignored, kept = fail.apply_async((journal, 0, 7), ignore_result=True), forget_success.delay(f"{journal}-error")
    lost = hang.apply_async((f"{journal}-lost",), ignore_result=True, retry_max=1)
    forgotten = forget.delay(f"{journal}-forgotten")
    bench.replay(forgotten.id)
    assert ignored.get() is None
    with pytest.raises(KeyError):
        canvas_app.app.AsyncResult(kept.id).get(timeout=ENDED)
    eventually(lambda: "after_return SUCCESS" in lines(journal), f"{lines(journal)}", seconds=ENDED)
    eventually(lambda: lines(f"{journal}-forgotten").count("run") == 6, "it fails again", seconds=ENDED)
    eventually(lambda: "after_return FAILURE" in lines(f"{journal}-lost"), "its last run is lost", seconds=ENDED)
    assert {canvas_app.app.backend.get_state(each.id) for each in (ignored, lost, forgotten)} == {states.PENDING}


def test_an_ignored_run_ends_without_a_state_a_retry_or_a_dead_letter(bench: Bench, journal: str) -> None:
    result = ignore.delay(journal)
    eventually(lambda: "run" in lines(journal), "it runs", seconds=ENDED)
    # What was sent after it, and fails three times, has ended.
    with pytest.raises(KeyError):
        fail.delay(f"{journal}-later").get(timeout=ENDED)
    assert (lines(journal), result.state) == (["run"], states.PENDING)


def test_a_hook_that_raises_changes_nothing_for_the_message(bench: Bench, journal: str) -> None:
    failing, succeeding = f"{journal}-failing", f"{journal}-succeeding"
    assert hooked_badly.delay(succeeding, fails=False).get(timeout=ENDED) == "done"
    result = hooked_badly.delay(failing, fails=True)
    with pytest.raises(KeyError):
        result.get(timeout=ENDED)
    logged = f"Dead-lettered {hooked_badly.name}"
    eventually(lambda: logged in bench.worker.log, f"the message is safe: {bench.worker.log[-3_000:]}", seconds=ENDED)
    # Celery calls the hook again with the hook's own error, in both processes.
    eventually(lambda: lines(failing).count("on_failure") == 3, f"{lines(failing)}", seconds=ENDED)
    assert lines(failing).count("run") == 3
    assert (lines(succeeding), bench.worker.log.count(logged)) == (["run", "on_success"], 1)


def test_a_result_that_cannot_be_stored_is_a_failed_run_and_celery_announces_each_as_a_failure(
    bench: Bench, journal: str
) -> None:
    with pytest.raises(Exception, match="not JSON serializable"):
        unstorable.delay(journal).get(timeout=ENDED)
    end = ["run", "on_failure EncodeError", "task_failure EncodeError True", "after_return FAILURE"]
    retried = [*end, "on_retry EncodeError", "task_retry True"]
    expected_lines = sorted(retried * 2 + end)
    eventually(
        lambda: sorted(lines(journal)) == expected_lines, f"it is dead-lettered: {lines(journal)}", seconds=ENDED
    )


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


def test_a_rate_limit_holds_for_retries_too(bench: Bench, journal: str) -> None:
    results = [canvas_app.limited.delay(journal, each) for each in range(6)]
    assert [result.get(timeout=ENDED) for result in results] == list(range(6))
    times = sorted(float(line.split()[1]) for line in lines(journal) if line.startswith("at "))
    assert len(times) == 7
    # Six runs after the first one, at five a second; less one, since the worker notes a time after it began.
    assert times[-1] - times[0] >= 5 / 5
