"""Three broker nodes, of which one or a majority is killed: what cannot go on waits, and no process ends.

`cluster-node` of `make chaos` kills any one node in mid-crawl.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from amqp.exceptions import MessageNacked

from app.broker.errors import PublishFailed
from app.broker.outgoing import Outgoing
from app.broker.publishing import Publisher
from app.operations.doctor.checks import run_checks
from config.settings import Settings
from tests.servers.site import Site, in_letters, late, page
from tests.support.broker import Broker
from tests.support.corner import environment_of, settings_for
from tests.support.fleet import Fleet, fleet, ready
from tests.support.proxy import LoadBalancer
from tests.support.rabbit_cluster import RabbitCluster, rabbit_cluster
from tests.support.system import System, beat
from tests.support.waiting import eventually
from tests.support.worker import Worker

pytestmark = pytest.mark.acceptance

PAGES = 250
#: Seconds that the site takes for a page.
PAGE_SECONDS = 0.03
#: Pages that a crawl fetches before a node is killed.
BEFORE = 25

#: Seconds within which the next page must be fetched. The aim is 30; a loaded machine gets more.
DEADLINE = 60.0


@dataclass
class Crew:
    """The processes of one installation."""

    system: System
    fleet: Fleet
    processes: dict[str, Worker]

    def ended(self) -> list[str]:
        """Return the names of the processes that ended."""
        return [name for name, each in self.processes.items() if each.process.poll() is not None]


@contextmanager
def explained(crew: Crew, cluster: RabbitCluster) -> Iterator[None]:
    """Add the state of the queues to an assertion that fails in the block."""
    try:
        yield
    except AssertionError as error:
        error.add_note(f"queues: {cluster.queues()}\n{crew.fleet.logs()}")
        raise


@contextmanager
def crew_of(settings: Settings, folder: Path) -> Iterator[Crew]:
    environment = {**environment_of(settings), "RETRY_TIMEOUT_MS": "500", "TIMER_TIMEOUT": "2"}
    with fleet(environment, folder / "logs") as found, beat(environment, folder / "beat.log"):
        processes = {
            "worker": found.worker("site.index", "site.crawl", "site.page", "site.timer", "site.tick"),
            "packer": found.worker("site.pack"),
            "orchestrator": found.orchestrator(),
            "searcher": found.searcher(),
        }
        ready(*processes.values())
        system = System(settings, environment, Broker(settings.broker), processes["worker"], folder / "packs")
        yield Crew(system, found, processes)


def ring() -> Site:
    """Return a site of pages that link to a few further ones."""

    def links(number: int) -> list[str]:
        return [f"/{(number + step) % PAGES}" for step in (1, 7, 31)]

    pages = {f"/{each}": page(f"Page {each}", in_letters(each), links=links(each)) for each in range(PAGES)}
    routes = {path: late(PAGE_SECONDS, answer) for path, answer in pages.items()}
    return Site({**routes, "/": page("Home", "more words", links=["/0"])})


def crawl_and_kill(crew: Crew, cluster: RabbitCluster, node: int, site: Site) -> float:
    """Begin to crawl a site, kill a node, and return when (monotonic seconds)."""
    crew.system.post("index+crawl", url=site.at("/"))
    eventually(lambda: len(site.requests) > BEFORE, "the crawl is under way", seconds=DEADLINE)
    cluster.kill(node)
    return time.monotonic()


@pytest.fixture
def settings(cluster: RabbitCluster, redis_url: str, tmp_path: Path) -> Settings:
    return settings_for(tmp_path, cluster.broker_url, redis_url, cluster.broker_api_url)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RabbitCluster]:
    with rabbit_cluster(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_message_waits_in_delay_queues_until_the_node_of_its_dead_set_is_back(
    cluster: RabbitCluster, settings: Settings, tmp_path: Path
) -> None:
    count = 40  # More than the worker may hold unacknowledged.
    with crew_of(settings, tmp_path / "crew") as crew, ring() as site, explained(crew, cluster):
        cluster.kill(0)
        eventually(lambda: "Queue site.dead refused" in crew.processes["worker"].log, "the dead set is unavailable")

        def is_posted() -> bool:
            with suppress(MessageNacked):  # Its queue has no leader yet.
                crew.system.post("index")
                return True
            return False

        for _ in range(count):
            eventually(is_posted, "a message is confirmed", seconds=DEADLINE)
        line = "Cannot dead-letter a message of site.index, it runs again in 4 s"
        eventually(lambda: crew.processes["worker"].log.count(line) >= count, "all wait elsewhere", seconds=DEADLINE)
        crew.system.post("index", url=site.at("/0"))
        eventually(lambda: site.requests, "a page is fetched meanwhile", seconds=DEADLINE)
        cluster.start(0)
        eventually(lambda: crew.system.broker.depth("site.dead") == count, "all are dead letters", seconds=180)
        assert crew.ended() == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_behind_a_load_balancer_a_crawl_goes_on_when_a_node_is_killed(
    cluster: RabbitCluster, redis_url: str, tmp_path: Path
) -> None:
    cluster.give_name("perennial")
    nodes, apis = (LoadBalancer(urls.split(";")) for urls in (cluster.broker_url, cluster.broker_api_url))
    settings = settings_for(tmp_path, nodes.url, redis_url, apis.url)
    with (
        closing(nodes),
        closing(apis),
        crew_of(settings, tmp_path / "crew") as crew,
        ring() as site,
        explained(crew, cluster),
    ):
        crawl_and_kill(crew, cluster, 1, site)
        before = len(site.requests)
        assert before < PAGES, "the crawl was over before"
        eventually(lambda: len(site.requests) > before + BEFORE, "pages are fetched meanwhile", seconds=DEADLINE)
        texts = {each.text for each in run_checks(settings) if each.status == "problem"}
        assert f"1 of 3 nodes are down: {cluster.node_name(1)}; start them again" in texts
        cluster.start(1)
        assert crew.system.packed(site.domain, seconds=300).pages == PAGES + 1
        assert crew.ended() == []
        assert crew.system.broker.depth("site.dead") == 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_without_a_majority_everything_waits_and_goes_on_when_one_of_two_killed_nodes_is_back(
    cluster: RabbitCluster, settings: Settings, tmp_path: Path
) -> None:
    with crew_of(settings, tmp_path / "crew") as crew, ring() as site, explained(crew, cluster):
        crawl_and_kill(crew, cluster, 0, site)
        cluster.kill(1)
        publisher = Publisher(settings.broker)

        def is_refused() -> bool:
            try:
                publisher.publish([Outgoing(exchange="amq.fanout", routing_key="", body=b"", mandatory=False)])
            except PublishFailed:
                return True
            return False

        eventually(is_refused, "a client gets an error", seconds=DEADLINE)
        publisher.close()
        assert len(site.requests) < PAGES, "the crawl was over before"
        cluster.start(1)
        assert crew.system.packed(site.domain, seconds=300).pages == PAGES + 1
        cluster.start(0)
        assert crew.ended() == []
        assert crew.system.broker.depth("site.dead") == 0
