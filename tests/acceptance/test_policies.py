"""Three policies, each failure of failing: a real worker of an application that is not ours, on a real broker."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from celery import states
from celery.events.state import State
from kombu import Connection

from app.private_services import Urls
from tests.support import shop
from tests.support.broker import Broker
from tests.support.corner import own_vhost
from tests.support.shop_worker import shop_worker
from tests.support.waiting import eventually
from tests.support.worker import Worker

pytestmark = pytest.mark.acceptance

#: Every queue of the shop that is failed in, its dead set, and the delays of its budget in ms.
QUEUES = {
    "mail": ("shop.dead", [300, 600]),
    "mail.classic": ("old.dead", [300, 600]),
    "labels.print": ("labels.failed", [400, 400]),
    "orders": ("orders.error", [500, 500]),
    "orders.classic": ("orders.classic.error", [500, 500]),
    "topics": ("topics-error", [500, 500]),
}

#: Client queues whose messages go round more often.
ROUNDS = {"rounds": ("rounds.error", [100] * 7), "rounds.classic": ("rounds.classic.error", [100] * 7)}

#: Ways of failing in a task that runs: its name, reason code, exception's type and message.
RUNNING = {
    "exception": ("fail", "exception", "KeyError", "'no such shelf'"),
    "soft time limit": ("linger", "soft-time-limit", "SoftTimeLimitExceeded", "the soft time limit is over"),
    "hard time limit": ("hang", "time-limit", "TimeLimitExceeded", "the time limit of 0.3 s is over"),
    "SIGKILL": ("suicide", "worker-lost", "WorkerLostError", "Worker exited prematurely: signal 9 (SIGKILL)"),
    "exit": ("leave", "worker-lost", "SystemExit", "3"),
    # Python has nothing to say of a MemoryError.
    "out of memory": ("memory", "out-of-memory", "MemoryError", ""),
    "self.retry(exc=)": ("by_retry", "exception", "KeyError", "'shelf'"),
    "self.retry()": ("by_bare_retry", "error", "ApplicationError", "by_bare_retry asked for a retry"),
    "Reject": ("by_reject", "exception", "Reject", "no such shelf"),
    "Retry": ("by_raised_retry", "exception", "Retry", "no such shelf"),
    "autoretry_for": ("by_autoretry", "exception", "KeyError", "'no such shelf'"),
}

#: Ways of failing before a task can run: reason code, exception's type.
BEFORE = {
    "missing argument": ("exception", "TypeError"),
    "unknown task": ("unknown-type", "UnknownType"),
    "garbage": ("undecodable", "Undecodable"),
    "undecodable body": ("undecodable", "Undecodable"),
}

#: In one queue every way of failing; in the others one that the process of the run reports, and one that it cannot.
RUNS = [("mail", failure) for failure in RUNNING]
RUNS += [(queue, failure) for queue in QUEUES if queue != "mail" for failure in ("exception", "SIGKILL")]
RUNS += [(queue, "exception") for queue in ROUNDS]
NO_RUNS = [("mail", failure) for failure in BEFORE] + [(queue, "garbage") for queue in QUEUES if queue != "mail"]

GARBAGE = b"\xff\xfe garbage \x00"


@dataclass
class Bench:
    """A running worker of the shop, and what is seen of it from outside."""

    url: str
    folder: Path
    broker: Broker
    ids: dict[str, str] = field(default_factory=dict)
    events: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    fields: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    state: State = field(default_factory=State)
    worker: Worker = field(init=False)

    def journal(self, case: str) -> Path:
        return self.folder / re.sub(r"\W", "-", case)

    def runs(self, case: str) -> list[float]:
        """Return when each run began."""
        return self._times(case, "run")

    def deaths(self, case: str) -> list[float]:
        """Return when the worker's `task_failure` signal was sent."""
        return self._times(case, "task_failure")

    def dead(self, queue: str, case: str) -> Any:
        """Wait for a message in its dead set and return it."""
        rest = (QUEUES | ROUNDS)[queue][0]

        def found() -> list[Any]:
            return [each for each in self.broker.peek(rest) if each.headers.get("case") == case]

        [message] = eventually(found, f"{case} in {rest}; log:\n{self.worker.log[-3_000:]}", seconds=60, every=0.2)
        return message

    def send(self, case: str, queue: str, task: str, **headers: Any) -> None:
        """Post a task as Celery's protocol 2 has it."""
        self.ids[case] = ident = str(uuid.uuid4())
        body = json.dumps([[], {"journal": str(self.journal(case))}, {}]).encode()
        base = {"task": f"tests.support.shop.{task}", "id": ident, "lang": "py", "root_id": ident, "case": case}
        base |= {"argsrepr": "()", "kwargsrepr": repr({"journal": str(self.journal(case))})}
        self.post(queue, body, {**base, **headers})

    def post(self, queue: str, body: bytes, headers: dict[str, Any], **properties: Any) -> None:
        """Publish a message to a queue through the exchange that its producers use."""
        target = shop.policies.policy_for(queue).work_queue(queue)
        as_json = {"content_type": "application/json", "content_encoding": "utf-8"}
        properties = {"reply_to": "answers", "correlation_id": "question", **as_json, **properties}
        self.broker.post(body, exchange=target.exchange.name, key=target.routing_key, headers=headers, **properties)

    def _times(self, case: str, kind: str) -> list[float]:
        path = self.journal(case)
        lines = [line.rsplit(" ", 1) for line in path.read_text().splitlines()] if path.exists() else []
        return [float(time) for name, time in lines if name.startswith(kind)]


