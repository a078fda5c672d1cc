"""Retry policies: what becomes of a message, from its headers and its failure alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.amqp.delivery import Delivery
from app.retry.carry_out import on_ladder, replacement
from app.retry.choose import policy_for
from app.retry.delay_queues import DelayQueues
from app.retry.drop import DropPolicy
from app.retry.policy import Dead, Drop, Failure, Retry
from config.routes import ROUTES
from config.settings import Settings
from config.topology import POSTPONE_LADDER_MS, few_digits

pytestmark = pytest.mark.unit

FAILURE = Failure(reason="exception", exception="KeyError", message="boom", at=1_000.0, worker="w")


def delivery(queue: str = "site.index", **headers: Any) -> Delivery:
    return Delivery(body=b"{}", headers=headers, properties={}, content_type=None, content_encoding=None, queue=queue)


def run_to_the_end(policy: DelayQueues, outcomes: list[bool], headers: dict[str, Any]) -> tuple[int, list[int], bool]:
    """Return the number of runs, the delays between them, and whether the message died."""
    delays: list[int] = []
    for runs, succeeds in enumerate(outcomes, start=1):
        if succeeds:
            return runs, delays, False
        match policy.decide(delivery(**headers), FAILURE):
            case Retry(delay_ms, added):
                delays.append(delay_ms)
                headers = headers | dict(added)
            case Dead():
                return runs, delays, True
            case other:
                pytest.fail(f"unexpected {other}")
    pytest.fail(f"neither done nor dead after {len(outcomes)} runs")


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(0, 8))
def test_a_message_runs_until_its_first_success_or_its_budget_and_one(outcomes: list[bool], budget: int) -> None:
    outcomes = [*outcomes, True]
    first_success = outcomes.index(True) + 1
    runs, delays, died = run_to_the_end(DelayQueues(timeout_ms=100, retry_max=budget), outcomes, {})
    assert runs == min(first_success, budget + 1)
    assert died == (first_success > budget + 1)
    assert delays == [100 * 2**iteration for iteration in range(len(delays))]


def test_three_retries_wait_once_twice_and_four_times_the_timeout() -> None:
    runs, delays, died = run_to_the_end(DelayQueues(timeout_ms=1_000, retry_max=3), [False] * 9, {})
    assert (runs, delays, died) == (4, [1_000, 2_000, 4_000], True)


def test_the_policy_travels_with_the_message_and_wins_over_the_defaults() -> None:
    policy = DelayQueues(timeout_ms=1_000, retry_max=9)
    headers: dict[str, Any] = {"retry-timeout-ms": "50", "retry-max": 1}
    assert run_to_the_end(policy, [False] * 9, headers) == (2, [50], True)


@given(
    st.dictionaries(
        st.sampled_from(["retry-timeout-ms", "retry-max", "current-iteration"]),
        st.one_of(st.none(), st.text(), st.integers(), st.floats(), st.booleans(), st.lists(st.integers())),
    )
)
def test_no_header_of_a_foreign_producer_makes_the_policy_raise(headers: dict[str, Any]) -> None:
    decision = DelayQueues(timeout_ms=1_000, retry_max=3).decide(delivery(**headers), FAILURE)
    assert isinstance(decision, Dead) or (isinstance(decision, Retry) and 0 < decision.delay_ms < 2**31)


def test_a_permanent_failure_dies_at_once() -> None:
    failure = Failure(reason="invalid-url", exception="InvalidUrl", message="no host", permanent=True, at=5.0)
    decision = DelayQueues(timeout_ms=1_000, retry_max=3).decide(delivery(), failure)
    assert isinstance(decision, Dead)
    assert decision.headers["perennial-reason"] == "invalid-url"
    assert decision.headers["perennial-attempts"] == 1


def test_a_replayed_message_that_keeps_its_budget_dies_at_its_next_failure() -> None:
    headers: dict[str, Any] = {"perennial-replay": "keep", "current-iteration": 0, "retry-max": 5}
    assert isinstance(DelayQueues(timeout_ms=1_000, retry_max=5).decide(delivery(**headers), FAILURE), Dead)


def test_a_death_tells_first_and_last_failure_attempts_and_worker() -> None:
    headers: dict[str, Any] = {"current-iteration": 3, "perennial-first-failed-at": 7.0}
    decision = DelayQueues(timeout_ms=1, retry_max=3).decide(delivery(**headers), FAILURE)
    assert isinstance(decision, Dead)
    told = {name.removeprefix("perennial-"): value for name, value in decision.headers.items()}
    assert told["first-failed-at"] == 7.0
    assert told["failed-at"] == 1_000.0
    assert told["attempts"] == 4
    assert (told["exception"], told["message"], told["worker"], told["queue"]) == (
        "KeyError",
        "boom",
        "w",
        "site.index",
    )


def test_a_tick_is_never_retried_and_never_buried() -> None:
    policy = policy_for("site.tick", "site.tick", Settings())
    assert isinstance(policy, DropPolicy)
    assert policy.decide(delivery(), FAILURE) == Drop()


def test_every_route_has_a_policy() -> None:
    for route in ROUTES:
        assert isinstance(policy_for(route.task, route.queue, Settings()), DelayQueues | DropPolicy)


@given(st.integers(1, 2**31 - 1))
def test_rounding_never_shortens_a_delay_and_adds_less_than_a_tenth(delay_ms: int) -> None:
    rounded = few_digits(delay_ms)
    assert delay_ms <= rounded < delay_ms * 1.1 + 1
    assert len(str(rounded).rstrip("0")) <= 2


@given(st.floats(0, 10_000))
def test_a_postponement_never_waits_longer_than_asked_but_for_the_shortest_rung(seconds: float) -> None:
    rung = on_ladder(seconds)
    assert rung in POSTPONE_LADDER_MS
    assert rung <= seconds * 1_000 or rung == POSTPONE_LADDER_MS[0]


def test_a_replacement_keeps_body_and_properties_and_drops_what_the_broker_added() -> None:
    came = Delivery(
        body=b"\xff raw",
        headers={"x-death": [{"count": 1}], "x-first-death-queue": "q", "x-delivery-count": 2, "mine": 1},
        properties={"correlation_id": "c", "reply_to": "r", "expiration": "5", "delivery_mode": 1},
        content_type="text/plain",
        content_encoding="binary",
        queue="site.index",
    )
    sent = replacement(came, exchange="site.delay.100", headers={"current-iteration": 1})
    assert sent.body == b"\xff raw"
    assert sent.headers == {"mine": 1, "current-iteration": 1}
    assert sent.properties == {"correlation_id": "c", "reply_to": "r"}
    assert (sent.routing_key, sent.content_type, sent.content_encoding) == ("site.index", "text/plain", "binary")
