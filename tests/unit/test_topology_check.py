"""Comparison of code and broker: differences, lost letters, loops, consumer timeouts, policies and clusters."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.broker.errors import ManagementFailed
from app.broker.policies.base import Policy
from app.broker.policies.delay_queues import DelayQueues
from app.broker.policies.fixed_ttl import FixedTtl
from app.broker.policies.x_death import XDeath
from app.coverart.project import COVER_ART
from app.operations.doctor.broker_checks import (
    cluster_results,
    consumer_timeout,
    dead_set_results,
    max_unacknowledged_seconds,
    worker_prefetches,
)
from app.processes.procfile import procfile
from app.topology.compare import APPLY, compare, former_delay_queues, harmful_settings
from app.topology.declare import all_queues
from app.topology.management_api import ManagementApi
from app.topology.model import Binding, ExchangeDefinition, QueueDefinition, Replicas, Topology, declared_topology
from app.topology.queues import art_queues, events_exchange, searcher_queue
from app.topology.retry_policies import art_policy
from app.topology.routing import lost_keys, routed_queues, ttl_loops
from app.web.ops.filters import utc
from config.routes import ALIASES, ORCHESTRATOR, REQUESTS
from config.settings import Settings
from tests.support.documents import blocks, read

pytestmark = pytest.mark.unit

OURS = declared_topology(all_queues(Settings()), [events_exchange])

#: The flowcharts of the reference. `perennial topology check` finds nothing else on a broker, by its own tests.
SITE_PICTURE, SEARCH_PICTURE, ART_PICTURE = (
    each.text for each in blocks(read("docs/reference/topology.md"), "mermaid")
)


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


def test_what_the_code_never_sets_is_a_difference() -> None:
    dead = replace(OURS.queues["site.dead"], flags=frozenset({"auto_delete"}))
    found = compare(OURS, plus(OURS, dead, replace(OURS.exchanges["site"], flags=frozenset({"internal"}))))
    assert [(each.subject, each.expected, each.found) for each in found] == [
        ("exchange site", "no internal", "internal = True"),
        ("queue site.dead", "no auto_delete", "auto_delete = True"),
    ]


def test_a_migration_that_has_not_ended_is_an_error_of_our_queues_only() -> None:
    [finding] = compare(OURS, plus(OURS, QueueDefinition("site.index.aside"), QueueDefinition("theirs.aside")))
    assert (finding.severity, finding.subject) == ("error", "queue site.index")
    assert finding.remedy.endswith("perennial topology migrate site.index")


def test_without_statistics_the_management_api_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows neither unacknowledged messages, which a migration would lose, nor the policies of a queue."""
    monkeypatch.setattr(ManagementApi, "_get", lambda *_: {"disable_stats": True, "cluster_name": "rabbit@one"})
    with pytest.raises(ManagementFailed, match=r"remove management\.disable_stats"):
        ManagementApi("http://broker", "/").cluster_name()


def test_an_exchange_of_another_type_names_the_foreign_bindings() -> None:
    other = replace(OURS.exchanges["perennial.events"], type="direct")
    found = plus(OURS, other, QueueDefinition("theirs"), bindings=[Binding("perennial.events", "theirs", "update")])
    [finding] = compare(OURS, found)
    assert (finding.expected, finding.found) == ("type = topic", "type = direct")
    assert finding.remedy.endswith("theirs")


def test_a_missing_or_unbound_dead_letter_target_is_an_error_of_our_queues_only() -> None:
    unbound = plus(OURS, drop=[Binding("site.dead", "site.dead", "")])
    errors = {finding.subject for finding in compare(OURS, unbound) if "dead-letters to site.dead" in finding.problem}
    assert errors == {f"queue site.{name}" for name in ("index", "crawl", "page", "timer", "pack")}
    assert ("error", "exchange site") in severities(OURS, unbound)  # Its alternate exchange.
    theirs = plus(OURS, waiting("theirs", "nowhere"), waiting("bound", "x"), ExchangeDefinition("x", "direct"))
    assert compare(OURS, theirs) == []


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


def test_thousands_of_delay_queues_of_others_are_checked_within_seconds() -> None:
    names = [f"theirs.{number}" for number in range(3_000)]
    found = plus(
        EMPTY,
        ExchangeDefinition("theirs", "direct"),
        *(waiting(f"wait.{name}", "theirs") for name in names),
        *(ExchangeDefinition(f"wait.{name}", "fanout") for name in names),
        # One was declared after the queues were read.
        *map(QueueDefinition, names[1:]),
        bindings=[Binding("theirs", name, name) for name in names]
        + [Binding(f"wait.{name}", f"wait.{name}", "") for name in names],
    )
    began = time.process_time()
    assert compare(OURS, plus(found, *OURS.queues.values(), *OURS.exchanges.values(), bindings=[*OURS.bindings])) == []
    assert time.process_time() - began < 10


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