@pytest.fixture(scope="module")
def bench(services: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """All messages of all tests, failing at once under one worker."""
    with own_vhost(services) as url:
        folder = tmp_path_factory.mktemp("shop")
        bench = Bench(url, folder, Broker(url))
        queues = [*QUEUES, *ROUNDS, "clock"]
        with (
            shop_worker(url, folder / "worker.log", queues, "--task-events", concurrency=4) as bench.worker,
            listening(bench),
        ):
            send_all(bench)
            bench.send("mail: other arguments", "mail", "by_retry_with_more")
            bench.send("clock: exception", "clock", "fail")
            yield bench


def send_all(bench: Bench) -> None:
    for queue, failure in RUNS:
        bench.send(f"{queue}: {failure}", queue, RUNNING[failure][0])
    for queue in QUEUES:
        bench.post(queue, GARBAGE, {"case": f"{queue}: garbage"}, content_type="image/png", content_encoding="binary")
    bench.send("mail: unknown task", "mail", "never_written")
    base = {"task": "tests.support.shop.fail", "lang": "py"}
    for failure, body in (("missing argument", b"[[], {}, {}]"), ("undecodable body", b"[[], {")):
        bench.post("mail", body, {"case": f"mail: {failure}", "id": str(uuid.uuid4()), **base})


@contextmanager
def listening(bench: Bench) -> Iterator[None]:
    """Take in every event of the worker for the block, as Flower does."""

    def on_event(event: dict[str, Any]) -> None:
        bench.state.event(event)
        if event["type"].startswith("task-"):
            bench.events[event["uuid"]].append(event["type"])
            bench.fields[event["uuid"]].append(event)

    with Connection(bench.url) as connection:
        receiver = shop.app.events.Receiver(connection, handlers={"*": on_event})
        thread = threading.Thread(target=receiver.capture, kwargs={"limit": None, "wakeup": False})
        thread.start()
        try:
            yield
        finally:
            receiver.should_stop = True
            thread.join(60)


def gaps_in_ms(times: list[float]) -> list[float]:
    return [(later - earlier) * 1_000 for earlier, later in pairwise(times)]


def assert_described(events: list[dict[str, Any]], task: str, arguments: str, delays: Sequence[float]) -> None:
    """Each event names the task and its arguments, and that of a retry the time at which the message comes back."""
    assert {event["name"] for event in events} == {task}
    assert all(arguments in event["kwargs"] for event in events)
    waits = [
        datetime.fromisoformat(event["eta"]).timestamp() - event["timestamp"]
        for event in events
        if event["type"] == "task-retried"
    ]
    assert all(wait <= delay / 1_000 for wait, delay in zip(waits, delays, strict=True)), waits


def header(message: Any, name: str) -> Any:
    return message.headers[f"perennial-{name}"]


@pytest.mark.parametrize(("queue", "failure"), RUNS)
def test_however_a_run_fails_it_runs_its_budget_with_its_delays_and_ends_in_its_dead_set_announced_once(
    bench: Bench, queue: str, failure: str
) -> None:
    case, (_, reason, exception, text) = f"{queue}: {failure}", RUNNING[failure]
    message = bench.dead(queue, case)
    delays = (QUEUES | ROUNDS)[queue][1]
    gaps = gaps_in_ms(bench.runs(case))
    assert len(gaps) == len(delays)
    assert all(gap >= delay for gap, delay in zip(gaps, delays, strict=True)), f"{gaps} for {delays}"
    assert (header(message, "reason"), header(message, "exception")) == (reason, exception)
    assert text in header(message, "message")
    assert header(message, "attempts") == len(delays) + 1
    assert header(message, "queue") == queue
    assert header(message, "task").startswith("tests.support.shop.")
    assert header(message, "worker").startswith("worker@")
    assert header(message, "failed-at") >= bench.runs(case)[-1]
    # RabbitMQ gives the time of a rejection to the second.
    assert bench.runs(case)[0] - 1 <= header(message, "first-failed-at") <= bench.runs(case)[1]
    assert len(header(message, "traceback")) <= 6_000
    if reason in ("exception", "soft-time-limit", "out-of-memory"):
        assert f"in {RUNNING[failure][0]}" in header(message, "traceback")
    assert json.loads(message.body)[1] == {"journal": str(bench.journal(case))}
    assert message.delivery_info["routing_key"] == ("print" if queue.endswith(".print") else queue)
    assert (message.properties["reply_to"], message.properties["correlation_id"]) == ("answers", "question")
    assert message.properties["delivery_mode"] == 2
    assert "x-death" not in message.headers
    # An attempt that will be retried shows as retried, and only the death as failed.
    ident = bench.ids[case]
    eventually(lambda: "task-failed" in bench.events[ident], f"{case} is announced: {bench.events[ident]}")
    events = [event for event in bench.events[ident] if event != "task-started"]
    assert events == [*(("task-received", "task-retried") * len(delays)), "task-received", "task-failed"]
    assert bench.state.tasks[ident].state == states.FAILURE
    assert_described(bench.fields[ident], f"tests.support.shop.{RUNNING[failure][0]}", "'journal': '", delays)
    eventually(lambda: bench.deaths(case), f"task_failure of {case}")
    assert len(bench.deaths(case)) == 1


@pytest.mark.parametrize(("queue", "failure"), NO_RUNS)
def test_a_message_that_cannot_run_spends_the_same_budget_and_is_dead_lettered_unchanged(
    bench: Bench, queue: str, failure: str
) -> None:
    message = bench.dead(queue, f"{queue}: {failure}")
    delays = QUEUES[queue][1]
    assert (header(message, "reason"), header(message, "exception")) == BEFORE[failure]
    assert header(message, "attempts") == 3
    lasted = (header(message, "failed-at") - header(message, "first-failed-at")) * 1_000
    # In x_death the last delay is lost in the broker's time, which is in seconds, rounded down: it may only be longer.
    assert lasted >= sum(delays)
    if failure == "garbage":
        assert message.body == GARBAGE
        assert (message.content_type, message.content_encoding) == ("image/png", "binary")


def test_a_retry_with_other_arguments_is_no_silent_retry_with_the_same(bench: Bench) -> None:
    message = bench.dead("mail", "mail: other arguments")
    assert len(bench.runs("mail: other arguments")) == header(message, "attempts") == 1
    assert header(message, "reason") == "invalid-message"
    assert "a message comes back with the arguments that it has" in header(message, "message")


def test_a_message_that_cannot_be_a_task_shows_as_retried_and_as_failed_too(bench: Bench) -> None:
    case = "mail: unknown task"
    bench.dead("mail", case)
    ident = bench.ids[case]
    eventually(lambda: "task-failed" in bench.events[ident], f"{case} is announced: {bench.events[ident]}")
    assert bench.events[ident] == ["task-retried", "task-retried", "task-failed"]
    assert_described(bench.fields[ident], "tests.support.shop.never_written", "'journal': '", QUEUES["mail"][1])


def test_a_dropped_message_is_reported_as_failed_and_not_retried(bench: Bench) -> None:
    case = "clock: exception"
    eventually(lambda: bench.deaths(case), f"task_failure of {case}")
    ident = bench.ids[case]
    eventually(lambda: "task-failed" in bench.events[ident], f"{case} is announced: {bench.events[ident]}")
    assert "task-retried" not in bench.events[ident]
    assert len(bench.runs(case)) == 1
