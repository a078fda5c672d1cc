"""What a broker cluster keeps in service while one of its nodes is down, from its definitions alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from app.operations.doctor.check import CheckResult
from app.topology.model import QueueDefinition

#: A delivery limit that no number of looks reaches.
_MANY_LOOKS = 1_000_000

#: Members of a quorum queue that survive the loss of any one.
_MEMBERS = 3


def dead_set_results(dead_sets: Sequence[QueueDefinition], version: tuple[int, ...]) -> Iterator[CheckResult]:
    """Yield a result for each dead set that a default queue type of the vhost made a quorum queue."""
    for queue in dead_sets:
        if queue.type != "quorum":
            continue
        limit = queue.option("delivery-limit")
        drops = (version >= (4,) and limit is None) or (limit is not None and 0 <= limit < _MANY_LOOKS)
        yield CheckResult(
            "problem" if drops else "warning",
            f"{queue.name} is a quorum queue, by the vhost's default_queue_type: each look at a letter counts as a "
            + (
                f"delivery, and the broker drops it after {20 if limit is None else limit}; set a policy with "
                "delivery-limit = -1 for it"
                if drops
                else "delivery, without a limit"
            ),
        )


def cluster_results(
    queues: Sequence[QueueDefinition], nodes: Mapping[str, bool], groups: Sequence[str]
) -> Iterator[CheckResult]:
    """Yield the results of a cluster; `nodes` has whether each runs.

    `groups` are the prefixes of classic queues of which the broker moves messages from one to another.
    """
    if len(nodes) == 1:
        yield CheckResult("ok", "one node: while it is down, all messages wait in it")
        return
    down = sorted(name for name, runs in nodes.items() if not runs)
    if down:
        yield CheckResult("problem", f"{len(down)} of {len(nodes)} nodes are down: {', '.join(down)}; start them again")
    if len(nodes) == 2:
        yield CheckResult("warning", "two nodes: quorum queues stop with either of them; add a third node")
    replicated = [queue for queue in queues if queue.type == "quorum"]
    few = [queue.name for queue in replicated if len(queue.replicas.members) < min(_MEMBERS, len(nodes))]
    if few:
        remedy = 'rabbitmq-queues grow NODE "all", with each node that lacks members'
        yield CheckResult("warning", f"{len(few)} quorum queues have too few members, such as {few[0]}: {remedy}")
    for group in groups:
        homes = sorted({node for queue in queues if queue.name.startswith(group) for node in queue.replicas.members})
        if len(homes) > 1:
            yield CheckResult(
                "warning",
                f"the classic queues of {group} are on {', '.join(homes)}: what expires in one while the node of the "
                "next is down is dropped by the broker; have them all on one node",
            )
    single = sorted((queue for queue in queues if queue.type != "quorum"), key=lambda queue: queue.replicas.members)
    waits = "; ".join(
        f"{', '.join(queue.name for queue in alike)} for {', '.join(members) or 'an unknown node'}"
        for members, alike in groupby(single, key=lambda queue: queue.replicas.members)
    )
    yield CheckResult(
        "ok",
        f"{len(replicated)} queues have members on several nodes"
        + (f"; classic queues wait: {waits}" if waits else ""),
    )
