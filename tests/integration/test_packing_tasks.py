"""The packing tasks on a real broker and Redis: what they announce, wherever their process dies."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import pytest

from app.broker.errors import InvalidMessage
from app.broker.publishing import Publisher
from app.operations.audit import AuditLog
from app.pack import packer
from app.pack.manifest import is_announced, read_manifest
from app.pack.plan import FullPackPlan
from app.storage.layout import Page, content_key, page_id, to_json
from config.settings import Settings
from tasks.base import Context
from tasks.pack import pack_full, pack_incremental
from tests.support.broker import Broker
from tests.support.command import invoked
from tests.support.guide import Guide
from tests.support.task_context import task_context

pytestmark = pytest.mark.integration

DOMAIN = "site.gov"


@pytest.fixture
def process(environment: dict[str, str], settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    """Return the context of this process as in a worker, with the settings of the test."""
    with task_context(environment, settings, monkeypatch) as context:
        yield context


def store_page(process: Context, name: str, *, title: str = "") -> None:
    url = f"https://{DOMAIN}/{name}"
    page = Page(canonical_key=url, url=url, domain=DOMAIN, path=f"/{name}", title=title, body=f"words of {name}")
    process.store.put(content_key(DOMAIN, page_id(url)), to_json(page))


def announced(settings: Settings) -> list[dict[str, Any]]:
    """Take the `update` events of packs from the orchestrator's queue."""
    return [json.loads(message.body) for message in Broker(settings.broker).take("orchestrator")]


def die_instead_of_publishing(self: Publisher, messages: Sequence[Any]) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def run_and_die_before_publishing(task: Callable[..., None], process: Context) -> None:
    """Run a packing task in a fork that is killed when it publishes, and free the lease that it leaves."""
    if (child := os.fork()) == 0:
        Publisher.publish = die_instead_of_publishing  # type: ignore[method-assign]
        try:
            task(domain=DOMAIN)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    process.redis.delete(f"perennial:lease:pack:{DOMAIN}")


@pytest.mark.parametrize("task", [pack_incremental, pack_full])
def test_a_pack_is_announced_although_its_writer_died_before_announcing_it(
    process: Context, settings: Settings, task: Callable[..., None]
) -> None:
    store_page(process, "a")
    run_and_die_before_publishing(task, process)
    assert read_manifest(process.store, DOMAIN).generation == 1
    assert announced(settings) == []
    pack_incremental(domain=DOMAIN)
    [event] = announced(settings)
    assert (event["domain"], event["generation"], event["pages"]) == (DOMAIN, 1, 1)
    assert event["sha256"] == read_manifest(process.store, DOMAIN).sha256


@pytest.mark.parametrize("page_ids", ["a", [1], ["../x"], [page_id("a").upper()], {}])
def test_page_ids_that_are_none_are_refused(process: Context, page_ids: Any) -> None:
    with pytest.raises(InvalidMessage, match="expected a list of page ids"):
        pack_incremental(domain=DOMAIN, page_ids=page_ids)


def test_a_flag_must_be_true_or_false(process: Context) -> None:
    for pack, flag in ((pack_full, {"force": "false"}), (pack_incremental, {"deletions": 0})):
        with pytest.raises(InvalidMessage, match="expected true or false"):
            pack(domain=DOMAIN, **flag)


def test_each_version_is_announced_and_an_unchanged_one_only_once(process: Context, settings: Settings) -> None:
    for name in ("a", "b"):
        store_page(process, name)
        for _ in range(3):
            pack_incremental(domain=DOMAIN)
    assert [event["generation"] for event in announced(settings)] == [1, 2]


def test_a_rollback_is_announced_once_and_a_dry_run_changes_nothing(process: Context, settings: Settings) -> None:
    for crawl in ("good", "bad"):
        for number in range(4):
            store_page(process, f"{number}", title=crawl)
        packer.pack_full(process.store, DOMAIN, FullPackPlan(crawl_id=crawl))
    present = read_manifest(process.store, DOMAIN)
    assert "would serve generation 1 of" in invoked("site", "rollback", DOMAIN, "--dry-run")
    invoked("site", "rollback", DOMAIN, exit_code=2)
    assert (read_manifest(process.store, DOMAIN), announced(settings)) == (present, [])
    Guide("docs/guides/sites.md", {"site.example": DOMAIN}, only="site rollback").follow()
    assert [event["domain"] for event in announced(settings)] == [DOMAIN]
    printed = json.loads(invoked("site", "rollback", DOMAIN, "--yes", "--json", "--why", "test"))
    manifest = read_manifest(process.store, DOMAIN)
    assert (printed["generation"], printed["serves"], printed["replaces"]) == (manifest.generation, 2, 3) == (4, 2, 3)
    assert [event["domain"] for event in announced(settings)] == [DOMAIN]
    assert is_announced(process.store, DOMAIN, manifest.sha256)
    assert [entry.act for entry in AuditLog(process.store).entries()] == ["site rollback"] * 2
