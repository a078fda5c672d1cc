"""A crawl that needs a system of its own: its worker is killed."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from config.settings import Settings
from tests.servers.site import Site, page
from tests.support.broker import Broker
from tests.support.system import System, beat
from tests.support.waiting import eventually
from tests.support.worker import worker

pytestmark = pytest.mark.acceptance


def test_a_worker_killed_in_mid_crawl_loses_no_page(
    environment: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    paths = [f"/{number}" for number in range(40)]
    routes = {path: page(path, "text", links=[after]) for path, after in itertools.pairwise([*paths, "/"])}
    with Site({**routes, "/": page("Home", links=["/0"])}) as site, beat(environment, tmp_path / "beat.log"):
        with worker(environment, tmp_path / "first.log") as first:
            system = System(settings, environment, Broker(settings.broker), first, tmp_path / "packs")
            system.post("index+crawl", url=site.at("/"))
            eventually(lambda: site.hits("/10"), "the crawl is on its way", seconds=60)
            first.kill()
        with worker(environment, tmp_path / "second.log") as second:
            system = System(settings, environment, Broker(settings.broker), second, tmp_path / "packs")
            system.packed(site.domain)
            eventually(lambda: system.paths(site.domain) == {"/", *paths}, "every page is packed")
