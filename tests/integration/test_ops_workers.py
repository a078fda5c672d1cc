"""What workers do now, on the page of queues and by the API: running tasks, pools, queues, and workers that hang."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from app.broker.publishing import Publisher
from app.messages.envelopes import site_message
from tests.support.operators import api_headers
from tests.support.waiting import eventually
from tests.support.worker import Worker, worker

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def busy(environment: dict[str, str], tmp_path: Path) -> Iterator[Worker]:
    with worker(environment, tmp_path / "busy.log", queues=("site.index", "site.page")) as running:
        yield running


@pytest.fixture
def silent() -> Iterator[str]:
    """Yield the URL of a site that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/slow"


def read(client: httpx.Client) -> dict[str, Any]:
    answer = client.get("/api/v1/ops/workers", headers=api_headers())
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def page_with(client: httpx.Client, text: str) -> str:
    """Return the page once it has the text: it leaves out what it does not learn in time."""

    def found() -> str | None:
        page = client.get("/ops/queues").text
        return page if text in page else None

    return eventually(found, f"the page has {text}", every=0.5) or ""


def test_each_worker_shows_what_it_runs_and_one_that_hangs_is_named(
    client: httpx.Client, publisher: Publisher, busy: Worker, silent: str
) -> None:
    publisher.publish([site_message("index", url=silent)])

    def running() -> dict[str, Any] | None:
        found = read(client)
        return found if any(each["running"] for each in found["workers"]) else None

    found = eventually(running, "the worker runs a task", seconds=60, every=0.5)
    assert found
    (shown,) = found["workers"]
    assert shown["name"].startswith("busy@")
    assert (shown["answers"], shown["pool_size"], shown["task_count"]) == (True, 2, 1)
    assert shown["queues"] == ["site.index", "site.page"]
    assert shown["prefetch"] > 0
    (task,) = shown["running"]
    assert task["subject"] == silent
    assert task["pid"] in [each.pid for each in busy.children()]
    assert abs(time.time() - task["since"]) < 600
    page = page_with(client, silent)
    assert shown["name"] in page
    assert ">does not answer<" not in page
    parent = psutil.Process(busy.process.pid)
    parent.send_signal(signal.SIGSTOP)
    try:
        hanging = eventually(
            lambda: [each["name"] for each in read(client)["workers"] if not each["answers"]], "it is missed", every=0.5
        )
        assert hanging == [shown["name"]]
        assert page_with(client, ">does not answer<")
    finally:
        parent.send_signal(signal.SIGCONT)