def test_a_policy_that_deletes_letters_of_a_shard_or_the_index_of_a_dead_set_is_an_error() -> None:
    names = ("site.dead.shard.7", "site.dead.index", "others.dead.shard.1")
    queues = [QueueDefinition(name, broker_policy={"max-length": 10}) for name in names]
    found = [finding.subject for finding in compare(OURS, plus(OURS, *queues)) if finding.severity == "error"]
    assert found == ["queue site.dead.index", "queue site.dead.shard.7"]


def test_former_delay_queues_are_recognised_and_their_bindings_are_no_finding() -> None:
    former = declared_topology(all_queues(Settings(retry_timeout_ms=3_000)))
    both = plus(OURS, *former.exchanges.values(), *former.queues.values(), bindings=sorted(former.bindings))
    assert former_delay_queues(OURS, both) == {f"site.delay.{ms}": ms for ms in (3_000, 6_000, 12_000, 24_000, 48_000)}
    assert compare(OURS, both) == []


def test_the_bindings_of_others_are_no_finding() -> None:
    theirs = ("perennial.events", "s", "update"), ("site", "s", "index"), ("amq.topic", "site.index", "x")
    assert compare(OURS, plus(OURS, QueueDefinition("s"), bindings=[Binding(*each) for each in theirs])) == []


def test_the_last_prefetched_message_waits_for_the_others() -> None:
    assert max_unacknowledged_seconds(["site.pack"], 1) == 1_500
    assert max_unacknowledged_seconds(["site.index", "site.tick"], 4) == 4 * (145 + 30)
    # After a group of messages that hangs, the first of them runs alone, and the others are published again.
    assert max_unacknowledged_seconds(["site.page"], 4) == 150 + 2 * 145


def test_every_worker_of_the_procfile_finishes_before_consumer_timeout() -> None:
    seconds = {
        name: max_unacknowledged_seconds(queues, multiplier)
        for name, queues, multiplier in worker_prefetches(procfile())
    }
    assert seconds.keys() == {"worker", "packer", "coverart", "eventart", "orchestrator"}
    assert seconds["coverart"] == 3 * 300
    assert max(seconds.values()) < 1_800


def test_consumer_timeout_is_that_of_the_queue_else_the_default() -> None:
    queue = QueueDefinition("q", broker_policy={"consumer-timeout": 5_000})
    assert consumer_timeout(queue) == (5.0, "as q or its policy says")
    timeout, source = consumer_timeout(None)
    assert (timeout, source.partition(":")[0]) == (1_800, "assumed")


QUORUM = {"x-queue-type": "quorum", "x-overflow": "reject-publish", "x-delivery-limit": 50}
DEAD = {"x-dead-letter-exchange": "site.dead"}


def consequences(arguments: dict[str, Any], **policy: Any) -> list[str]:
    definition = {key.replace("_", "-"): value for key, value in policy.items()}
    queue = QueueDefinition("q", True, arguments, definition, dict.fromkeys(definition, "policy trim"))
    return [consequence for _, consequence, _ in harmful_settings(queue)]


@pytest.mark.parametrize(
    ("arguments", "policy", "expected"),
    [
        ({}, {"expires": 5}, "deletes the queue with its messages"),
        ({}, {"message_ttl": 5}, "deletes messages that waited 5 ms"),
        (DEAD, {"message_ttl": 5}, "moves messages that waited 5 ms to site.dead"),
        ({"x-message-ttl": 9}, {"message_ttl": 5}, "ends the wait after 5 ms instead of 9 ms"),
        ({}, {"max_length": 5}, "deletes the oldest messages"),
        ({}, {"max_length_bytes": 5, "overflow": "reject-publish"}, "refuses messages when the queue is full"),
        (QUORUM, {"max_length": 5}, "refuses messages when the queue is full"),
        (QUORUM | DEAD, {"max_length": 5, "overflow": "drop-head"}, "moves the oldest messages when the queue is full"),
        (QUORUM, {"overflow": "drop-head"}, "at-most-once"),
        (QUORUM | DEAD, {"delivery_limit": 5}, "moves messages after 5 deliveries instead of 50 to site.dead"),
        (QUORUM, {"delivery_limit": 5}, "deletes messages after 5 deliveries instead of 50"),
        ({"x-dead-letter-exchange": ""}, {"max_length": 5}, "to the default exchange"),
        (DEAD, {"dead_letter_routing_key": "x"}, "replaces the key of messages on their way to site.dead"),
    ],
)
def test_a_setting_that_deletes_or_moves_messages_is_named_with_its_consequence(
    arguments: dict[str, Any], policy: dict[str, Any], expected: str
) -> None:
    assert expected in consequences(arguments, **policy)[0]


