"""The retry policy that travels with a new message, and what is refused at the call, before anything is sent."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chord, group
from hypothesis import given
from hypothesis import strategies as st
from kombu import Queue
from pydantic import ValidationError

from app.broker.amqp_internals import BodyTooLong
from app.broker.errors import InvalidMessage
from app.broker.policies.base import RetryPolicies
from app.broker.policies.delay_queues import DelayQueues
from app.broker.policies.delays import MAX_TTL_MS
from app.broker.policies.drop import DropAll
from app.broker.policies.fixed_ttl import FixedTtl
from app.broker.policies.x_death import XDeath
from app.broker.worker.install import install
from app.broker.worker.producer import NotConfirmed
from app.messages.envelopes import queue_message, site_message
from app.topology.retry_policies import budgets
from config.routes import ROUTES
from config.settings import Settings

pytestmark = pytest.mark.unit

MAIL = DelayQueues("mail", timeout_ms=250, retry_max=3)


def nothing() -> None:
    """Do nothing; a task has to be a function with a name."""


@pytest.fixture
def task() -> Any:
    """Return a task of an application whose broker is unreachable."""
    app = Celery("post", broker="amqp://127.0.0.1:1//", set_as_current=False)
    app.conf.task_queues = [Queue(name, routing_key=name) for name in ("mail", "labels")]
    app.conf.task_default_queue = "mail"
    install(app, RetryPolicies({"mail": MAIL, "labels": FixedTtl("labels")}, default=MAIL))
    # Not shared: Celery would give the task to applications of other tests.
    return app.task(name="post.send", shared=False)(nothing)


def test_a_message_carries_its_queues_budget_or_its_own() -> None:
    default = {"retry-timeout-ms": 250, "retry-max": 3, "current-iteration": 0}
    assert MAIL.budget_headers() == default
    assert MAIL.budget_headers(retry_max=0) == default | {"retry-max": 0}
    assert MAIL.budget_headers(timeout_ms=1) == default | {"retry-timeout-ms": 1}


@pytest.mark.parametrize("policy", [FixedTtl("labels"), XDeath("orders"), DropAll()])
def test_a_message_of_another_policy_carries_no_budget_and_refuses_one(policy: Any) -> None:
    assert policy.budget_headers() == {}
    with pytest.raises(InvalidMessage, match=f"retry_max 3: the queue's policy is {policy.name}"):
        policy.budget_headers(retry_max=3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"retry_timeout_ms": 1_000, "retry_max": 23}, r"1000 \* 2\^22 ms"),
        ({"retry_timeout_ms": 0}, "retry-timeout-ms 0: expected"),
        ({"retry_timeout_ms": "5"}, "retry-timeout-ms '5': expected"),
        ({"retry_timeout_ms": 1.5}, "retry-timeout-ms 1.5: expected"),
        ({"retry_max": -1}, "retry-max -1: expected"),
        ({"retry_max": True}, "retry-max True: expected"),
        ({"retry_max": 1, "queue": "labels"}, "policy is fixed_ttl"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused_at_the_call(task: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidMessage, match=says):
        task.apply_async(**options)


@pytest.mark.parametrize("when", [{"countdown": 3}, {"eta": datetime(2030, 1, 1)}])
@pytest.mark.parametrize("protocol", [1, 2])
def test_a_countdown_or_an_eta_is_refused_at_the_call_whichever_way_it_goes(
    task: Any, when: dict[str, Any], protocol: int
) -> None:
    task.app.conf.task_protocol = protocol
    skewed = group([task.s()] * 2, app=task.app).skew(start=1, stop=3)
    sends = (task.apply_async, task.s().apply_async, partial(task.app.send_task, task.name))
    for send in (*(partial(each, **when) for each in sends), skewed.apply_async):
        with pytest.raises(InvalidMessage, match="send: neither countdown nor eta; every delay is a message"):
            send()


def test_a_chord_that_a_backend_cannot_count_is_refused_at_the_call(task: Any, tmp_path: Path) -> None:
    task.app.conf.result_backend = f"file://{tmp_path}"
    with pytest.raises(InvalidMessage, match="neither countdown nor eta"):
        chord([task.s(), task.s()], task.s(), app=task.app).apply_async()


@pytest.mark.parametrize("compression", ["brotli", "zstd"])
def test_a_compression_without_a_limit_is_refused_at_the_call(task: Any, compression: str) -> None:
    with pytest.raises(BodyTooLong, match="use gzip"):
        task.apply_async(compression=compression)


def test_an_unreachable_broker_is_an_error_with_the_id_of_a_message_of_the_older_protocol(task: Any) -> None:
    task.app.conf.task_protocol = 1
    with pytest.raises(NotConfirmed, match=r"post\.send\[an-id\] is not confirmed"):
        task.apply_async(task_id="an-id", retry=False)


def test_plain_messages_of_ours_carry_the_budget_of_their_route() -> None:
    ours = budgets(Settings(retry_timeout_ms=700, retry_max=2))
    expected = {"retry-timeout-ms": 700, "retry-max": 2, "current-iteration": 0}
    assert ours == {route.type: {} if route.policy == "drop" else expected for route in ROUTES}
    assert site_message("index", ours, domain="a.gov").headers == expected
    assert site_message("index", domain="a.gov").headers == {}
    assert queue_message("site.pack", {"type": "pack_full", "domain": "a.gov"}, ours).headers == expected
    assert queue_message("site.pack", {"nothing": "known"}, ours).headers == {}


@given(st.integers(1, 2**33), st.integers(0, 40))
def test_settings_are_refused_exactly_where_a_message_would_be(timeout_ms: int, retry_max: int) -> None:
    try:
        DelayQueues("site", timeout_ms=timeout_ms, retry_max=retry_max).budget_headers()
    except InvalidMessage:
        with pytest.raises(ValidationError, match=r"RETRY_TIMEOUT_MS \d+ and RETRY_MAX \d+: the last delay"):
            Settings(retry_timeout_ms=timeout_ms, retry_max=retry_max)
    else:
        policy = DelayQueues("site", timeout_ms=timeout_ms, retry_max=retry_max)
        assert max(policy.delays_ms(), default=0) <= MAX_TTL_MS
        assert Settings(retry_timeout_ms=timeout_ms, retry_max=retry_max).retry_max == retry_max
