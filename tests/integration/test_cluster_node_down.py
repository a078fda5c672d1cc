"""A cluster whose first node is down, which has every classic queue: what is refused, reported and still served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from pydantic import SecretStr

from app.broker.connection import connected
from app.broker.declaring import declare_queues, node_down
from app.broker.errors import QueueUnavailable, Unroutable
from app.broker.outgoing import Outgoing
from app.broker.publishing import Publisher
from app.messages.dead_sets import dead_sets
from app.operations.doctor.checks import run_checks
from app.operations.queues import read_queues
from app.topology.check import check_topology
from app.topology.declare import declare_all
from app.topology.queues import searcher_queue
from app.topology.retry_policies import retry_policies
from config.routes import ART_JOBS
from config.settings import Settings
from tests.support.broker import Broker
from tests.support.corner import settings_for
from tests.support.rabbit_cluster import RabbitCluster, rabbit_cluster

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]

#: Queues that wait for their node by design: their arguments are fixed by a document, or they are read as a whole.
CLASSIC = {
    "site.dead",
    "orchestrator.error",
    *(
        f"{archive}-art-archive.{name}"
        for archive in ("cover", "event")
        for name in ("index", "move", "delete", "retry", "failed")
    ),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitCluster]:
    """Yield a cluster on which everything was declared by a connection to its first node, which was then killed."""
    with rabbit_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        folder = tmp_path_factory.mktemp("data")
        settings = with_art(settings_for(folder, cluster.urls[0], "redis://127.0.0.1:1/0", cluster.broker_api_url))
        with connected(settings.broker) as connection:
            assert not declare_all(connection, settings)
            declare_queues(connection, [searcher_queue("of-the-node")])
        Broker(settings.broker).post(b"a letter", exchange="site.dead", key="", delivery_mode=2)
        cluster.kill(0)
        yield cluster


@pytest.fixture
def settings(cluster: RabbitCluster, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("data")
    return with_art(settings_for(folder, cluster.broker_url, "redis://127.0.0.1:1/0", cluster.broker_api_url))


def with_art(settings: Settings) -> Settings:
    return settings.model_copy(update={"musicbrainz_url": SecretStr("postgresql://reader@127.0.0.1/musicbrainz")})


def test_only_classic_queues_of_the_node_are_refused_and_the_others_are_declared(settings: Settings) -> None:
    with connected(settings.broker) as connection:
        refusals = declare_all(connection, settings)
        assert {refusal.queue.name for refusal in refusals} == CLASSIC
        assert all(node_down(refusal.error) for refusal in refusals)
        assert declare_queues(connection, [searcher_queue("of-the-node")]) == []


def test_a_queue_with_a_missing_member_takes_messages_and_a_waiting_one_is_an_error(settings: Settings) -> None:
    with closing(Publisher(settings.broker)) as publisher:
        publisher.publish([Outgoing(exchange="site", routing_key="index", body=b"{}")])
        with pytest.raises(Unroutable):
            publisher.publish([Outgoing(exchange="cover-art-archive", routing_key="index", body=b"an id")])
        dead = retry_policies(settings).dead_sets()["site.dead"].dead
        with pytest.raises(QueueUnavailable, match=r"site\.dead: its node .* is down"):
            publisher.declare([dead])


def test_a_dead_set_on_the_node_is_unavailable_and_not_empty(settings: Settings) -> None:
    with pytest.raises(QueueUnavailable, match="its messages return with it"):
        dead_sets(settings).only("site.dead").letters()


def test_check_and_doctor_name_the_waiting_queues_and_the_missing_members(
    settings: Settings, cluster: RabbitCluster
) -> None:
    report = check_topology(settings)
    errors = {finding.subject: finding.problem for finding in report.errors}
    assert errors.keys() == {f"queue {name}" for name in CLASSIC}
    assert all(problem.startswith(f"waits for {cluster.node_name(0)}") for problem in errors.values())
    notes = {finding.subject: finding.problem for finding in report.findings}
    assert notes["queue site.index"].startswith(f"works without its member on {cluster.node_name(0)}")
    results = {each.text: each.status for each in run_checks(settings) if each.check == "cluster"}
    assert results[f"1 of 3 nodes are down: {cluster.node_name(0)}; start them again"] == "problem"
    assert any("classic queues wait: " in text and "site.dead" in text for text in results)


def test_no_remedy_is_to_delete_or_to_declare_a_queue_of_the_node(settings: Settings) -> None:
    texts = [each.text for each in run_checks(settings) if each.check == "work queues" and each.status == "problem"]
    names = ", ".join(f"{archive}-art-archive.{job}" for archive in ("cover", "event") for job in ART_JOBS)
    assert texts == [f"{names}: their node is down; start it, and delete no queue"]
    without_api = settings.model_copy(update={"broker_api_url": SecretStr("")})
    missing = [queue.name for queue in read_queues(without_api).queues if queue.is_missing]
    assert CLASSIC.isdisjoint(missing)


def test_all_comes_back_with_the_node(settings: Settings, cluster: RabbitCluster) -> None:
    cluster.start(0)
    assert [letter.delivery.body for letter in dead_sets(settings).only("site.dead").letters()] == [b"a letter"]
    assert check_topology(settings).errors == []
