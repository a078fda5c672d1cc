"""A policy of the broker that deletes or moves messages of our queues: the check names it and what it does."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import requests

from app.broker.connection import connected
from app.celery import app
from app.doctor.checks import run_checks
from app.topology.check import check_topology
from app.topology.declare import declare_all
from config.settings import Settings
from tests.support.broker import Broker
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
def declared(settings: Settings) -> Settings:
    with connected(settings.broker) as connection:
        assert not declare_all(connection, settings)
    return settings


def set_policy(
    settings: Settings,
    pattern: str,
    *,
    kind: str = "policies",
    name: str = "trim",
    apply_to: str = "queues",
    **keys: Any,
) -> None:
    """Set a policy in the vhost of the test."""
    vhost = quote(urlsplit(settings.broker).path.removeprefix("/"), safe="")
    body = {"pattern": pattern, "apply-to": apply_to, "definition": {k.replace("_", "-"): v for k, v in keys.items()}}
    answer = requests.put(f"{settings.broker_api}{kind}/{vhost}/{name}", json=body, timeout=10)
    answer.raise_for_status()


def findings(settings: Settings, *words: str) -> dict[str, str]:
    """Return problems and remedies by subject, as soon as they have these words: policies take effect later."""

    def found() -> dict[str, str]:
        report = check_topology(settings)
        assert all(finding.severity == "error" for finding in report.errors)
        texts: dict[str, str] = {}
        for finding in report.errors:
            texts[finding.subject] = f"{texts.get(finding.subject, '')}{finding.problem}; {finding.remedy}\n"
        return texts

    def complete() -> dict[str, str]:
        texts = found()
        return texts if all(word in str(texts) for word in words) else {}

    return eventually(complete, f"errors about {words}")


def test_a_policy_that_trims_a_dead_set_removes_letters_and_is_an_error_of_check_and_doctor(declared: Settings) -> None:
    broker = Broker(declared.broker)
    for number in range(5):
        broker.post(str(number).encode(), exchange="site.dead", key="")
    assert broker.depth("site.dead") == 5
    set_policy(declared, r"^site\.dead$", max_length=2)
    text = findings(declared, "max-length")["queue site.dead"]
    eventually(lambda: broker.depth("site.dead") == 2, "the broker removed three letters")
    assert "policy trim sets max-length = 2: deletes the oldest messages when the queue is full" in text
    assert "rabbitmqctl clear_policy trim" in text
    problems = [each.text for each in run_checks(declared, app.conf) if each.status == "problem"]
    assert any("queue site.dead: policy trim sets max-length = 2" in each for each in problems)


def test_an_operator_policy_beside_a_policy_is_named_where_it_sets_the_value(declared: Settings) -> None:
    set_policy(declared, r"^site\.dead$", expires=3_600_000)
    set_policy(declared, r"^site\.", kind="operator-policies", name="cap", message_ttl=60_000)
    texts = findings(declared, "sets expires", "site.index", "instead of 512000 ms")
    assert "policy trim sets expires = 3600000: deletes the queue with its messages" in texts["queue site.dead"]
    assert "operator policy cap sets message-ttl = 60000: moves messages that waited" in texts["queue site.index"]
    assert "clear_operator_policy cap" in texts["queue site.index"]
    # A delay queue of less than a minute keeps its own wait.
    assert "queue site.delay.5000" not in texts
    assert "ends the wait after 60000 ms instead of 512000 ms" in texts["queue site.delay.512000"]


def test_a_policy_of_overflow_comes_before_the_argument_of_a_quorum_queue_and_is_an_error(declared: Settings) -> None:
    set_policy(declared, r"^site\.pack$", max_length=1, overflow="drop-head")
    text = findings(declared, "overflow")["queue site.pack"]
    broker = Broker(declared.broker)
    for number in range(3):
        broker.post(str(number).encode(), exchange="", key="site.pack")
    # With its own `reject-publish` the queue would have refused two of them.
    eventually(lambda: broker.depth("site.dead") == 2, "the broker moved two messages to the dead set")
    assert "overflow = drop-head" in text or "max-length = 1: moves the oldest messages" in text
