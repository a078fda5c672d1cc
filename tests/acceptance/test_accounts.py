"""A site from the crawl to the search, and a dead letter's replay, with every process under its own account."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from app.cluster.client.cluster import ClusterSearchClient
from app.errors import NotPlaced, PackNotFound, SearchUnavailable
from app.search.contract import SearchRequest, SearchResult
from config.routes import ORCHESTRATOR
from config.settings import Settings
from tests.servers.site import Site, failure, page
from tests.support.accounts import accounts_of
from tests.support.broker import Broker
from tests.support.command import perennial
from tests.support.system import beat
from tests.support.waiting import eventually
from tests.support.worker import start, start_module

pytestmark = pytest.mark.acceptance


def printed(*arguments: str, environment: dict[str, str]) -> str:
    done = perennial(environment, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_process_works_under_the_account_of_its_kind(
    settings: Settings, environment: dict[str, str], tmp_path: Path
) -> None:
    pages = {"/": page("Home", "Welcome", links=["/oak", "/elm"]), "/oak": page("Oak", "All about acorns", links=[])}
    ours = {**environment, "RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "1", "REPLICAS": "1"}
    changed = settings.model_copy(update={"retry_timeout_ms": 100, "retry_max": 1})
    with ExitStack() as stack:
        site = stack.enter_context(Site({**pages, "/elm": failure(500)}))
        accounts = stack.enter_context(accounts_of(changed, tmp_path / "accounts"))
        queues = {
            "worker": ["site.index", "site.crawl", "site.page", "site.timer", "site.tick"],
            "packer": ["site.pack"],
        }
        workers = [
            start({**ours, **accounts[kind]}, tmp_path / f"{kind}.log", queues=of, concurrency=1)
            for kind, of in queues.items()
        ]
        own = {**ours, **accounts["orchestrator"]}
        options = ("--pool=solo",)
        workers.append(start(own, tmp_path / "orchestrator.log", queues=[ORCHESTRATOR], concurrency=1, options=options))
        workers.append(
            start_module({**ours, **accounts["searcher"]}, tmp_path / "searcher.log", "app.cluster.searcher")
        )
        for each in workers:
            stack.callback(each.kill)
        stack.enter_context(beat({**ours, **accounts["beat"]}, tmp_path / "beat.log"))
        for each in workers:
            eventually(each.ready, f"{each.name} is ready", seconds=60)

        printed("index", "--crawl", site.at("/"), environment={**ours, **accounts["client"]})
        broker = Broker(settings.broker)
        eventually(lambda: broker.depth("site.dead") == 1, "the page is dead", seconds=60)

        web = Settings(data_dir=settings.data_dir, broker_url=accounts["web"]["BROKER_URL"], declare_topology=False)
        client = stack.enter_context(closing(ClusterSearchClient.of(web)))

        def found(words: str) -> SearchResult | None:
            try:
                result = client.search(SearchRequest(q=words, domains=(site.domain,)))
            except (NotPlaced, PackNotFound, SearchUnavailable):
                return None
            return result if result.hits else None

        result = eventually(lambda: found("acorns"), "the crawled page is found", seconds=60)
        assert result is not None
        assert [hit.title for hit in result.hits] == ["Oak"]

        site.set("/elm", page("Elm", "All about samaras", links=[]))
        assert printed("dead", "replay", "--all", "--canary", environment=ours) == "1 replayed\n"
        eventually(lambda: found("samaras"), "the replayed page is found", seconds=60)
        assert broker.depth("site.dead") == 0
        for each in workers:
            assert "ACCESS_REFUSED" not in each.log, each.log[-3_000:]
