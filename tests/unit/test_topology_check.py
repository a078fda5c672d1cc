"""Comparison of code and broker: differences, unbound dead-letter targets, loops, and the consumer timeout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.broker.policies.base import Policy
from app.broker.policies.delay_queues import DelayQueues
from app.broker.policies.fixed_ttl import FixedTtl
from app.broker.policies.x_death import XDeath
from app.doctor.consumer_timeout import consumer_timeout, max_unacknowledged_seconds, worker_prefetches
from app.services.procfile import procfile
from app.topology.compare import APPLY, compare, former_delay_queues
from app.topology.declare import all_queues
from app.topology.model import Binding, ExchangeDefinition, QueueDefinition, Topology, declared_topology
from app.topology.queues import events_exchange
from app.topology.routing import lost_keys, routed_queues, ttl_loops
from config.celeryconfig import worker_prefetch_multiplier
from config.settings import Settings

pytestmark = pytest.mark.unit

OURS = declared_topology(all_queues(Settings()), [events_exchange])


def without(topology: Topology, *names: str) -> Topology:
    """Return the topology without some queues or exchanges and their bindings."""
    return Topology(
        exchanges={name: each for name, each in topology.exchanges.items() if name not in names},
        queues={name: each for name, each in topology.queues.items() if name not in names},
        bindings=frozenset(
            each for each in topology.bindings if each.source not in names and each.destination not in names
        ),
    )


def plus(
    topology: Topology,
    *things: ExchangeDefinition | QueueDefinition,
    bindings: Sequence[Binding] = (),
    drop: Sequence[Binding] = (),
) -> Topology:
    """Return the topology with some exchanges, queues and bindings added, replaced or dropped."""
    return Topology(
        exchanges={
            **topology.exchanges,
            **{each.name: each for each in things if isinstance(each, ExchangeDefinition)},
        },
        queues={**topology.queues, **{each.name: each for each in things if isinstance(each, QueueDefinition)}},
        bindings=(topology.bindings | frozenset(bindings)) - frozenset(drop),
    )


def waiting(name: str, target: str, *, key: str | None = None, ttl: int | None = 1_000) -> QueueDefinition:
    arguments: dict[str, Any] = {"x-dead-letter-exchange": target}
    if ttl is not None:
        arguments["x-message-ttl"] = ttl
    return QueueDefinition(name, arguments=arguments if key is None else arguments | {"x-dead-letter-routing-key": key})


def severities(ours: Topology, found: Topology) -> list[tuple[str, str]]:
    return [(finding.severity, finding.subject) for finding in compare(ours, found)]


EMPTY = Topology({}, {}, frozenset())


def test_a_broker_that_matches_the_code_has_no_findings() -> None:
    assert compare(OURS, OURS) == []


@given(names=st.sets(st.sampled_from([*OURS.queues, *OURS.exchanges]), min_size=1))
def test_everything_missing_is_a_finding_whose_remedy_is_apply(names: set[str]) -> None:
    findings = compare(OURS, without(OURS, *names))
    missing = {finding.subject.partition(" ")[2] for finding in findings if finding.problem == "missing"}
    assert names <= missing
    assert {finding.severity for finding in findings} == {"error"}
    assert {finding.remedy for finding in findings} == {APPLY}


@given(binding=st.sampled_from(sorted(OURS.bindings)))
def test_every_missing_binding_is_an_error(binding: Binding) -> None:
    findings = compare(OURS, plus(OURS, drop=[binding]))
    assert ("error", "missing") in {(finding.severity, finding.problem) for finding in findings}
    assert any(f"{binding.source} -> {binding.destination}" in finding.subject for finding in findings)


def test_a_different_argument_is_reported_with_both_values_and_the_migration() -> None:
    queue = OURS.queues["site.index"]
    other = replace(queue, arguments={**queue.arguments, "x-delivery-limit": 7, "x-max-length": 9})
    [finding] = compare(OURS, plus(OURS, other))
    assert finding.expected == "x-delivery-limit = 50, no x-max-length"
    assert finding.found == "x-delivery-limit = 7, x-max-length = 9"
    assert finding.remedy.endswith("perennial topology migrate site.index")


def test_a_queue_without_a_type_is_classic() -> None:
    dead = OURS.queues["site.dead"]
    assert compare(OURS, plus(OURS, replace(dead, arguments={"x-queue-type": "classic"}))) == []


def test_an_exchange_of_another_type_names_the_foreign_bindings() -> None:
    other = replace(OURS.exchanges["perennial.events"], type="direct")
    found = plus(OURS, other, QueueDefinition("theirs"), bindings=[Binding("perennial.events", "theirs", "update")])
    [finding] = compare(OURS, found)
    assert (finding.expected, finding.found) == ("type = topic", "type = direct")
    assert finding.remedy.endswith("theirs")


def test_a_missing_or_unbound_dead_letter_target_is_an_error_only_for_our_queues() -> None:
    unbound = plus(OURS, drop=[Binding("site.dead", "site.dead", "")])
    errors = {finding.subject for finding in compare(OURS, unbound) if "dead-letters to site.dead" in finding.problem}
    assert errors == {f"queue site.{name}" for name in ("index", "crawl", "page", "timer", "pack")}
    assert ("error", "exchange site") in severities(OURS, unbound)  # Its alternate exchange.
    theirs = plus(OURS, waiting("theirs", "nowhere"), waiting("bound", "x"), ExchangeDefinition("x", "direct"))
    assert severities(OURS, theirs) == [("note", "queue theirs"), ("note", "queue bound")]


def test_unbound_dead_letter_keys_are_found_from_the_bindings_of_the_queue() -> None:
    found = plus(
        EMPTY,
        ExchangeDefinition("in", "direct"),
        ExchangeDefinition("out", "direct"),
        waiting("q", "out"),
        QueueDefinition("end"),
        bindings=[Binding("in", "q", "a"), Binding("in", "q", "b"), Binding("out", "end", "b")],
    )
    assert lost_keys(found, found.queues["q"]) == ["a"]
    assert lost_keys(found, waiting("q", "out", key="b")) == []
    assert (
        lost_keys(
            plus(found, ExchangeDefinition("out", "direct", arguments={"alternate-exchange": "in"})),
            waiting("q", "out"),
        )
        == []
    )


@pytest.mark.parametrize(
    ("kind", "bound", "key", "matches"),
    [
        ("direct", "a", "a", True),
        ("direct", "a", "b", False),
        ("fanout", "", "anything", True),
        ("topic", "#", "", True),
        ("topic", "#", "a.b.c", True),
        ("topic", "a.*", "a.b", True),
        ("topic", "a.*", "a.b.c", False),
        ("topic", "a.#", "a", True),
        ("topic", "a.#", "a.b.c", True),
        ("topic", "#.c", "c", True),
        ("topic", "a.#.c", "a.c", True),
        ("topic", "a.#.c", "a.b.d", False),
        ("topic", "a+", "aa", False),
    ],
)
def test_a_message_is_routed_as_its_exchange_type_does(kind: str, bound: str, key: str, matches: bool) -> None:
    topology = plus(EMPTY, ExchangeDefinition("x", kind), QueueDefinition("q"), bindings=[Binding("x", "q", bound)])
    assert routed_queues(topology, "x", key) == ({("q", key)} if matches else set())


def test_two_queues_that_dead_letter_to_each_other_on_expiry_are_a_loop() -> None:
    by_name = plus(EMPTY, waiting("a", "", key="b"), waiting("b", "", key="a"))
    assert [sorted(set(loop)) for loop in ttl_loops(by_name)] == [["a", "b"]]
    through = plus(
        EMPTY,
        *(ExchangeDefinition("x", "fanout"), ExchangeDefinition("y", "topic"), ExchangeDefinition("z", "direct")),
        *(waiting("a", "x"), waiting("b", "z")),
        bindings=[Binding("x", "y", "", to_exchange=True), Binding("y", "b", "#"), Binding("z", "a", "k")],
    )
    assert [sorted(set(loop)) for loop in ttl_loops(through)] == [["a", "b"]]
    assert severities(EMPTY, plus(EMPTY, waiting("self", "", key="self"))) == [("note", "queue self")]


def test_a_policy_of_the_broker_counts_as_an_argument() -> None:
    policy = {"message-ttl": 5, "dead-letter-exchange": "", "dead-letter-routing-key": "q"}
    assert ttl_loops(plus(EMPTY, QueueDefinition("q", broker_policy=policy)))


def test_different_routing_keys_make_no_loop() -> None:
    """Two delay queues behind one direct exchange: messages of the one never reach the other."""
    found = plus(
        EMPTY,
        ExchangeDefinition("x", "direct"),
        *(waiting("slow", "x", key="work"), waiting("fast", "x", key="work"), QueueDefinition("work")),
        bindings=[Binding("x", "slow", "slow"), Binding("x", "fast", "fast"), Binding("x", "work", "work")],
    )
    assert ttl_loops(found) == []


@pytest.mark.parametrize(
    "policy",
    [
        DelayQueues("site", exchange="site"),
        DelayQueues("alone"),
        FixedTtl("art", {"art.index": "index"}),
        XDeath("client"),
        XDeath("client", exchange_type="topic", separator="-", queue_type="classic"),
    ],
    ids=repr,
)
def test_no_policy_makes_a_loop_or_an_unbound_dead_letter_target(policy: Policy) -> None:
    work = [QueueDefinition("art.index")] if isinstance(policy, FixedTtl) else []
    back = [ExchangeDefinition("art", "direct")] if isinstance(policy, FixedTtl) else []
    bindings = [Binding("art", "art.index", "index")] if work else []
    if policy == DelayQueues("site", exchange="site"):
        topology = OURS
    else:
        topology = plus(declared_topology(policy.queues()), *work, *back, bindings=bindings)
    assert ttl_loops(topology) == []
    assert [name for name, queue in topology.queues.items() if lost_keys(topology, queue)] == []


def test_a_client_queue_with_its_own_ttl_makes_a_loop() -> None:
    policy = XDeath("client")
    ours = declared_topology(policy.queues())
    client = ours.queues["client"]
    found = plus(ours, replace(client, broker_policy={"message-ttl": 60_000}))
    [loop] = [finding for finding in compare(ours, found) if "loop" in finding.problem]
    assert loop.severity == "error"
    assert {"client", "client.retry"} <= set(loop.problem.replace(":", " ").split())


def test_former_delay_queues_are_recognised_and_their_bindings_are_no_finding() -> None:
    former = declared_topology(all_queues(Settings(retry_timeout_ms=3_000)))
    both = plus(OURS, *former.exchanges.values(), *former.queues.values(), bindings=sorted(former.bindings))
    assert former_delay_queues(OURS, both) == {f"site.delay.{ms}": ms for ms in (3_000, 6_000, 12_000, 24_000, 48_000)}
    assert compare(OURS, both) == []


def test_a_foreign_binding_is_a_note_but_a_subscriber_of_events_is_not() -> None:
    subscribed = plus(OURS, QueueDefinition("s"), bindings=[Binding("perennial.events", "s", "update")])
    assert compare(OURS, subscribed) == []
    tapped = plus(
        OURS, QueueDefinition("s"), bindings=[Binding("site", "s", "index"), Binding("amq.topic", "site.index", "x")]
    )
    assert severities(OURS, tapped) == [
        ("note", "binding amq.topic -> site.index [x]"),
        ("note", "binding site -> s [index]"),
    ]


def test_the_last_prefetched_message_waits_for_the_others() -> None:
    assert max_unacknowledged_seconds(["site.pack"], 1) == 1_500
    assert max_unacknowledged_seconds(["site.index", "site.tick"], 4) == 4 * (145 + 30)
    # After a group of messages that hangs, the first of them runs alone, and the others are published again.
    assert max_unacknowledged_seconds(["site.page"], 4) == 150 + 2 * 145


def test_every_worker_of_the_procfile_finishes_before_consumer_timeout() -> None:
    seconds = {
        name: max_unacknowledged_seconds(queues, multiplier)
        for name, queues, multiplier in worker_prefetches(procfile(), worker_prefetch_multiplier)
    }
    assert seconds.keys() == {"worker", "packer", "coverart", "eventart", "orchestrator"}
    assert seconds["coverart"] == 3 * 300
    assert max(seconds.values()) < 1_800


def test_consumer_timeout_is_that_of_the_queue_else_of_the_private_broker_else_the_default(tmp_path: Path) -> None:
    private = Settings(data_dir=tmp_path)
    given_ = Settings(broker_url="amqp://broker//")
    queue = QueueDefinition("q", broker_policy={"consumer-timeout": 5_000})
    assert consumer_timeout(queue, given_, (3, 12, 1)) == (5.0, "as q or its policy says")
    folder = tmp_path / "services" / "rabbitmq"
    folder.mkdir(parents=True)
    (folder / "rabbitmq.conf").write_text("consumer_timeout = 60000\n")
    assert consumer_timeout(None, private, (3, 10, 8))[0] == 60
    timeout, source = consumer_timeout(None, given_, (3, 10, 8))
    assert (timeout, source.partition(":")[0]) == (1_800, "assumed")
    assert consumer_timeout(None, given_, (3, 8, 15))[0] == 900
