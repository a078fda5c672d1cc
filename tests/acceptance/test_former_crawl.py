"""A crawl that version 0.1.0 began, with its messages, keys, timer and pages: workers of this release finish it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zstandard
from kombu import Connection
from redis import Redis

from app.crawl.frontier_values import fingerprint
from app.crawl.urls import canonical_key
from app.state.client import get_redis
from app.storage.layout import content_key, page_id
from app.storage.open import open_store
from app.storage.store import ObjectStore
from app.timers.timers import Timers, full_pack
from app.topology.declare import declare_all
from app.topology.queues import DEAD_SET
from config.settings import Settings
from tests.servers.site import Site, page
from tests.support.broker import Broker
from tests.support.system import running_system
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

CRAWL = "0d6c1a52-7f3a-4e0b-9d6e-5a1f0c2b7e11"
LINKS = {"/": ["/a", "/b"], "/a": ["/a1", "/a2"], "/b": ["/b1"], "/b1": ["/b2"], "/b2": ["/b3"]}
PATHS = {"/", "/a", "/a1", "/a2", "/b", "/b1", "/b2", "/b3"}
#: `index` of /b failed twice; its headers are those of the default budget of 0.1.0.
RETRIED = {"retry-timeout-ms": 5_000, "retry-max": 5, "current-iteration": 2, "perennial-first-failed-at": 1795000000.0}


def test_the_crawl_of_a_former_release_is_finished_without_a_lost_page(
    environment: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    broker = Broker(settings.broker)
    with Connection(settings.broker) as connection:
        assert not declare_all(connection, settings)
    with Site({path: page(path, "words", links=LINKS.get(path, [])) for path in PATHS}) as site:
        redis, store = get_redis(settings.redis), open_store(settings.store)
        for path in ("/", "/a"):
            store_former(store, site, path)
        leave_former_keys(redis, site)
        post(broker, site, "crawl", "/a", depth=1)
        post(broker, site, "index", "/b", depth=1, headers=RETRIED)
        post(broker, site, "index", "/b1", depth=2)
        post(broker, site, "crawl", "/b1", depth=2)
        with running_system(environment, settings, tmp_path) as system:
            system.packed(site.domain)
            eventually(lambda: system.paths(site.domain) == PATHS, "every page is packed", seconds=60)
            eventually(lambda: system.progress(site.domain).open == 0, "no message is open")
            # Neither `index` of these two pages is open, and `crawl` of /a follows the links of the shared response.
            assert {hit.title for hit in system.search(site.domain, "former")} == {"/", "/a"}
            assert not {"/", "/a"} & set(site.paths())
            assert broker.depth(DEAD_SET) == 0


def post(broker: Broker, site: Site, kind: str, path: str, *, depth: int, **properties: Any) -> None:
    """Post a message as 0.1.0 published it."""
    payload = {"type": kind, "url": site.at(path), "domain": site.domain, "crawl_id": CRAWL, "depth": depth}
    broker.post(json.dumps(payload).encode(), key=kind, **properties)


def former_fields(site: Site, path: str) -> dict[str, Any]:
    """Return the fields of a page as 0.1.0 wrote them: neither blocks, nor links, nor a version."""
    texts = {"title": path, "description": "", "body": "former words", "lang": "", "canonical": "", "modified": ""}
    url = site.at(path)
    return {
        "key": canonical_key(url),
        "url": url,
        "domain": site.domain,
        "path": path,
        "headings": [],
        "content_type": "text/html",
        **texts,
    }


def store_former(store: ObjectStore, site: Site, path: str) -> None:
    """Store a page as 0.1.0 stored it."""
    stored = former_fields(site, path) | {"kind": "page"}
    key = content_key(site.domain, page_id(canonical_key(site.at(path))))
    store.put(key, json.dumps(stored, sort_keys=True, separators=(",", ":")).encode())


def leave_former_keys(redis: Redis, site: Site) -> None:
    """Write what 0.1.0 kept in Redis: both messages of the start page are done, and four others are open."""
    crawl, domain = f"perennial:crawl:{CRAWL}", f"perennial:domain:{site.domain}"
    names = {path: fingerprint(canonical_key(site.at(path))) for path in PATHS}
    began = datetime.now(UTC).isoformat()
    redis.hset(crawl, mapping={"domain": site.domain, "start": site.at("/"), "began": began, "moves": "0"})
    redis.hset(domain, mapping={"crawl_id": CRAWL, "last_finished": 1795000000})
    redis.sadd(f"{domain}:crawls", CRAWL)
    redis.sadd(f"{crawl}:seen", *(names[path] for path in ("/", "/a", "/b", "/b1")))
    redis.sadd(f"{crawl}:open", f"c{names['/a']}", f"i{names['/b']}", f"i{names['/b1']}", f"c{names['/b1']}")
    redis.sadd(f"{crawl}:done", f"i{names['/']}", f"c{names['/']}", f"i{names['/a']}", f"c{names['/b']}")
    redis.sadd(f"{crawl}:members", *(page_id(canonical_key(site.at(path))) for path in ("/", "/a")))
    # The response that `index` of /a left for `crawl`.
    result = {
        "page": former_fields(site, "/a"),
        "links": [[site.at(each), canonical_key(site.at(each))] for each in LINKS["/a"]],
    }
    shared = zstandard.compress(json.dumps(["Indexed", result]).encode(), 1)
    redis.set(f"{crawl}:visit:{names['/a']}", shared, ex=300)
    Timers(redis).start(site.domain, timeout=2, callback=full_pack(site.domain, CRAWL))
