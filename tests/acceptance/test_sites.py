"""Sites in the running system: crawls use what they say, start by their schedules, and can be removed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.services import Urls
from app.topology.queues import DEAD_SET
from tests.servers.site import Site, page, redirect, robots
from tests.support import command
from tests.support.corner import environment_of, own_vhost, settings_for
from tests.support.system import System, running_system

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
