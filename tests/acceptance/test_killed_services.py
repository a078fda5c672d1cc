"""`perennial up` starts a killed RabbitMQ, port mapper and Redis again, and a crawl in progress loses no page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app.errors import PackNotFound
from app.pack.manifest import read_manifest
from app.processes.process_states import current_states
from app.storage.open import open_store
from config.settings import Settings
from tests.servers.site import Site, in_letters, page
from tests.support.command import perennial
from tests.support.kill import discard, kill
from tests.support.waiting import eventually
from tests.support.web import free_port
from tests.support.worker import Worker, start_module

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

PAGES = 50


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    found = Settings(data_dir=tmp_path / "data")
    yield found
    discard(found)


@pytest.fixture
def environment(settings: Settings) -> dict[str, str]:
    ours = {"PERENNIAL_DATA_DIR": str(settings.data_dir), "ALLOW_PRIVATE_HOSTS": "127.0.0.1", "HOST_DELAY": "0.3"}
    ours |= {"WEB_ADDRESS": f"127.0.0.1:{free_port()}", "FLOWER_ADDRESS": f"127.0.0.1:{free_port()}"}
    ours |= {"TIMER_TIMEOUT": "3", "WORKER_CONCURRENCY": "2", "SEARCHER_PROCESSES": "1", "REPLICAS": "1"}
    return {**os.environ, **ours}


def kill_and_await_restart(up: Worker, settings: Settings, program: str, name: str) -> None:
    """SIGKILL a server; wait until the process that watches it has crashed once more, and has started it again."""
    answers = up.log.count(") answers")
    kill(program, settings.services_file.parent)
    eventually(lambda: up.log.count(") answers") > answers, f"{program} answers; log:\n{up.log[-3_000:]}", seconds=60)
    state = next(each for each in current_states(settings.data_dir) if each.name == name)
    assert (state.state, state.exit_code) == ("running", 1)
    assert f"{name} stopped (rc=1); restart {state.crashes} of 5" in up.log


def packed_pages(settings: Settings, domain: str) -> int:
    """Return the pages of a domain's pack, 0 without a pack."""
    with suppress(PackNotFound):
        return read_manifest(open_store(settings.store), domain).pages
    return 0


def test_a_crawl_goes_on_when_redis_port_mapper_and_broker_were_killed_and_no_page_is_lost(
    settings: Settings, environment: dict[str, str], tmp_path: Path
) -> None:
    paths = [f"/{number}" for number in range(PAGES)]
    pages = {path: page(path, f"The rose {in_letters(number)} of the garden") for number, path in enumerate(paths)}
    up = start_module(environment, tmp_path / "up.log", "app.cli.main", "up")
    try:
        eventually(lambda: up.log.count(") answers") == 2, f"both are watched; log:\n{up.log}", seconds=90)
        before = perennial(environment, "services", "status").stdout
        with Site({"/": page("Roses", links=paths), **pages}) as site:
            assert perennial(environment, "index", "--crawl", site.url).returncode == 0
            eventually(lambda: len(site.requests) > 10, f"pages are fetched; log:\n{up.log[-3_000:]}", seconds=60)
            kill_and_await_restart(up, settings, "redis-server", "redis")
            assert not set(paths) <= set(site.paths()), "the crawl must not have ended yet"
            kill_and_await_restart(up, settings, "beam.smp", "rabbitmq")
            kill_and_await_restart(up, settings, "epmd", "rabbitmq")
            assert perennial(environment, "services", "status").stdout == before
            eventually(lambda: packed_pages(settings, site.domain), "the crawl is packed", seconds=150)
            assert packed_pages(settings, site.domain) == PAGES + 1
            assert (
                f"{PAGES + 1} pages seen, 0 messages open, 0 dead"
                in perennial(environment, "status", site.domain).stdout
            )
            refused = perennial(environment, "services", "down")
            assert (refused.returncode, "use `perennial down`" in refused.stderr) == (1, True)
        assert perennial(environment, "down").returncode == 0
        assert "redis runs on until `perennial down`" in up.log
        assert perennial(environment, "services", "status").returncode == 1
    finally:
        up.process.terminate()
        up.process.wait(60)
