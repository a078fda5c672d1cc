"""Retry policies: what becomes of a message, from its headers and its failure alone."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu import Exchange

from app.broker.delivery import Delivery
from app.broker.errors import InvalidMessage, Postpone
from app.broker.failure import Failure
from app.broker.outgoing import Outgoing
from app.broker.policies.base import Dead, Drop, Policy, Postponed, Reject, Retry
from app.broker.policies.delay_queues import DelayQueues
from app.broker.policies.delays import MAX_TTL_MS, POSTPONE_LADDER_MS, ladder_rung, rounded_up, two_digits
from app.broker.policies.drop import DropAll
from app.broker.policies.fixed_ttl import MAX_EXCEPTIONS, FixedTtl
from app.broker.policies.x_death import XDeath
from app.topology.model import bindings_of, exchanges_of
from app.topology.queues import task_queues
from app.topology.retry_policies import art_policy, retry_policies
from config.routes import ROUTES
from config.settings import Settings
from tests.support.deliveries import FAILURE, Life, delivery, live

pytestmark = pytest.mark.unit

PERMANENT = replace(FAILURE, permanent=True)


def policy_of(name: str, budget: int) -> Policy:
    """Return a policy with a budget of `budget` retries, for the queue `q`."""
    made: dict[str, Policy] = {
        "delay_queues": DelayQueues("ns", timeout_ms=100, retry_max=budget),
        "fixed_ttl": FixedTtl("ns", {"q": "key"}, ttl_ms=100, retry_max=budget),
        "x_death": XDeath("q", retry_after_ms=100, retry_max=budget),
    }
    return made[name]


NAMES = ("delay_queues", "fixed_ttl", "x_death")


def end(policy: Policy, **headers: Any) -> Life:
    """Let a message fail until it dies."""
    return live(policy, [False] * 50, delivery("q", **headers))


# One law for all


@given(st.sampled_from(NAMES), st.lists(st.sampled_from([True, False, None]), max_size=20), st.integers(0, 8))
def test_a_message_runs_until_its_first_success_or_once_more_than_its_budget(
    name: str, outcomes: list[bool | None], budget: int
) -> None:
    outcomes = [*outcomes, True]
    life = live(policy_of(name, budget), outcomes, delivery("q"))
    first_success = [each for each in outcomes if each is not None].index(True) + 1
    assert life.runs == min(first_success, budget + 1)
    assert life.died == (first_success > budget + 1)
    assert len(life.delays) == life.runs - 1
    if life.died:
        assert life.headers["perennial-attempts"] == budget + 1


@pytest.mark.parametrize("name", NAMES)
def test_a_dead_letter_names_queue_attempts_worker_error_and_its_first_and_last_failure(name: str) -> None:
    headers = end(policy_of(name, 3)).headers
    headers = {key.removeprefix("perennial-"): value for key, value in headers.items() if key.startswith("perennial-")}
    assert (headers["queue"], headers["attempts"], headers["worker"]) == ("q", 4, "w")
    assert (headers["reason"], headers["exception"], headers["message"]) == ("exception", "KeyError", "boom")
    assert headers["first-failed-at"] == headers["failed-at"] == 1_000.0


@pytest.mark.parametrize("name", NAMES)
def test_the_waits_of_a_dead_letter_are_those_that_its_message_had(name: str) -> None:
    policy = policy_of(name, 3)
    # Under `delay_queues` the message's own timeout counts.
    died = end(policy, **{"retry-timeout-ms": 70})
    letter = delivery("q", **died.headers)
    assert len(died.delays) == 3
    assert [policy.wait_ms(letter, run) for run in (1, 2, 3)] == died.delays


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("budget", "runs"), [("keep", 1), ("fresh", 4)])
def test_a_replay_dies_at_its_next_failure_or_runs_a_fresh_budget(name: str, budget: Any, runs: int) -> None:
    policy = policy_of(name, 3)
    died = end(policy)
    # A worker would discard a letter that has expired before its replay.
    replayed = policy.replay_headers({**died.headers, "expires": "2026-01-01"}, budget)
    assert "expires" not in replayed
    again = live(policy, [False] * 9, delivery("q", **replayed))
    assert (again.runs, again.died) == (runs, True)
    assert again.headers["perennial-replay-of"] == [died.headers["perennial-dead-id"]]
    third = policy.replay_headers(again.headers, "fresh")
    lives = [again.headers["perennial-dead-id"], died.headers["perennial-dead-id"]]
    assert third["perennial-replay-of"] == lives
    assert "perennial-reason" not in third


@pytest.mark.parametrize("name", NAMES)
def test_what_a_policy_needs_on_the_broker_is_durable_and_its_dead_set_classic_and_first(name: str) -> None:
    policy = policy_of(name, 3)
    queues = policy.queues()
    assert all(each.durable for queue in queues for each in (queue, *exchanges_of(queue)))
    assert queues[0] == policy.dead
    assert not queues[0].queue_arguments


# delay_queues


def test_three_retries_wait_once_twice_and_four_times_the_timeout() -> None:
    policy = DelayQueues("ns", timeout_ms=1_000, retry_max=3)
    life = end(policy, **policy.budget_headers())
    assert (life.runs, life.delays) == (4, [1_000, 2_000, 4_000])
    budget = {"retry-timeout-ms": 1_000, "retry-max": 3, "current-iteration": 3}
    assert {name: life.headers[name] for name in budget} == budget


def test_the_policy_travels_with_the_message_and_wins_over_the_defaults() -> None:
    life = end(DelayQueues("ns", timeout_ms=1_000, retry_max=9), **{"retry-timeout-ms": "50", "retry-max": 1})
    assert (life.runs, life.delays) == (2, [50])


def test_a_permanent_failure_dies_at_once_and_tells_its_reason() -> None:
    for name in ("delay_queues", "x_death"):
        decision = policy_of(name, 3).decide(delivery("q"), replace(PERMANENT, reason="invalid-url"))
        assert isinstance(decision, Dead)
        assert decision.headers["perennial-reason"] == "invalid-url"


@given(st.integers(1, 2**33), st.integers(0, 2_000))
def test_a_budget_whose_last_delay_no_broker_can_wait_is_an_error_at_the_sender(timeout_ms: int, budget: int) -> None:
    policy = DelayQueues("ns")
    last = two_digits(timeout_ms * 2 ** (budget - 1)) if budget else 0
    if last > MAX_TTL_MS:
        with pytest.raises(InvalidMessage, match=f"retry-timeout-ms {timeout_ms} and retry-max {budget}.*24.8 days"):
            policy.budget_headers(timeout_ms=timeout_ms, retry_max=budget)
    else:
        headers = policy.budget_headers(timeout_ms=timeout_ms, retry_max=budget)
        assert headers == {"retry-timeout-ms": timeout_ms, "retry-max": budget, "current-iteration": 0}
        assert end(policy, **headers).runs == budget + 1


@given(st.integers(1, 2**31 - 1))
def test_rounding_never_shortens_a_delay_and_adds_less_than_a_tenth(delay_ms: int) -> None:
    rounded = two_digits(delay_ms)
    assert delay_ms <= rounded < delay_ms * 1.1 + 1
    assert len(str(rounded).rstrip("0")) <= 2


def test_clients_that_choose_every_duration_make_a_hundred_delay_queues_and_the_defaults_stay_exact() -> None:
    policy = DelayQueues("ns", timeout_ms=3_300, retry_max=3)
    timeouts = {int(10 ** (exponent / 200)) for exponent in range(1_867)}
    chosen = {policy.delay_ms(timeout_ms, iteration) for timeout_ms in timeouts for iteration in range(31)}
    queues = {delay_ms for delay_ms in chosen if delay_ms <= MAX_TTL_MS}
    assert len(queues) < 100
    assert [policy.delay_ms(3_300, iteration) for iteration in range(4)] == [3_300, 6_600, 14_000, 32_000]
    assert [policy.delay_ms(1_000, iteration) for iteration in range(7)] == [1_000 * 2**n for n in range(7)]


@given(st.integers(1, MAX_TTL_MS))
def test_a_delay_that_a_client_chose_is_never_shorter_and_at_most_30_percent_longer(delay_ms: int) -> None:
    assert delay_ms <= rounded_up(delay_ms) <= min(delay_ms * 1.3 + 1, MAX_TTL_MS)


@given(st.floats(0, 10_000))
def test_the_hops_of_a_postponement_wait_less_than_a_shortest_one_longer_than_requested(seconds: float) -> None:
    left = seconds * 1_000
    while left > 0:
        rung = ladder_rung(left / 1_000)
        assert rung in POSTPONE_LADDER_MS
        left -= rung
    assert left > -POSTPONE_LADDER_MS[0] - 0.001


def test_a_wait_just_below_a_rung_is_one_hop() -> None:
    assert [ladder_rung(seconds) for seconds in (0.0, 0.2, 0.26, 0.99, 1.0, 1.01, 3.99)] == [
        *(250, 250, 500, 1_000, 1_000, 1_000, 4_000)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_postponement_can_be_exact_and_then_waits_in_a_queue_of_its_own(name: str) -> None:
    decision = policy_of(name, 3).postpone(delivery("q"), 10.0, exactly=True)
    assert isinstance(decision, Postponed)
    assert decision.delay_ms == 10_000
    assert (decision.queue.queue_arguments or {})["x-message-ttl"] == 10_000


def test_a_postponement_travels_from_a_pool_process_whole() -> None:
    there = pickle.loads(pickle.dumps(Postpone(2.5, "why", exactly=True, headers={"a": 1})))
    assert (there.seconds, there.why, there.exactly, there.headers) == (2.5, "why", True, {"a": 1})


def test_jitter_spreads_messages_over_three_delays_whose_queues_are_declared() -> None:
    policy = DelayQueues("ns", timeout_ms=1_000, retry_max=2, jitter=0.5)
    decisions = [policy.decide(delivery("q", id=str(number)), FAILURE) for number in range(50)]
    assert {each.delay_ms for each in decisions if isinstance(each, Retry)} == {1_000, 1_300, 1_500}
    declared = {each.name for each in policy.queues()}
    assert {"ns.delay.1000", "ns.delay.1300", "ns.delay.1500", "ns.delay.3000"} <= declared
    assert decisions == [policy.decide(delivery("q", id=str(number)), FAILURE) for number in range(50)]
    longest = replace(policy, timeout_ms=2_000_000_000, retry_max=1)
    assert isinstance(longest.decide(delivery("q", id="1"), FAILURE), Retry)


# fixed_ttl


def test_the_countdown_goes_from_the_default_to_zero_in_retry_and_is_minus_one_in_failed() -> None:
    policy = FixedTtl("caa", {"q": "index"})
    headers: dict[str, Any] = {}
    seen = []
    for _ in range(5):
        decision = policy.decide(delivery("q", **headers), FAILURE)
        assert isinstance(decision, Retry | Dead)
        assert decision.routing_key == "index"
        headers = dict(decision.headers)
        seen.append(headers["mb-retries"])
    assert seen == [3, 2, 1, 0, -1]
    assert headers["mb-exceptions"] == ["KeyError: boom"] * 5


@pytest.mark.parametrize(
    ("value", "runs"),
    [
        *[(None, 5), (2, 3), ("2", 3), (-1, 1), ("many", 5), (True, 5), ([], 5), (10**9, 5)],
    ],
)
def test_mb_retries_is_read_as_int_or_text_and_garbage_counts_as_absent(value: Any, runs: int) -> None:
    headers = {} if value is None else {"mb-retries": value}
    assert end(FixedTtl("caa", {"q": "index"}), **headers).runs == runs


def test_a_postponed_message_of_a_countdown_returns_by_the_binding_key_of_its_queue() -> None:
    retried: dict[str, Any] = {"mb-retries": "2"}
    waiting = FixedTtl("ns", {"q": "key"}).postpone(delivery("q", **retried), 1.0)
    assert isinstance(waiting, Postponed)
    assert (waiting.routing_key, waiting.queue.queue_arguments["x-dead-letter-exchange"]) == ("key", "ns")
    assert "x-dead-letter-routing-key" not in waiting.queue.queue_arguments
    assert "mb-retries" not in waiting.headers


def test_a_permanent_failure_is_retried_all_the_same_unless_the_policy_names_its_reason() -> None:
    assert isinstance(FixedTtl("caa").decide(delivery("q"), PERMANENT), Retry)
    fatal = frozenset({PERMANENT.reason})
    assert isinstance(FixedTtl("caa", fatal=fatal).decide(delivery("q"), PERMANENT), Dead)
    assert {"invalid-message", "image-in-use"} == art_policy("caa", Settings()).fatal


def test_the_errors_of_others_are_kept_and_their_number_and_length_are_bounded() -> None:
    life = end(FixedTtl("caa", retry_max=30), **{"mb-exceptions": "one of theirs"})
    assert life.headers["mb-exceptions"] == ["KeyError: boom"] * MAX_EXCEPTIONS
    long: dict[str, Any] = {"mb-exceptions": ["x" * 9_000]}
    first = FixedTtl("caa").decide(delivery("q", **long), FAILURE)
    assert isinstance(first, Retry)
    assert [len(each) for each in first.headers["mb-exceptions"]] == [500, len("KeyError: boom")]


def test_attempts_of_a_countdown_are_counted_by_its_recorded_errors() -> None:
    theirs: dict[str, Any] = {"mb-retries": 1, "mb-exceptions": ["one", "two"]}
    assert FixedTtl("caa").attempts(delivery("q", **theirs)) == 2
    short: dict[str, Any] = {"mb-retries": 1}
    assert FixedTtl("caa").attempts(delivery("q", **short)) == 0


def test_the_topology_of_the_document_is_exact() -> None:
    failed, retry = FixedTtl("cover-art-archive").queues()
    assert (failed.name, failed.exchange.name, failed.exchange.type) == ("cover-art-archive.failed",) * 2 + ("fanout",)
    assert not failed.queue_arguments
    assert (retry.name, retry.exchange.name, retry.exchange.type) == ("cover-art-archive.retry",) * 2 + ("fanout",)
    assert retry.queue_arguments == {"x-message-ttl": 14_400_000, "x-dead-letter-exchange": "cover-art-archive"}


# x_death


def deaths(*entries: Any) -> Delivery:
    headers: dict[str, Any] = {"x-death": list(entries)}
    return delivery("q", **headers)


REJECTED = {"queue": "q", "reason": "rejected"}


@pytest.mark.parametrize(
    ("entries", "attempts"),
    [
        ([{**REJECTED, "count": 3}, {"queue": "q", "reason": "expired", "count": 9}, {**REJECTED, "queue": "x"}], 3),
        ([REJECTED] * 4, 4),
        ([{**REJECTED, "count": "7"}, {**REJECTED, "count": -5}, {**REJECTED, "count": True}], 9),
        ([{**REJECTED, "count": None}, "no entry", 7], 1),
    ],
)
def test_attempts_are_the_rejections_of_this_queue_by_their_counts_or_by_their_entries(
    entries: list[Any], attempts: int
) -> None:
    assert XDeath("q").attempts(deaths(*entries)) == attempts


def test_an_error_keeps_its_routing_key_and_tells_all_in_retry_info() -> None:
    properties = {"reply_to": "r", "delivery_mode": 2, "application_headers": {"shop": 7}}
    came = replace(delivery("q", routing_key="orders.new", shop=7, at=datetime(2026, 1, 1)), properties=properties)
    decision = XDeath("q", retry_max=0).decide(came, replace(FAILURE, traceback="a\nb"))
    assert isinstance(decision, Dead)
    assert (decision.queue.name, decision.routing_key) == ("q.error", "orders.new")
    info = json.loads(decision.headers["retry_info"])
    assert (info["error"], info["num_attempts"], info["error_class"]) == ("boom", 1, "KeyError")
    assert (info["error_message"], info["backtrace"]) == ("boom", ["a", "b"])
    assert info["failed_at"] == "1970-01-01T00:16:40+00:00"
    headers = {"shop": 7, "at": "2026-01-01T00:00:00"}
    assert info["properties"] == {"reply_to": "r", "delivery_mode": 2, "headers": headers}


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (replace(FAILURE, exception="Reject"), "reject"),
        (replace(FAILURE, reason="time-limit"), "timeout"),
        (replace(FAILURE, message=""), "KeyError"),
    ],
)
def test_retry_info_names_a_rejection_and_a_timeout_as_sneakers_does(failure: Failure, error: str) -> None:
    long = delivery("q", long="x" * 5_000)
    decision = XDeath("q", retry_max=0).decide(long, failure)
    assert isinstance(decision, Dead)
    info = json.loads(decision.headers["retry_info"])
    assert (info["error"], info["properties"]) == (error, {})


def test_a_message_that_is_requeued_without_retries_left_comes_back_with_its_count() -> None:
    spent = deaths({**REJECTED, "count": 5})
    waiting = XDeath("q", retry_max=5).postpone(spent, 0)
    assert (waiting.queue.queue_arguments["x-dead-letter-exchange"], waiting.headers["perennial-attempts"]) == (
        "q.retry-requeue",
        5,
    )


def test_a_message_of_a_queue_without_a_dead_letter_target_is_published_and_not_rejected() -> None:
    assert isinstance(XDeath("q").decide(delivery("q"), FAILURE), Reject)
    assert isinstance(XDeath("q").decide(delivery("other"), FAILURE), Dead)


def test_retry_info_leaves_out_the_oldest_errors_before_it_fills_a_frame_of_the_broker() -> None:
    policy, headers = XDeath("q", retry_max=0), dict[str, Any]()
    for number in range(9):
        failure = replace(FAILURE, message=f"{number} {'ж' * 500}", traceback="ж" * 2_000)
        decision = policy.decide(delivery("q", **headers), failure)
        assert isinstance(decision, Dead)
        headers = policy.replay_headers(decision.headers, "fresh")
        assert len(headers["retry_info"]) < 50_000
    assert [each["error_message"][0] for each in json.loads(headers["retry_info"])] == ["8", "7"]


def test_the_first_failure_is_when_the_broker_saw_it() -> None:
    entry = {"queue": "q", "reason": "rejected", "count": 5, "time": datetime(2026, 1, 1)}
    decision = XDeath("q").decide(deaths(entry), FAILURE)
    assert isinstance(decision, Dead)
    assert decision.headers["perennial-first-failed-at"] == 1_767_225_600.0


def test_a_message_under_which_workers_died_as_often_as_is_allowed_does_not_run_again() -> None:
    policy = XDeath("q", delivery_limit=3)
    twice, thrice = ({"x-delivery-count": count} for count in (2, 3))
    came = replace(delivery("q"), redelivered=True)
    assert policy.decide_before_run(replace(came, headers=twice)) is None
    decision = policy.decide_before_run(replace(came, headers=thrice))
    assert isinstance(decision, Dead)
    assert decision.headers["perennial-reason"] == "delivery-limit"


def test_exchange_type_and_separator_are_options_as_sneakers_has_them() -> None:
    error, retry, client = XDeath("q", exchange_type="topic", separator="-", queue_type="classic").queues()
    assert [queue.name for queue in (error, retry, client)] == ["q-error", "q-retry", "q"]
    assert {exchange.type for queue in (error, retry, client) for exchange in exchanges_of(queue)} == {"topic"}
    assert {key for queue in (error, retry, client) for _, key in bindings_of(queue)} == {"#"}
    assert retry.queue_arguments == {"x-message-ttl": 5_000, "x-dead-letter-exchange": "q-retry-requeue"}
    assert client.queue_arguments == {"x-dead-letter-exchange": "q-retry"}
    assert [exchange.name for exchange in exchanges_of(client)] == ["q-retry-requeue"]


def test_a_queue_is_bound_to_its_publishers_by_one_or_several_keys() -> None:
    events = Exchange("events", type="topic")
    policy = XDeath("q", exchange=events, routing_key=["order.new", "order.paid"])
    back = ("q.retry-requeue", "#")
    assert sorted(bindings_of(policy.client)) == [("events", "order.new"), ("events", "order.paid"), back]
    once = replace(policy, routing_key="order.new")
    assert sorted(bindings_of(once.client)) == [("events", "order.new"), back]


# Which policy


def test_a_tick_is_never_retried_and_never_dead_lettered() -> None:
    policy = retry_policies(Settings()).policy_for("site.tick")
    assert isinstance(policy, DropAll)
    assert policy.decide(delivery(), FAILURE) == Drop()


def test_every_route_has_the_policy_that_it_names() -> None:
    ours = retry_policies(Settings())
    assert [ours.policy_for(route.queue).name for route in ROUTES] == [route.policy for route in ROUTES]


def test_every_work_queue_has_exactly_the_arguments_of_its_policy() -> None:
    for queue_type in ("quorum", "classic"):
        settings = Settings(queue_type=queue_type)
        ours = retry_policies(settings)
        for queue in task_queues(settings):
            assert (queue.queue_arguments or {}) == ours.policy_for(queue.name).work_arguments()


def test_a_replacement_keeps_body_and_properties_and_drops_what_the_broker_added() -> None:
    came = Delivery(
        body=b"\xff raw",
        headers={"x-death": [{"count": 1}], "x-first-death-queue": "q", "x-delivery-count": 2, "CC": ["q"], "mine": 1},
        # A broker refuses the user id of another user, and the delay queue sets the expiration.
        properties={"correlation_id": "c", "reply_to": "r", "app_id": "a", "user_id": "u", "expiration": "5"},
        content_type="text/plain",
        content_encoding="binary",
        queue="site.index",
    )
    added = {"current-iteration": 1}
    sent = Outgoing.replacing(came, exchange="site.delay.100", routing_key="site.index", headers=added)
    assert sent.body == b"\xff raw"
    assert sent.headers == {"mine": 1, "current-iteration": 1}
    assert sent.properties == {"correlation_id": "c", "reply_to": "r", "app_id": "a"}
    assert (sent.routing_key, sent.content_type, sent.content_encoding) == ("site.index", "text/plain", "binary")
