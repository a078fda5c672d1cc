"""LOG_FORMAT=json: one page is followed through its retries by its task id, to its dead letter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.topology.queues import DEAD_SET
from config.settings import Settings
from tests.servers.site import Site, failure
from tests.support.system import running_system
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance


def test_a_page_is_followed_through_its_retries_by_its_id(
    environment: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    chosen = {**environment, "LOG_FORMAT": "json", "RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "3"}
    with Site({"/": failure(500)}) as site, running_system(chosen, settings, tmp_path) as system:
        body = json.dumps({"type": "index", "url": site.at("/")})
        system.broker.post(body.encode(), message_id="page-4711")
        eventually(lambda: system.broker.depth(DEAD_SET) == 1, "the page is dead-lettered", seconds=60)
        # Celery's banner is text.
        lines = [json.loads(line) for line in system.worker.log.splitlines() if line.startswith("{")]
    about = [line for line in lines if line.get("task_id") == "page-4711"]
    decided = [line["message"].partition(" of site.index")[0] for line in about if line["logger"].endswith("failures")]
    assert decided[:3] == ["Retry 1 of 3", "Retry 2 of 3", "Retry 3 of 3"]
    assert len(decided) == 4
    # Celery's own line of the last run, in the process of the pool, also has what the message says.
    [traceback] = [line for line in about if "Traceback" in line["message"]]
    assert (traceback["task"], traceback["url"]) == ("site.index", site.at("/"))
