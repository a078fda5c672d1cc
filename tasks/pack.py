"""Packing tasks: pack_full and pack_incremental."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypedDict

from celery.utils.log import get_task_logger

from app.broker.errors import InvalidMessage
from app.counters import PACK_BYTES, PACK_SECONDS, PACKS_BUILT
from app.crawl.left_out_pages import find_left_out
from app.crawl.record.crawls import list_crawls, update_crawl
from app.crawl.recorder import RecordSnapshot
from app.crawl.urls import canonical_key, parse_message_domain
from app.errors import PackError
from app.messages.envelopes import event_message
from app.notifications.events import pack_written
from app.pack import packer
from app.pack.manifest import is_announced, note_announced, read_manifest
from app.pack.packer import PackResult
from app.pack.plan import FinishedCrawl
from app.redis_state.lease import lease
from app.storage.layout import content_key, list_ids, may_be_page
from app.storage.layout import page_id as page_id_of
from tasks.base import DomainTask, context, task
from tasks.notify import publish_events

_PAGE_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

logger = get_task_logger(__name__)


class _Disk(TypedDict):
    """Where a packer writes temporary files, and how many bytes it keeps there."""

    work: Path
    cache_bytes: int


@task("pack_full", DomainTask)
def pack_full(**message: Any) -> None:
    """Build a new pack, of the crawl with `crawl_id` or of every stored page. `force` overrules refusals."""
    domain, force = parse_message_domain(message), _flag(message, "force", default=False)
    with lease(context().redis, f"pack:{domain}"):
        process, crawl_id = context(), str(message.get("crawl_id") or "")
        recorded = process.recorder.snapshot(domain, crawl_id) if crawl_id else None
        crawl = _finished_crawl(recorded) if recorded else None

        def met_since() -> Collection[str]:
            return process.recorder.met_since(recorded) if recorded else ()

        result = packer.pack_crawl(process.store, domain, crawl, met_since=met_since, force=force, **_disk())
        if recorded and result.kind == "full" and not result.written:
            update_crawl(process.store, recorded.record.ref, lambda record: replace(record, packed=True))
        _announce(result)


@task("pack_incremental", DomainTask)
def pack_incremental(**message: Any) -> None:
    """Bring a pack up to date with the stored pages, or with those of `page_ids` only.

    With `deletions` false, rows of deleted pages stay.
    """
    domain, page_ids = parse_message_domain(message), message.get("page_ids")
    if page_ids is not None and not (
        isinstance(page_ids, list) and all(isinstance(each, str) and _PAGE_ID.fullmatch(each) for each in page_ids)
    ):
        raise InvalidMessage(f"page_ids {page_ids!r:.200}: expected a list of page ids")
    deletions = _flag(message, "deletions", default=True)
    with lease(context().redis, f"pack:{domain}"):
        store = context().store
        _announce(packer.pack_incremental(store, domain, page_ids=page_ids, deletions=deletions, **_disk()))


def _disk() -> _Disk:
    settings = context().settings
    return {"work": settings.data_dir / "packing", "cache_bytes": settings.packer_disk_mb * 2**20}


def _flag(message: Mapping[str, Any], field: str, *, default: bool) -> bool:
    value = message.get(field, default)
    if not isinstance(value, bool):
        raise InvalidMessage(f"{field} {value!r}: expected true or false")
    return value


def _finished_crawl(recorded: RecordSnapshot) -> FinishedCrawl:
    """Return what the record says of a crawl, as the packer needs it."""
    crawl, store, domain = recorded.record, context().store, recorded.record.domain
    start = recorded.entries.get(page_id_of(canonical_key(crawl.start_url)))
    left_out = (
        find_left_out(store, domain, list_ids(store, domain), recorded.entries, recorded.closed)
        if recorded.closed
        else ()
    )
    try:
        packed_id = read_manifest(store, domain).crawl_id
    except PackError:
        began = None
    else:
        packed = (crawl.started for crawl in list_crawls(store, domain) if crawl.packed or crawl.id == packed_id)
        began = max(packed, default=None)
    return FinishedCrawl(
        id=crawl.id,
        start_url=crawl.start_url,
        began=crawl.started,
        start_page_failed=start is not None and start.state == "failed",
        reached_limit=recorded.cut,
        page_ids=recorded,
        unfollowed_page_ids=[
            each.page_id
            for each in recorded.failed
            if each.links or may_be_page(store, content_key(domain, each.page_id))
        ],
        left_out_page_ids=left_out,
        # When the latest crawl began whose pages the present pack has; None without a pack or its crawl.
        packed_crawl_began=began,
    )


def _announce(result: PackResult) -> None:
    """Log the result, and publish an `update` event unless one was published for this version.

    A packer may have died after it wrote the pack: its message comes back, and then nothing has changed.
    """
    logger.info("Pack of %s: %s", result.domain, result)
    if result.written:
        PACKS_BUILT.add(result.kind)
        PACK_SECONDS.add(result.kind, amount=result.seconds)
        PACK_BYTES.add(result.kind, amount=result.size)
    process = context()
    if result.generation and not is_announced(process.store, result.domain, result.sha256):
        publish_events([pack_written(result)], event_message("update", result.as_event()))
        note_announced(process.store, result.domain, result.sha256)
