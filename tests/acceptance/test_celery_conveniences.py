"""What Celery promises beside retry policies, with a result backend. Each row of the guide's table has a test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group, states
from celery.exceptions import ChordError, TaskRevokedError

from app.broker.dead_letters.sets import DeadSets
from app.broker.errors import ApplicationError, InvalidMessage, Postpone
from app.broker.publishing import Publisher
from app.private_services import Urls
from config.settings import ROOT
from tests.support import canvas_app
from tests.support.broker import Broker
from tests.support.canvas_app import (
    OutOfStock,
    add,
    called_back,
    fail,
    forget,
    hang,
    late,
    late_add,
    late_add_to_all,
    late_chain,
    late_ids,
    late_note,
    refuse,
    refuse_oddly,
)
from tests.support.corner import own_vhost
from tests.support.waiting import eventually
from tests.support.worker import Worker, worker

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
ENDED = 60.0


@dataclass
class Bench:
    """A running worker, and the folder of its journals."""

    url: str
    folder: Path
    environment: dict[str, str]
    broker: Broker
    worker: Worker

    def journal(self, name: str) -> str:
        """Return the path of a new journal."""
        path = self.folder / name
        assert not path.exists()
        return str(path)

    def replay(self, ident: str) -> None:
        """Replay the dead letter of a task, with a fresh budget."""
        publisher = Publisher(self.url)
        dead = DeadSets.of(canvas_app.policies, self.url, publisher)

        def found() -> list[str]:
            return [letter.id for letter in dead.letters() if letter.delivery.headers.get("id") == ident]

        [letter] = eventually(found, f"{ident} is dead-lettered; log:\n{self.worker.log[-3_000:]}", seconds=ENDED)
        dead.replay([letter], budget="fresh")
        publisher.close()


def lines(journal: str) -> list[str]:
    path = Path(journal)
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def bench(services: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("canvas")
    with own_vhost(services) as url:
        environment = {"CELERY_BROKER_URL": url, "CELERY_RESULT_BACKEND": services.redis_url, "PYTHONPATH": str(ROOT)}
        canvas_app.connect(url, services.redis_url)
        with worker(
            environment,
            folder / "worker.log",
            app="tests.support.canvas_app",
            queues=["work", "picky"],
            concurrency=4,
            options=["--loglevel=INFO"],
        ) as running:
            yield Bench(url, folder, environment, Broker(url), running)
        canvas_app.app.pool.force_close_all()


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
    result = fail.delay(journal)
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


def test_links_follow_the_end_and_not_the_retries(bench: Bench) -> None:
    journal, failed = bench.journal("link"), bench.journal("link-error")
    linked = fail.apply_async((journal, 2, 3), link=add.s(10))
    assert linked.get(timeout=ENDED) == 3
    assert eventually(lambda: linked.children, "the link is sent")[0].get(timeout=ENDED) == 13
    on_error = called_back.s(journal=failed)
    with pytest.raises(KeyError):
        fail.apply_async((failed,), link_error=on_error).get(timeout=ENDED)
    eventually(lambda: "link_error KeyError" in lines(failed), f"the link is called: {lines(failed)}", seconds=ENDED)
    assert lines(failed).count("link_error KeyError") == 1


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


def test_a_group_and_a_chord_wait_for_retries_of_their_members(bench: Bench) -> None:
    journals = [bench.journal(f"member-{number}") for number in range(4)]
    assert group(fail.s(journal, 1, 2) for journal in journals[:2]).delay().get(timeout=ENDED) == [2, 2]
    assert chord([fail.s(journal, 2, 5) for journal in journals[2:]], add.s()).delay().get(timeout=ENDED) == 10


def test_a_chord_fails_with_the_dead_letter_of_a_member(bench: Bench) -> None:
    journal = bench.journal("chord")
    result = chord([fail.s(journal, 3, 5), add.s(1)], add.s()).delay()
    eventually(lambda: result.state == states.FAILURE, "the chord fails", seconds=ENDED)
    assert isinstance(result.result, ChordError)


#: Facts of Celery's own t/integration/test_canvas.py. Here each member fails in its first run.
FACTS: dict[str, tuple[Any, Any]] = {
    "chain": (late_add.s(4, 4) | late_add.s(8) | late_add.s(16), 32),
    "chain in a chain": (late.s(2) | (late_add.s(4) | late_chain.s()) | group(late_add.s(i) for i in (1, 2)), [7, 8]),
    "chains in a group": (late_add.s(5, 6) | group(late_add.s(1) | late_add.s(2), late_add.s(3)), [14, 14]),
    "chain with a group in a group": (group(late.s(1), late.s(5) | group(late.si(3), late.si(4))), [1, [3, 4]]),
    "nested groups": (group(late.s(1), group(late.s(2), group(late.s(3), late.s(4)))), [1, 2, 3, 4]),
    "group in a chain": (late.s(42) | group(late.s(), late.s()) | late.s(), [42, 42]),
    "groups in a chain": (late.s(1) | group([late_add.s(1)] * 2) | group([late_add.s()] * 2) | late_add.s(), 8),
    "chords in a chain": (chain(chord([late.si(1)] * 3, late_add.s()), chord([late_add.s(1)] * 3, late_add.s())), 12),
    "order of a chord": (chord((late.si(i) for i in range(10)), late.s()), list(range(10))),
    "chord with one member": (chord([late_add.s(2, 5)], late_add_to_all.s(9)), [16]),
    "chord without members": (chord([], late_add_to_all.s(9)), []),
    "chord ending in a group": (late.s(4) | group(late_add.s(i) for i in (0, 1)) | late_add_to_all.s(8), [12, 13]),
    "groups instead of members": (group([late_add_to_all.s([2, 1], 1), late_add_to_all.s([4], 1)]), [[3, 2], [5]]),
    "group in a chord": (chord([group(late.s(42), late.s(42))], late.s()), [42, 42]),
    "chain with a group in a chord": (chord([late.s(42) | group(late.s(), late.s())], late.s()), [[42, 42]]),
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


@pytest.mark.parametrize("name", FACTS)
def test_a_canvas_with_members_that_fail_first_has_celerys_own_value(bench: Bench, name: str) -> None:
    canvas, value = FACTS[name]
    assert canvas.delay().get(timeout=ENDED) == value


def without_retries(journal: str) -> list[str]:
    return [line for line in lines(journal) if line != "task_retry True"]


def test_members_that_fail_first_run_in_celerys_own_order(bench: Bench) -> None:
    journal, nested = bench.journal("order"), bench.journal("nested")
    before, between, after = (late_note.si(journal, when) for when in ("before", "between", "after"))
    (group([before] * 3) | between | group([after] * 2)).delay().get(timeout=ENDED)
    assert without_retries(journal) == ["before"] * 3 + ["between"] + ["after"] * 2
    canvas_app.late_nest.delay(nested, "ab").get(timeout=ENDED)
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
    result = fail.delay(journal)
    eventually(lambda: result.state == states.RETRY, "it waits for its retry", seconds=ENDED, every=0.02)
    result.revoke()
    with pytest.raises(TaskRevokedError):
        result.get(timeout=ENDED)
    assert lines(journal).count("run") < 3
    assert not [each for each in bench.broker.peek(DEAD) if each.headers.get("id") == result.id]


def test_a_countdown_is_refused_and_an_expired_message_is_discarded(bench: Bench) -> None:
    journal = bench.journal("expired")
    with pytest.raises(InvalidMessage, match="neither countdown nor eta"):
        fail.apply_async((journal,), countdown=1)
    with pytest.raises(TaskRevokedError):
        fail.apply_async((journal,), expires=-1).get(timeout=ENDED)
    assert lines(journal) == []


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_other_pools_keep_the_promises(bench: Bench, pool: str) -> None:
    """The worker of the other tests has Celery's default, prefork."""
    journal = bench.journal(pool)
    options = [f"--pool={pool}", "--loglevel=INFO"]
    log, name = bench.folder / f"{pool}.log", "tests.support.canvas_app"
    # A process of its own: gevent replaces what others would have imported before.
    with worker(bench.environment, log, app=name, queues=["slow"], options=options, folder=bench.folder):
        with pytest.raises(OutOfStock):
            refuse.apply_async((journal,), queue="slow").get(timeout=ENDED)
        result = fail.apply_async((f"{journal}-again",), queue="slow")
        eventually(lambda: result.state == states.RETRY, "it is retried", seconds=ENDED)
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
