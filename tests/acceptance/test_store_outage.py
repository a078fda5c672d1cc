"""An outage of the store in mid-crawl: messages wait unspent, and the log says so once."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from app.topology.queues import DEAD_SET
from config.settings import Settings
from tests.servers.site import Site, page
from tests.support.system import running_system
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

PAGES = [f"/{number}" for number in range(12)]


def test_a_crawl_waits_while_the_store_is_away_and_spends_no_retry(
    settings: Settings, environment: dict[str, str], tmp_path: Path
) -> None:
    store, away = Path(settings.store.removeprefix("file://")), tmp_path / "away"
    routes = {path: page(path, f"words of {path}", links=[after]) for path, after in itertools.pairwise([*PAGES, "/"])}
    routes["/"] = page("Home", "welcome", links=PAGES)
    fast = {**environment, "STORE_OUTAGE_PAUSE": "0.3", "RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "1"}
    with Site(routes) as site, running_system(fast, settings, tmp_path) as system:
        store.rename(away)
        store.mkdir()
        system.post("index+crawl", url=site.at("/"))
        eventually(lambda: "The store does not answer" in system.worker.log, "pages are not consumed")
        eventually(lambda: system.worker.log.count("The store does not answer") >= 2, "it is tried again, in vain")
        store.rmdir()
        away.rename(store)
        assert system.packed(site.domain).pages == len(PAGES) + 1
        assert sorted(site.paths()) == sorted({"/robots.txt", "/", *PAGES})
        assert system.broker.depth(DEAD_SET) == 0
        assert "Retry " not in system.worker.log
        assert system.worker.log.count("WARNING") < 20
