"""docs/guides/backup.md, followed while an orchestrator and searchers run: nothing is lost, and nothing is unloaded."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from app.cluster.client.cluster import ClusterSearchClient
from app.search.contract import SearchRequest
from app.storage.marker import read_marker
from app.storage.open import open_store
from config.settings import Settings
from tests.support.broker import Broker
from tests.support.command import as_process_with
from tests.support.fleet import Packs, fleet, placed, ready, title_of
from tests.support.guide import Guide
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

DOMAINS = {"ash.example": 1, "elm.example": 1, "fir.example": 1, "oak.example": 1}


def test_a_restored_store_is_the_orchestrators_own_and_searchers_take_its_packs(
    settings: Settings, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store, root = open_store(settings.store), Path(settings.store.removeprefix("file://"))
    guide = Guide("docs/guides/backup.md", {"file:///backup/perennial": (tmp_path / "backup").as_uri()})
    packs, broker = Packs(settings, tmp_path / "packs"), Broker(settings.broker)
    for domain, version in DOMAINS.items():
        packs.publish(domain, version)
    with (
        as_process_with(environment),
        fleet(environment, tmp_path / "fleet") as processes,
        closing(ClusterSearchClient.of(settings)) as client,
    ):
        first, kept = processes.orchestrator(), processes.searcher()
        ready(first, kept)
        eventually(lambda: placed(client.routes(), DOMAINS, copies=1, missing=1), "the packs are on the first searcher")
        broker.post(b'{"type": "of a later release"}', exchange="site", key="unknown")
        eventually(lambda: broker.depth("site.dead") == 1, "an unroutable message is a dead letter")
        store_id = read_marker(store)
        guide.follow()
        guide.follow()

        first.leave()
        shutil.rmtree(root)
        broker.take("site.dead")
        guide.follow()
        assert read_marker(store) == store_id
        ready(processes.orchestrator(), processes.searcher())
        eventually(lambda: placed(client.routes(), DOMAINS, copies=2), "the second searcher took the packs, too")
        guide.follow()
        guide.end()
        assert broker.depth("site.dead") == 1
        for domain in DOMAINS:
            result = client.search(SearchRequest(q=title_of(domain, 1), domains=(domain,)))
            assert [hit.domain for hit in result.hits] == [domain] * len(result.hits)
            assert result.hits
        # Each pack was loaded once, so none was unloaded in between.
        assert kept.log.count(": serving generation") == len(DOMAINS)
