"""What the doctor reports of a cluster and of its dead sets, from their definitions."""

from __future__ import annotations

from typing import Any

import pytest

from app.doctor.cluster import cluster_results, dead_set_results
from app.topology.compare import compare
from app.topology.model import QueueDefinition, Replicas, Topology

pytestmark = pytest.mark.unit

THREE = {"a": True, "b": True, "c": True}


def queue(name: str, *members: str, **arguments: Any) -> QueueDefinition:
    keys = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return QueueDefinition(name, True, keys, replicas=Replicas(members, members))


WORK = queue("work", "a", "b", "c", queue_type="quorum")


def statuses(queues: list[QueueDefinition], nodes: dict[str, bool], *groups: str) -> list[str]:
    return [result.status for result in cluster_results(queues, nodes, groups)]


def test_one_node_is_no_cluster_and_two_nodes_survive_none() -> None:
    assert statuses([WORK], {"a": True}) == ["ok"]
    assert statuses([queue("work", "a", "b", queue_type="quorum")], {"a": True, "b": True}) == ["warning", "ok"]


def test_a_node_that_is_down_is_a_problem_and_too_few_members_are_a_warning() -> None:
    assert statuses([WORK], THREE) == ["ok"]
    assert statuses([WORK], THREE | {"b": False}) == ["problem", "ok"]
    assert statuses([WORK, queue("other", "a", queue_type="quorum")], THREE) == ["warning", "ok"]


def test_classic_queues_of_one_group_on_two_nodes_are_a_warning() -> None:
    together, apart = (
        [queue("art.retry", "a"), queue("art.index", "a")],
        [queue("art.retry", "a"), queue("art.index", "b")],
    )
    assert statuses(together, THREE, "art.") == ["ok"]
    assert statuses(apart, THREE, "art.") == ["warning", "ok"]
    texts = [result.text for result in cluster_results(apart, THREE, [])]
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
    plain, quorum = queue("q"), queue("q", queue_type="quorum")
    for default, problems in (("quorum", 0), ("classic", 1)):
        found = Topology({}, {"q": quorum}, frozenset(), default)
        assert len(compare(Topology({}, {"q": plain}, frozenset()), found)) == problems
