"""docs/guides/sites.md, followed after a bad crawl: a searcher serves the former pack again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from app.cluster.client.cluster import ClusterSearchClient
from app.pack.packer import pack_full
from app.pack.plan import FullPackPlan
from app.search.contract import SearchRequest
from app.storage.open import open_store
from config.settings import Settings
from tests.packs import page, put
from tests.support.command import as_process_with
from tests.support.fleet import fleet, placed, ready
from tests.support.guide import Guide
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

DOMAIN = "site.example"


def test_a_searcher_serves_the_pack_before_a_bad_crawl_again(
    settings: Settings, environment: dict[str, str], tmp_path: Path
) -> None:
    store = open_store(settings.store)
    for title in ("good", "bad"):
        put(store, *(page(f"/{number}", f"{title} title") for number in range(4)))
        pack_full(store, DOMAIN, FullPackPlan(crawl_id=title))
    with (
        as_process_with({**environment, "REPLICAS": "1"}),
        fleet({**environment, "REPLICAS": "1"}, tmp_path / "fleet") as processes,
        closing(ClusterSearchClient.of(settings)) as client,
    ):

        def found(word: str) -> int:
            return len(client.search(SearchRequest(q=word, domains=(DOMAIN,))).hits)

        ready(processes.orchestrator(), processes.searcher())
        eventually(lambda: placed(client.routes(), {DOMAIN: 2}, copies=1), "the bad pack is served")
        assert (found("good"), found("bad")) == (0, 4)
        Guide("docs/guides/sites.md", {}, only="site rollback").follow()
        eventually(lambda: placed(client.routes(), {DOMAIN: 3}, copies=1), "the former pack is served")
        assert (found("good"), found("bad")) == (4, 0)
