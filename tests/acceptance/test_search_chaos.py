"""Machines die and come, packs are replaced, the broker is killed: queries go on being answered, and rightly."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

import pytest

from app.cluster.client.cluster import ClusterSearchClient
from app.cluster.protocol import Routes
from app.errors import NotPlaced, PackNotFound, SearchUnavailable
from app.search.contract import SearchRequest
from config.settings import Settings
from tests.support.corner import environment_of
from tests.support.fleet import Fleet, Packs, fleet, pages_of, ready
from tests.support.killable import Killable
from tests.support.load import load
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

DOMAINS = tuple(f"{name}.example" for name in ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"))
#: Seconds between heartbeats; a searcher is gone after three.
HEARTBEAT = 0.5
#: Queries of a whole test that may stay without an answer: each one in flight when a machine dies has others to ask.
FEW = 8


def hasty(environment: Mapping[str, str], **more: str) -> dict[str, str]:
    return {**environment, "HEARTBEAT": str(HEARTBEAT), "REPLICAS": "2", **more}


def placed(
    finder: ClusterSearchClient, versions: Mapping[str, int], *, copies: int, searchers: int, after: str = ""
) -> Routes | None:
    """Return the routes once `copies` searchers serve each domain's version and no order is pending.

    They must not be those of an orchestrator `after` which another one came.
    """
    try:
        routes = finder.routes()
    except SearchUnavailable:
        return None
    found = {each.domain: (each.generation, each.newest, len(each.searchers)) for each in routes.routes}
    wanted = {domain: (version, copies, copies) for domain, version in versions.items()}
    there = (
        routes.settled
        and routes.orchestrator != after
        and len(routes.searchers) == searchers
        and not any(each.loading for each in routes.searchers)
    )
    return routes if there and found == wanted else None


def await_placed(
    finder: ClusterSearchClient,
    crew: Fleet,
    versions: Mapping[str, int],
    *,
    copies: int,
    searchers: int,
    after: str = "",
) -> Routes:
    def found() -> Routes | None:
        return placed(finder, versions, copies=copies, searchers=searchers, after=after)

    with suppress(AssertionError):
        routes = eventually(found, "all is placed", seconds=30)
        assert routes is not None
        return routes
    raise AssertionError(f"not placed: {finder.routes()}\n{crew.logs()}")


def test_queries_are_answered_while_searchers_and_orchestrator_come_and_go(
    settings: Settings, environment: dict[str, str], tmp_path: Path
) -> None:
    packs, versions = Packs(settings, tmp_path / "built"), dict.fromkeys(DOMAINS, 1)
    for domain in DOMAINS:
        packs.publish(domain, 1)
    with fleet(hasty(environment), tmp_path / "logs") as crew, closing(ClusterSearchClient.of(settings)) as finder:
        first, *searchers = crew.orchestrator(), *(crew.searcher() for _ in range(3))
        ready(first, *searchers)
        before = await_placed(finder, crew, versions, copies=2, searchers=3)
        spread = [len(node.domains) for node in before.searchers]
        assert sum(spread) == 2 * len(DOMAINS)
        assert max(spread) - min(spread) <= 1

        with load(finder, versions) as requests:
            requests.phase = "calm"
            requests.goes_on()
            assert not requests.failed, requests.failed

            requests.phase = "a searcher is killed"
            searchers[0].kill()
            requests.goes_on()
            await_placed(finder, crew, versions, copies=2, searchers=2)

            requests.phase = "the orchestrator is killed"
            first.kill()
            requests.goes_on()
            second = crew.orchestrator()
            ready(second)
            await_placed(finder, crew, versions, copies=2, searchers=2, after=before.orchestrator)

            requests.phase = "new versions"
            for domain in DOMAINS[:3]:
                versions[domain] = requests.versions.newest[domain] = 2
                packs.publish(domain, 2)
                packs.announce(domain)
            await_placed(finder, crew, versions, copies=2, searchers=2)
            requests.versions.oldest.update(versions)
            requests.goes_on()
            assert requests.by_version[2]

            requests.phase = "a searcher leaves"
            searchers[1].leave()
            requests.goes_on()
            alone = eventually(
                lambda: placed(finder, versions, copies=1, searchers=1), "one searcher has all", seconds=30
            )
            assert alone is not None
            assert {route.missing for route in alone.routes} == {1}

            requests.phase = "a searcher comes"
            ready(crew.searcher())
            await_placed(finder, crew, versions, copies=2, searchers=2)
            requests.goes_on()
    assert requests.failed.total() <= FEW, requests.failed


@pytest.mark.long
@pytest.mark.slow
def test_searches_are_answered_again_after_the_broker_was_killed(killable: Killable, tmp_path: Path) -> None:
    own = killable.settings
    packs, versions = Packs(own, tmp_path / "built"), dict.fromkeys(DOMAINS[:3], 1)
    for domain in versions:
        packs.publish(domain, 1)
    with fleet(hasty(environment_of(own)), tmp_path / "logs") as crew, closing(ClusterSearchClient.of(own)) as finder:
        ready(crew.orchestrator(), crew.searcher(), crew.searcher())
        await_placed(finder, crew, versions, copies=2, searchers=2)
        with load(finder, versions) as requests:
            requests.goes_on()
            killable.kill("beam.smp")
            killable.start()
            requests.goes_on()
            await_placed(finder, crew, versions, copies=2, searchers=2)
            requests.goes_on()
            failed = requests.failed.total()
            requests.goes_on()
            assert requests.failed.total() == failed, requests.failed


def test_a_pack_waits_for_a_searcher_that_has_room(
    settings: Settings, environment: dict[str, str], tmp_path: Path
) -> None:
    packs = Packs(settings, tmp_path / "built")
    packs.publish("small.example", 1)
    packs.publish("large.example", 1, size_mb=3)

    def total(domain: str) -> int:
        return finder.search(SearchRequest(q="version", domains=(domain,))).total

    with (
        fleet(hasty(environment, REPLICAS="1"), tmp_path / "logs") as crew,
        closing(ClusterSearchClient.of(settings)) as finder,
    ):
        ready(crew.orchestrator())
        eventually(lambda: finder.routes().settled, "the orchestrator knows what is there")
        with pytest.raises(NotPlaced):
            total("small.example")
        with pytest.raises(PackNotFound):
            total("never.example")
        ready(crew.searcher(disk_mb=2))
        eventually(lambda: placed_on(finder, "small.example"), "the small one is placed")
        assert total("small.example") == pages_of(1)
        with pytest.raises(NotPlaced):
            total("large.example")
        assert "MB" in next(each.why for each in finder.routes().routes if each.domain == "large.example")
        ready(crew.searcher(disk_mb=50))
        eventually(lambda: placed_on(finder, "large.example"), "the large one is placed, too")
        assert total("large.example") == pages_of(1) + 1


def placed_on(finder: ClusterSearchClient, domain: str) -> tuple[str, ...]:
    return next((each.searchers for each in finder.routes().routes if each.domain == domain), ())