@pytest.mark.parametrize(
    ("arguments", "policy"),
    [
        ({"x-message-ttl": 5}, {"message_ttl": 5}),
        ({"x-max-length": 1}, {"max_length": 2}),
        (QUORUM, {"delivery_limit": 50}),
        (QUORUM, {"overflow": "reject-publish"}),
        ({}, {"delivery_limit": 1}),
        (QUORUM, {"delivery_limit": -1}),
        ({"x-queue-type": "quorum"} | DEAD, {"delivery_limit": 50}),
        ({}, {"overflow": "drop-head"}),
        ({}, {"ha_mode": "all", "queue_mode": "lazy", "dead_letter_exchange": "x", "dead_letter_routing_key": "x"}),
    ],
)
def test_a_setting_that_is_no_lower_than_the_argument_or_without_effect_is_harmless(
    arguments: dict[str, Any], policy: dict[str, Any]
) -> None:
    assert consequences(arguments, **policy) == []


@pytest.mark.parametrize(("down", "severities"), [(0, []), (1, ["note"]), (2, ["error"]), (4, ["error"])])
def test_a_queue_waits_for_its_nodes_from_half_of_its_members_on(down: int, severities: list[str]) -> None:
    members = ("a", "b", "c", "d")
    found = replace(OURS.queues["site.index"], replicas=Replicas(members, members[down:]))
    assert [each.severity for each in compare(OURS, plus(OURS, found))] == severities


THREE = {"a": True, "b": True, "c": True}


def queue(name: str, *members: str, **arguments: Any) -> QueueDefinition:
    keys = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return QueueDefinition(name, True, keys, replicas=Replicas(members, members))


WORK = queue("work", "a", "b", "c", queue_type="quorum")
TOGETHER = [queue("art.retry", "a"), queue("art.index", "a")]
APART = [queue("art.retry", "a"), queue("art.index", "b")]


@pytest.mark.parametrize(
    ("queues", "nodes", "groups", "expected"),
    [
        ([WORK], {"a": True}, [], ["ok"]),
        # Two nodes survive the loss of none.
        ([queue("work", "a", "b", queue_type="quorum")], {"a": True, "b": True}, [], ["warning", "ok"]),
        ([WORK], THREE, [], ["ok"]),
        ([WORK], THREE | {"b": False}, [], ["problem", "ok"]),
        # Too few members.
        ([WORK, queue("other", "a", queue_type="quorum")], THREE, [], ["warning", "ok"]),
        # Classic queues of one group on two nodes.
        (TOGETHER, THREE, ["art."], ["ok"]),
        (APART, THREE, ["art."], ["warning", "ok"]),
    ],
)
def test_a_cluster_in_which_a_queue_may_wait_for_a_node_is_a_warning_and_a_node_that_is_down_a_problem(
    queues: list[QueueDefinition], nodes: dict[str, bool], groups: list[str], expected: list[str]
) -> None:
    assert [result.status for result in cluster_results(queues, nodes, groups)] == expected


def test_classic_queues_are_named_with_the_node_that_they_wait_for() -> None:
    texts = [result.text for result in cluster_results(APART, THREE, [])]
    assert texts == ["0 queues have members on several nodes; classic queues wait: art.retry for a; art.index for b"]


@pytest.mark.parametrize(
    ("limit", "version", "expected"),
    [(None, (3, 13), "warning"), (None, (4, 0, 5), "problem"), (-1, (4, 0, 5), "warning"), (20, (3, 13), "problem")],
)
def test_a_dead_set_that_counts_looks_up_to_a_limit_is_a_problem(
    limit: int | None, version: tuple[int, ...], expected: str
) -> None:
    arguments = {"queue_type": "quorum"} | ({} if limit is None else {"delivery_limit": limit})
    assert [result.status for result in dead_set_results([queue("site.dead", **arguments)], version)] == [expected]
    assert list(dead_set_results([queue("site.dead")], version)) == []


def test_a_queue_declared_without_a_type_may_have_the_default_type_of_its_vhost() -> None:
    plain = Topology({}, {"q": queue("q")}, frozenset())
    for found, default, problems in (("quorum", "quorum", 0), ("quorum", "classic", 1), ("classic", "classic", 0)):
        on_broker = Topology({}, {"q": queue("q", queue_type=found)}, frozenset(), default)
        assert len(compare(plain, on_broker)) == problems


@pytest.mark.parametrize(
    ("given", "oldest"), [(1_790_000_000, 1_790_000_000.0), (1_790_000_000_000, None), (2**63, None), (-1, None)]
)
def test_the_time_of_a_message_that_its_producer_gave_in_milliseconds_is_unknown_and_breaks_no_page(
    monkeypatch: pytest.MonkeyPatch, given: int, oldest: float | None
) -> None:
    monkeypatch.setattr(ManagementApi, "_get", lambda *_: [{"name": "site.index", "head_message_timestamp": given}])
    found = ManagementApi("http://broker", "/").statistics()[0].oldest
    assert found == oldest
    assert found is None or utc(found) == "2026-09-21 14:13:20 UTC"


