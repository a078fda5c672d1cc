"""From stored pages to a pack: pack_full, pack_incremental."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery.utils.log import get_task_logger

from app.broker.errors import InvalidMessage
from app.crawl.frontier import LIMIT, Crawl
from app.crawl.urls import canonical_key
from app.envelopes import event
from app.errors import PackError, PackRefused
from app.pack import packer
from app.pack.manifest import read_manifest
from app.pack.packer import PackResult
from app.state.lease import lease
from app.storage.layout import Page, content_key, read_content
from tasks.base import DomainTask, domain_of, task
from tasks.context import context

logger = get_task_logger(__name__)


@task("pack_full", DomainTask)
def pack_full(**message: Any) -> None:
    """Build a pack anew: of the crawl that `crawl_id` names, else of every page stored; `force` overrules refusals."""
    domain, force, here = domain_of(message), _flag(message, "force", default=False), context()
    crawl = here.frontier.crawl(str(message.get("crawl_id") or ""))
    if crawl and not force and here.frontier.state_of(crawl.id, canonical_key(crawl.start))["index dead"]:
        raise PackRefused(f"{domain}: the start page {crawl.start} failed; the pack stays as it is (force overrules)")
    with lease(here.redis, f"pack:{domain}"):
        if crawl and not force and _superseded(crawl):
            logger.warning("%s: a later crawl than %s is packed; brought up to date", domain, crawl.id)
            _announce(packer.pack_incremental(here.store, domain))
            return
        whole = crawl is not None and _whole(crawl)
        result = packer.pack_full(
            here.store,
            domain,
            pages=here.frontier.members(crawl.id) if crawl and whole else None,
            crawl_id=crawl.id if crawl else "",
            began=crawl.began if crawl and whole else None,
            force=force,
        )
        _announce(result)


@task("pack_incremental", DomainTask)
def pack_incremental(**message: Any) -> None:
    """Bring a pack up to date with the pages stored; `deletions` false keeps the rows of pages that are gone."""
    domain, deletions, here = domain_of(message), _flag(message, "deletions", default=True), context()
    with lease(here.redis, f"pack:{domain}"):
        _announce(packer.pack_incremental(here.store, domain, deletions=deletions))


def _flag(message: Mapping[str, Any], field: str, *, default: bool) -> bool:
    value = message.get(field, default)
    if not isinstance(value, bool):
        raise InvalidMessage(f"{field} {value!r}: expected true or false")
    return value


def _whole(crawl: Crawl) -> bool:
    """Tell whether a crawl met all there is: then what it did not meet has vanished from the site.

    It did not where it came to a limit, or where the links of a page that used to be there could not be had. Then the
    pages that were not met are kept.
    """
    here = context()
    cuts = here.frontier.cuts(crawl.id)
    lost = [cut for cut in cuts - {LIMIT} if isinstance(read_content(here.store, content_key(crawl.domain, cut)), Page)]
    if LIMIT in cuts or lost:
        why = "it came to a limit" if LIMIT in cuts else f"{len(lost)} of its pages could not be followed"
        logger.warning("%s: crawl %s is not whole (%s): pages it did not meet are kept", crawl.domain, crawl.id, why)
        return False
    return True


def _superseded(crawl: Crawl) -> bool:
    """Tell whether the present pack is of a later crawl: a retry or a replay must not put an older one over it."""
    here = context()
    try:
        packed = here.frontier.crawl(read_manifest(here.store, crawl.domain).crawl_id)
    except PackError:
        return False
    return packed is not None and packed.began > crawl.began


def _announce(result: PackResult) -> None:
    """Tell of a new pack, as the last act; of none where nothing had changed."""
    logger.info("Pack of %s: %s", result.domain, result)
    if result.written:
        context().publisher.publish([event("update", result.as_event())])
