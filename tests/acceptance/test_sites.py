"""Sites in the running system: crawls use what they say, start by their schedules, and can be removed."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.crawl.record.crawls import list_crawls
from app.crawl.record.removed_sites import removed_key
from app.private_services import Urls
from app.redis_state.client import get_redis
from app.storage.open import open_store
from app.topology.queues import DEAD_SET
from tests.servers.site import Site, page, redirect, reply, robots
from tests.support import command
from tests.support.corner import environment_of, own_vhost, settings_for
from tests.support.fleet import Fleet, fleet, ready
from tests.support.pdf import pdf
from tests.support.system import System, running_system
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module")
def other() -> Iterator[Site]:
    """Serve another host, whose port redirects may lead to."""
    with Site({"/": page("Other")}) as other:
        yield other


@pytest.fixture(scope="module")
def running(services: Urls, tmp_path_factory: pytest.TempPathFactory, other: Site) -> Iterator[System]:
    """Run one system for these tests: each has a site, and so a domain, of its own."""
    folder = tmp_path_factory.mktemp("sites")
    (folder / "secrets.json").write_text(json.dumps({"wiki-login": "hunter2", "wiki-token": "Bearer hunter3"}))
    changed = {"RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "2", "ALLOW_PORTS": other.domain.rpartition(":")[2]}
    changed["SITE_SECRETS"] = str(folder / "secrets.json")
    with own_vhost(services) as url:
        settings = settings_for(folder, url, services.redis_url, services.broker_api_url)
        with running_system({**environment_of(settings), **changed}, settings, folder) as system:
            yield system


@pytest.fixture(scope="module")
def searching(running: System, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Run an orchestrator and a searcher."""
    with fleet({**running.environment, "REPLICAS": "1"}, tmp_path_factory.mktemp("fleet")) as searching:
        ready(searching.orchestrator(), searching.searcher())
        yield searching


@pytest.fixture
def system(running: System) -> Iterator[System]:
    """Return the running system, with an empty dead set."""
    yield running
    running.broker.take(DEAD_SET)