def test_the_flowchart_of_the_site_is_what_the_code_declares() -> None:
    text, found = SITE_PICTURE, subset(OURS, "site.")
    delays = {name for name in found.queues if ".delay." in name}
    waits = [int(found.queues[name].arguments["x-message-ttl"]) / 1_000 for name in delays]
    assert f"after {min(waits):g} to {max(waits):g} s, in {len(delays)} queues" in text
    [(alternate, dead)] = {(name, each.alternate) for name, each in found.exchanges.items() if each.alternate}
    assert re.findall(r'{{"([\w.]+)<br>\w+"}} -\.->\|"unknown key"\| \w+{{"([\w.]+)<br>', text) == [(alternate, dead)]
    # One stands for all of them.
    [kept, *others] = sorted(delays)
    bindings = {each for each in found.bindings if each.key != each.destination and each.key not in ALIASES}
    bindings = {each for each in bindings if each.destination not in delays}
    one = "site.delay.ms"
    exchanges = {name: each for name, each in found.exchanges.items() if name not in others}
    exchanges[one] = replace(exchanges.pop(kept), name=one)
    queues = {name: each for name, each in found.queues.items() if name not in others}
    queues[one] = replace(queues.pop(kept), name=one)
    shown = Topology(exchanges, queues, frozenset({*bindings, Binding(one, one, "")}))
    assert {found.queues[name].dead_letter_exchange for name in delays} == {queues[one].dead_letter_exchange}
    others_drawn = {"perennial.events": "topic", "perennial.outcomes": "direct"}
    require_drawn(text, shown, {name for name in queues if name not in (one, dead)}, others_drawn)


def test_the_flowchart_of_cover_art_is_what_the_code_declares() -> None:
    work, policy = art_queues(COVER_ART.prefix, Settings()), art_policy(COVER_ART.prefix, Settings())
    declared = declared_topology([*policy.queues(), *work])
    require_drawn(ART_PICTURE, declared, {each.name for each in work})
    assert f"after {Settings().art_retry_ms / 3_600_000:g} h" in ART_PICTURE


def test_the_flowchart_of_searching_is_what_the_code_declares() -> None:
    searcher = searcher_queue("ID")
    declared = declared_topology([*all_queues(Settings()), searcher])
    found = subset(declared, "orchestrator", searcher.name)
    require_drawn(SEARCH_PICTURE, found, {ORCHESTRATOR, REQUESTS, searcher.name})
    [wait] = [each.arguments["x-message-ttl"] for name, each in found.queues.items() if name == "orchestrator.retry"]
    assert f"after {wait / 1_000:g} s" in SEARCH_PICTURE


def subset(found: Topology, *prefixes: str) -> Topology:
    """Return the queues with these prefixes, their bindings, and their exchanges for both directions."""
    queues = {name: queue for name, queue in found.queues.items() if name.startswith(prefixes)}
    bindings = frozenset(each for each in found.bindings if each.destination in queues)
    names = {each.source for each in bindings} | {queue.dead_letter_exchange for queue in queues.values()}
    return Topology({name: each for name, each in found.exchanges.items() if name in names}, queues, bindings)


def require_drawn(text: str, found: Topology, work: set[str], others: Mapping[str, str] = {}) -> None:
    """Compare a flowchart with a topology; it shows the binding keys of the `work` queues only.

    `others` are types of exchanges that are drawn without a queue.
    """
    exchange, queue = r'\w+\{\{"([\w.-]+)<br>(\w+)"\}\}', r'\w+\[\["([\w.-]+)"\]\]'
    keyed = re.findall(rf'{exchange} -->\|"([^"]+)"\| {queue}', text)
    plain = re.findall(rf"{exchange} --> {queue}", text)
    drawn = {(name, key, to) for name, _, keys, to in keyed for key in keys.split(", ")}
    drawn |= {(name, None, to) for name, _, to in plain}
    # The other exchanges are fanouts, or bound by `#`: their keys have no effect.
    assert drawn == {
        (each.source, each.key if each.destination in work else None, each.destination) for each in found.bindings
    }
    assert {(name, kind) for name, kind in re.findall(exchange, text)} == {
        *((name, each.type) for name, each in found.exchanges.items()),
        *others.items(),
    }
    dashed = re.findall(rf'{queue} -\.->\|"[^"]+"\| {exchange}', text)
    assert {(name, to) for name, to, _ in dashed} == {
        (name, each.dead_letter_exchange) for name, each in found.queues.items() if each.dead_letter_exchange
    }
    assert set(re.findall(queue, text)) == set(found.queues)
