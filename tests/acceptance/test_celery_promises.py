"""What Celery's user guide says of calling, canvas, tasks and signals holds for each run, also that of a retry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery, chord, group, states
from celery.exceptions import TaskRevokedError

from app.broker.amqp_internals import BodyTooLong
from app.broker.errors import InvalidMessage
from app.broker.policies.drop import DropAll
from app.broker.worker.install import install
from app.private_services import Urls
from tests.support import canvas_app
from tests.support.canvas_app import (
    add,
    describe,
    expected,
    fail,
    forget_success,
    hooked_badly,
    ignore,
    requeue_once,
    unstorable,
    validated,
    wait_for,
)
from tests.support.canvas_bench import ENDED, canvas_bench, lines
from tests.support.canvas_tasks import late
from tests.support.waiting import eventually
from tests.support.worker import Worker

pytestmark = pytest.mark.acceptance

#: What `self.request` says in each run.
KEPT = (
    *("id", "root_id", "parent_id", "correlation_id", "reply_to", "args", "kwargs", "argsrepr", "kwargsrepr", "origin"),
    *("shadow", "expires", "timelimit", "time_limit", "soft_time_limit", "stamps", "stamped_headers", "customer"),
    *("eta", "replaced_task_nesting", "delivery_info", "hostname", "called_directly", "is_eager"),
    *("group", "chain", "chord", "callbacks", "errbacks"),
)


@pytest.fixture(scope="module")
def running(services: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with canvas_bench(services, tmp_path_factory.mktemp("promises")) as bench:
        yield bench.worker


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return str(tmp_path / "journal")


def test_the_options_of_a_call_reach_each_run(running: Worker, journal: str) -> None:
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
    eventually(lambda: f"Task shown[{result.id}] retry" in running.log, "its name in the log", seconds=ENDED)


@pytest.mark.parametrize("compression", ["brotli", "zstd"])
def test_a_compression_without_a_limit_is_refused_at_the_call(running: Worker, journal: str, compression: str) -> None:
    with pytest.raises(BodyTooLong, match="use gzip"):
        fail.apply_async((journal,), compression=compression)


def test_arguments_are_checked_and_delays_refused_at_the_call(running: Worker, journal: str) -> None:
    with pytest.raises(TypeError):
        late.delay()
    with pytest.raises(InvalidMessage, match="neither countdown nor eta"):
        group(late.s(1), late.s(2)).skew(start=1, stop=3).delay()


def test_hooks_and_signals_surround_each_run(running: Worker, journal: str) -> None:
    describe.delay(journal).get(timeout=ENDED)
    begin = ["task_received", "task_prerun", "before_start", "run"]
    run = [*begin, "task_retry True", "task_postrun RETRY", *begin, "task_success", "task_postrun SUCCESS"]
    eventually(lambda: lines(journal) == run, f"{lines(journal)}", seconds=ENDED)


def test_a_message_that_expires_is_signalled_as_revoked(running: Worker, journal: str) -> None:
    with pytest.raises(TaskRevokedError):
        describe.apply_async((journal,), expires=-1).get(timeout=ENDED)
    eventually(lambda: lines(journal) == ["task_revoked True"], f"{lines(journal)}", seconds=ENDED)


def test_messages_that_are_no_task_are_signalled(running: Worker, journal: str, tmp_path: Path) -> None:
    canvas_app.app.send_task("shop.unknown", (journal,))
    eventually(lambda: "task_unknown shop.unknown" in lines(journal), f"{lines(journal)}", seconds=ENDED)
    strange = str(tmp_path / "strange")
    with canvas_app.app.producer_or_acquire() as producer:
        producer.publish([strange], exchange="", routing_key="work")
    eventually(lambda: "task_rejected" in lines(strange), f"{lines(strange)}", seconds=ENDED)


def test_states_of_each_run_are_seen_by_the_caller(running: Worker, journal: str) -> None:
    seen: list[tuple[str, str]] = []
    result = describe.delay(journal)
    # The queue of this caller has the results of other tests' messages, too.
    result.get(timeout=ENDED, on_message=lambda message: seen.append((message["task_id"], message["status"])))
    run = [states.STARTED, "PROGRESS"]
    statuses = [status for task_id, status in seen if task_id == result.id]
    assert statuses == [*run, states.RETRY, *run, states.SUCCESS]


def test_a_map_is_one_message_and_chunks_are_several(running: Worker, journal: str) -> None:
    assert fail.starmap([(journal, 1, 7), (journal, 1, 8)]).delay().get(timeout=ENDED) == [7, 8]
    assert lines(journal).count("run") == 3
    assert add.map([[1, 2], [3, 4]]).delay().get(timeout=ENDED) == [3, 7]
    assert add.chunks(zip(range(4), range(4), strict=True), 2).delay().get(timeout=ENDED) == [[0, 2], [4, 6]]


def test_an_expected_error_is_logged_without_a_traceback(running: Worker, journal: str) -> None:
    result = expected.delay(journal)
    with pytest.raises(KeyError):
        result.get(timeout=ENDED)
    assert lines(journal).count("run") == 3
    eventually(lambda: f"Task {expected.name}[{result.id}] raised expected" in running.log, running.log, seconds=ENDED)


def test_a_chord_that_a_backend_cannot_count_is_refused_at_the_call(running: Worker, tmp_path: Path) -> None:
    app = Celery(
        "files", broker=canvas_app.app.conf.broker_write_url, backend=f"file://{tmp_path}", set_as_current=False
    )
    install(app, DropAll())
    member = app.signature("member")
    with pytest.raises(InvalidMessage, match="neither countdown nor eta"):
        chord([member, member], member).delay()


def test_a_message_that_a_task_requeues_is_redelivered_to_its_next_run(running: Worker, journal: str) -> None:
    requeue_once.delay(journal).get(timeout=ENDED)
    assert lines(journal) == ["run"] * 2


def test_a_message_that_expires_while_it_waits_is_discarded(running: Worker, journal: str) -> None:
    with pytest.raises(TaskRevokedError):
        wait_for.apply_async((journal,), expires=2).get(timeout=ENDED)


def test_messages_that_wait_can_be_revoked_by_their_stamps_and_as_a_group(running: Worker, journal: str) -> None:
    stamped = wait_for.si(journal)
    stamped.stamp(aisle="nine")
    results = [stamped.delay(), group(wait_for.si(f"{journal}-group") for _ in range(2)).delay()]
    eventually(lambda: "run" in lines(journal) and lines(f"{journal}-group"), "they wait", seconds=ENDED)
    canvas_app.app.control.revoke_by_stamped_headers({"aisle": "nine"})
    results[1].revoke()
    for result in results:
        with pytest.raises(TaskRevokedError):
            result.get(timeout=ENDED)


def test_a_result_is_ignored_by_the_call_or_but_for_its_error_by_the_task(running: Worker, journal: str) -> None:
    ignored, kept = fail.apply_async((journal, 0, 7), ignore_result=True), forget_success.delay(f"{journal}-error")
    assert ignored.get() is None
    with pytest.raises(KeyError):
        canvas_app.app.AsyncResult(kept.id).get(timeout=ENDED)
    eventually(lambda: "after_return SUCCESS" in lines(journal), f"{lines(journal)}", seconds=ENDED)
    assert canvas_app.app.backend.get_state(ignored.id) == states.PENDING


def test_an_ignored_run_ends_without_a_state_a_retry_or_a_dead_letter(running: Worker, journal: str) -> None:
    result = ignore.delay(journal)
    eventually(lambda: "run" in lines(journal), "it runs", seconds=ENDED)
    # What was sent after it, and fails three times, has ended.
    with pytest.raises(KeyError):
        fail.delay(f"{journal}-later").get(timeout=ENDED)
    assert (lines(journal), result.state) == (["run"], states.PENDING)


def test_a_hook_that_raises_changes_nothing_for_the_message(running: Worker, journal: str) -> None:
    failing, succeeding = f"{journal}-failing", f"{journal}-succeeding"
    assert hooked_badly.delay(succeeding, fails=False).get(timeout=ENDED) == "done"
    result = hooked_badly.delay(failing, fails=True)
    with pytest.raises(KeyError):
        result.get(timeout=ENDED)
    logged = f"Dead-lettered {hooked_badly.name}"
    eventually(lambda: logged in running.log, f"the message is safe: {running.log[-3_000:]}", seconds=ENDED)
    # Celery calls the hook again with the hook's own error, in both processes.
    eventually(lambda: lines(failing).count("on_failure") == 3, f"{lines(failing)}", seconds=ENDED)
    assert lines(failing).count("run") == 3
    assert (lines(succeeding), running.log.count(logged)) == (["run", "on_success"], 1)


def test_a_result_that_cannot_be_stored_is_a_failed_run_and_celery_announces_each_as_a_failure(
    running: Worker, journal: str
) -> None:
    with pytest.raises(Exception, match="not JSON serializable"):
        unstorable.delay(journal).get(timeout=ENDED)
    end = ["run", "on_failure EncodeError", "task_failure EncodeError True", "after_return FAILURE"]
    retried = [*end, "on_retry EncodeError", "task_retry True"]
    expected_lines = sorted(retried * 2 + end)
    eventually(
        lambda: sorted(lines(journal)) == expected_lines, f"it is dead-lettered: {lines(journal)}", seconds=ENDED
    )


def test_validated_arguments_are_models_and_an_invalid_one_is_a_failed_run(running: Worker) -> None:
    assert validated.delay({"number": "5"}).get(timeout=ENDED) == {"number": 5}
    with pytest.raises(Exception, match="ValidationError"):
        validated.delay({"number": "five"}).get(timeout=ENDED)
    eventually(lambda: f"Dead-lettered {validated.name}" in running.log, running.log[-3_000:], seconds=ENDED)
