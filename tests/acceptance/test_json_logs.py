"""LOG_FORMAT=json: a crawl is followed to its pack by its id, and one page of it through its retries by its own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from app.topology.queues import DEAD_SET
from config.settings import Settings
from tests.servers.site import Site, document, failure, reply
from tests.support.system import running_system
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

#: Pages of the crawl that are well.
PAGES = 40


def test_a_crawl_is_followed_by_its_id_and_its_page_through_three_retries(
    environment: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    chosen = {**environment, "LOG_FORMAT": "json", "RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "3", "TIMER_TIMEOUT": "1"}
    leaves = [f"/{number}" for number in range(PAGES)]
    pages = {leaf: reply(document(f"Page {leaf}", f"about {leaf}")) for leaf in leaves}
    start = reply(document("Start", links=[*leaves, "/broken"]))
    with (
        Site({"/": start, "/broken": failure(500), **pages}) as site,
        running_system(chosen, settings, tmp_path) as system,
    ):
        # The first tick after a start of Redis publishes the open pages of crawls again.
        eventually(lambda: "Redis is new" in system.worker.log, "the first tick")
        body = json.dumps({"type": "index+crawl", "url": site.at("/")})
        system.broker.post(body.encode(), message_id="crawl-4711")
        system.packed(site.domain)
        # A pack is in the store before the worker logs it.
        eventually(lambda: '"Pack of ' in system.worker.log, "the packer's line")
        assert system.broker.depth(DEAD_SET) == 1
        # Celery's banner is text.
        lines = [json.loads(line) for line in system.worker.log.splitlines() if line.startswith("{")]
    crawl = [line for line in lines if line.get("crawl_id") == "crawl-4711"]
    assert all({"task", "task_id", "attempt", "domain", "process"} <= line.keys() for line in crawl)
    assert {line["domain"] for line in crawl} == {site.domain}
    subjects = [line["message"].partition(" of ")[0] for line in crawl]
    assert (subjects[0], subjects[-2:]) == ("Crawl", ["Crawl", "Pack"])
    # All other lines are about the page that failed, and each line about it is one of the crawl.
    alone = [line for line in crawl[1:-2] if "which failed beside others" not in line["message"]]
    [page] = {line["task_id"] for line in alone if line.get("url") == site.at("/broken")}
    about = [line for line in lines if line.get("task_id") == page]
    assert about == alone
    # A first attempt beside other pages is logged by their run.
    first = 1 if alone == crawl[1:-2] else 2
    assert [line["attempt"] for line in about if line["logger"].endswith("failures")] == [*range(first, 5)]
    # Celery's own line of the last run is one of the pool's process.
    [traceback] = [line for line in about if "exception" in line]
    assert (traceback["attempt"], traceback["task"]) == (4, "site.page")
    # A line for each page, or each second, would be here more often.
    assert max(Counter(_shape(line) for line in lines).values()) < 10


def _shape(line: dict[str, Any]) -> str:
    """Return the beginning of a message without numbers, which all lines of one kind share."""
    return " ".join(word for word in line["message"].split()[:4] if not any(letter.isdigit() for letter in word))