def perennial(system: System, *arguments: str, exit_code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `perennial` as an operator does."""
    done = command.perennial({**os.environ, **system.environment}, *arguments)
    assert done.returncode == exit_code, done.stderr
    return done


def test_a_crawl_uses_the_paths_limits_start_urls_and_headers_of_its_site(system: System, other: Site) -> None:
    routes = {
        "/robots.txt": robots("User-agent: Perennial\nDisallow: /denied\n"),
        "/": page("Home", "welcome", links=["/a", "/private/x", "/denied", "/away", "/deep/1"]),
        "/deep/1": page("One", links=["/deep/2"]),
        "/deep/2": page("Two", links=["/deep/3"]),
        "/deep/3": page("Three"),
        "/a": page("A", links=["/private/y"]),
        "/private/x": page("Private"),
        "/island": page("Island", "linked from nowhere", links=["/a?print=1"]),
        "/a?print=1": page("Print"),
    }
    with Site(routes) as site:
        site.set("/away", redirect(other.url))
        perennial(
            system,
            *("site", "add", site.domain, f"start_urls={site.at('/')}", f"start_urls={site.at('/island')}"),
            *("exclude=/private/", "exclude=*?print=", "max_depth=2", "user_agent_suffix=(intranet)"),
            *("cookies.sid=wiki-login", "headers.Authorization=wiki-token"),
        )
        system.post("index+crawl", url=site.at("/"))
        system.packed(site.domain)
        assert system.paths(site.domain) == {"/", "/a", "/deep/1", "/deep/2", "/island"}
        assert len(site.requests) == len(set(site.paths())) == 8
        for request in site.requests:
            assert request.headers["user-agent"].endswith(" (intranet)")
            assert (request.headers["cookie"], request.headers["authorization"]) == ("sid=hunter2", "Bearer hunter3")
        assert not other.requests

        # The start page moves to another host: the crawl follows, without the secrets.
        site.set("/", redirect(other.url))
        system.post("index+crawl", url=site.at("/"))
        system.packed(other.domain)
        assert {request.headers.get("cookie") for request in other.requests} == {None}
        assert {request.headers.get("authorization") for request in other.requests} == {None}
    stored = [path.read_bytes() for path in Path(system.settings.store.removeprefix("file://")).rglob("*.json")]
    assert not any(b"hunter" in data for data in stored)
    assert "hunter" not in system.worker.log


@pytest.mark.slow
def test_the_life_of_a_site_from_its_schedule_to_its_removal(system: System, searching: Fleet, other: Site) -> None:
    store = open_store(system.settings.store)
    routes = {
        "/": page("Home", "amber", links=["/b", "/manual.pdf"]),
        "/b": page("Birch", "amber birch", links=["/"]),
        "/manual.pdf": reply(pdf("A manual of junipers"), content_type="application/pdf"),
    }
    with Site(routes) as site:
        domain = site.domain

        def hits(*words: str, where: str = domain) -> set[str]:
            found = command.perennial({**os.environ, **system.environment}, "search", where, *words, "--json")
            return {hit["url"] for hit in json.loads(found.stdout)["hits"]} if found.returncode == 0 else set()

        # It is crawled by its schedule, packed and searched; the interval is shorter than a crawl with its pack.
        perennial(system, "site", "add", domain, f"start_urls={site.at('/')}", "schedule=2s")
        eventually(lambda: hits("amber") == {site.at("/"), site.at("/b")}, "both pages are found", seconds=90)
        assert hits("junipers") == {site.at("/manual.pdf")}
        site.set("/", page("Home", "amber", links=["/b", "/c", "/manual.pdf"]))
        site.set("/c", page("Cedar", "amber cedar"))
        site.set("/manual.pdf", reply(pdf("A manual of larches"), content_type="application/pdf"))
        eventually(lambda: site.at("/c") in hits("cedar"), "a later crawl finds the new page", seconds=90)
        eventually(lambda: hits("larches") == {site.at("/manual.pdf")}, "the replaced PDF is found", seconds=60)
        assert not hits("junipers")
        crawls = [record for record in list_crawls(store, domain) if record.id.startswith("127.0.0.1-")]
        assert len(crawls) >= 2
        for earlier, later in itertools.pairwise(sorted(crawls, key=lambda crawl: crawl.started)):
            assert (later.started - earlier.started).total_seconds() >= 2

        # Paused, it is not requested, also not after a change.
        perennial(system, "site", "pause", domain)
        eventually(lambda: not system.progress(domain).open, "the last crawl has ended")
        perennial(system, "site", "set", domain, "exclude=/b")
        requests = len(site.requests)
        generation = system.manifest(domain)

        # One page goes and comes back at once, while nothing is crawled.
        perennial(system, "site", "block", site.at("/c"))
        eventually(lambda: not hits("cedar"), "the blocked page is not found", seconds=60)
        perennial(system, "site", "unblock", site.at("/c"))
        assert len(site.requests) == requests
        assert generation is not None
        eventually(lambda: _indexed(system, site.at("/c")) and hits("cedar"), "it is found again", seconds=90, every=2)

        perennial(system, "site", "resume", domain)
        eventually(lambda: site.at("/b") not in hits("amber"), "a crawl leaves out what is excluded", seconds=90)

        # All of it moves to another host: the next crawl follows.
        for path in ("/", "/b", "/c", "/manual.pdf"):
            site.set(path, redirect(other.url, status=301))
        eventually(lambda: hits("other", where=other.domain) == {other.url}, "the new host is found", seconds=60)

        perennial(system, "site", "remove", domain, "--yes")
        eventually(lambda: not _served(system, domain), "no searcher has it", seconds=60)
        requests = len(site.requests)
        assert [stat.key for stat in store.list("") if domain in stat.key] == [removed_key(domain)]
        redis = get_redis(system.settings.redis)
        keys = [str(key) for key in redis.scan_iter("*") if domain in str(key)]
        assert not [key for key in keys if not key.startswith("perennial:lease:")]
        assert redis.zscore("perennial:timers", domain) is None
        assert not [each for each in system.broker.peek(DEAD_SET) if domain in each.body.decode()]
        assert not hits("amber")

        # Waiting messages are dropped, with a time or without one; later ones are not.
        late = [json.dumps({"type": "index", "url": site.at(f"/late{number}")}).encode() for number in range(2)]
        system.broker.post(late[0], timestamp=int(time.time()) - 60)
        system.broker.post(late[1])
        dropped = f"index of {domain} dropped"
        eventually(lambda: system.worker.log.count(dropped) == 2, "two messages are dropped", seconds=90)
        perennial(system, "index", site.at("/later"))
        eventually(lambda: "/later" in site.paths(), "a message after the removal runs")
        assert not [path for path in site.paths() if path.startswith("/late") and path != "/later"]
        requests = len(site.requests)
        # The next look of the scheduler begins nothing again.
        eventually(lambda: not redis.exists("perennial:sites:read"), "the next look is due", every=0.01)
        eventually(lambda: redis.exists("perennial:sites:read"), "the sites were read")
        assert len(site.requests) == requests


def _indexed(system: System, url: str) -> bool:
    """Index a page at once. Workers may take ten seconds until they know that it is no longer blocked."""
    perennial(system, "index", "--now", url)
    return True


def _served(system: System, domain: str) -> bool:
    return domain in command.perennial({**os.environ, **system.environment}, "searchers", "--json").stdout
