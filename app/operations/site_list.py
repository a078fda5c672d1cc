"""The list of all sites: those that are declared, crawled or packed, with trouble first, read one page at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from app.cluster.protocol import PackRoute, Routes
from app.crawl.record.crawls import latest_crawl
from app.crawl.record.keys import CRAWLS_PREFIX
from app.crawl.urls import parse_domain
from app.errors import InvalidUrl, ObjectDamaged
from app.operations.context import OperatorContext
from app.operations.sites import site_row
from app.pack.manifest import readable_manifest
from app.sites.stored import SITES_PREFIX, read_site
from app.storage.damage import DamageNotes
from app.storage.layout import MANIFEST_PREFIX, MANIFEST_SUFFIX

#: Sites of one page of the list.
PER_PAGE: Final = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSite:
    """A site in the list. Times are ISO 8601; a figure that is not recorded is null.

    `state` is `active` or `paused`, or empty for a domain that is only crawled or packed. `crawl_state` is that of the
    latest crawl. `troubles` says what is wrong, in words.
    """

    domain: str
    name: str
    state: str
    schedule: str
    last_start: str | None
    next_start: str | None
    crawl_state: str | None
    crawl_started: str | None
    pages: int | None
    dead: int | None
    pack_pages: int | None
    pack_built: str | None
    generation: int | None
    troubles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SitesPage:
    """One page of the list: the numbers of all sites, of those that match, and of those in trouble among these."""

    total: int
    matching: int
    troubled: int
    sites: tuple[ListedSite, ...]


def list_page(
    ops: OperatorContext, *, text: str = "", offset: int = 0, limit: int = PER_PAGE, routes: Routes | None = None
) -> SitesPage:
    """Return a page of the sites whose domain contains `text`, those in trouble first, then by domain.

    Objects are read of the sites of the page only; of all others, no more than their names are listed. `routes` say
    where packs are served, None while that is unknown.
    """
    declared = _names((stat.key for stat in ops.store.list(SITES_PREFIX)), SITES_PREFIX)
    crawled = set(ops.store.list_folders(CRAWLS_PREFIX))
    packed = _names((stat.key for stat in ops.store.list(MANIFEST_PREFIX)), MANIFEST_PREFIX)
    names = declared | crawled | packed
    troubles = _troubles(ops, names, crawled - packed, routes)
    wanted = part_of_domain(text)
    matching = sorted((name for name in names if wanted in name), key=lambda name: (not troubles.get(name), name))
    shown = matching[offset : offset + limit]
    rows = tuple(_row(ops, name, troubles.get(name, ()), is_packed=name in packed) for name in shown)
    # Rows say more than can be said of all sites at once: one was just found to be damaged.
    troubled = {name for name in matching if troubles.get(name)} | {row.domain for row in rows if row.troubles}
    return SitesPage(len(names), len(matching), len(troubled), rows)


def part_of_domain(text: str) -> str:
    """Return a typed part of a domain as domains are stored: labels that are not ASCII in the form `xn--`."""
    part = text.strip().lower()
    with suppress(InvalidUrl):
        return part if part.isascii() else parse_domain(part)
    return part


def _names(keys: Iterable[str], prefix: str) -> set[str]:
    found = (key.removeprefix(prefix) for key in keys if key.endswith(MANIFEST_SUFFIX))
    return {name.removesuffix(MANIFEST_SUFFIX) for name in found}


def _troubles(
    ops: OperatorContext, names: Collection[str], without_pack: Collection[str], routes: Routes | None
) -> dict[str, Sequence[str]]:
    """Return what is wrong by domain, as far as it can be said of all sites at once."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for damaged in DamageNotes(ops.redis).present(ops.store):
        found[damaged.domain].append(f"damaged: {damaged.key}")
    active = ops.frontier.active_figures()
    for domain, (state, dead) in active.items():
        if state != "running":
            found[domain].append(f"its crawl is {state}")
        if dead:
            found[domain].append(f"{dead} dead in its crawl")
    for domain in without_pack:
        if domain not in active:
            found[domain].append("crawled, and there is no pack")
    for route in routes.routes if routes else ():
        if text := route_trouble(route):
            found[route.domain].append(text)
    return {domain: tuple(texts) for domain, texts in found.items() if domain in names}


def route_trouble(route: PackRoute) -> str:
    """Return what is wrong with how a pack is served, or an empty text."""
    why = f": {route.unplaced_reason}" if route.unplaced_reason else ""
    if not route.searchers:
        return f"no searcher serves its pack{why}"
    copies = "a copy of its pack is" if route.missing == 1 else f"{route.missing} copies of its pack are"
    return f"{copies} missing{why}" if route.missing else ""


def _row(ops: OperatorContext, domain: str, troubles: Sequence[str], *, is_packed: bool) -> ListedSite:
    own, site = list(troubles), None
    try:
        site = read_site(ops.store, domain)
    except ObjectDamaged as error:
        # From now on it is known of the list as a whole.
        DamageNotes(ops.redis).add(error)
        own.append(f"its settings cannot be read: {error}")
    manifest = readable_manifest(ops.store, domain) if is_packed else None
    plan = site_row(ops, site) if site else {}
    return ListedSite(
        domain=domain,
        name=plan.get("name", domain),
        state=plan.get("state", ""),
        schedule=plan.get("schedule", ""),
        last_start=plan.get("last_start"),
        next_start=plan.get("next_start"),
        **_crawl_figures(ops, domain),
        pack_pages=manifest.pages if manifest else None,
        pack_built=manifest.built_at if manifest else None,
        generation=manifest.generation if manifest else None,
        troubles=tuple(own),
    )


def _crawl_figures(ops: OperatorContext, domain: str) -> dict[str, Any]:
    """Return the figures of the latest crawl: from Redis, or from its record when Redis has forgotten it."""
    progress = ops.frontier.progress(domain)
    if progress.crawl is not None:
        ended = progress.state == "running" and not ops.frontier.is_active(domain)
        return {
            "crawl_state": "done" if ended else progress.state,
            "crawl_started": progress.crawl.started.isoformat(),
            "pages": progress.indexed,
            "dead": progress.dead,
        }
    record = latest_crawl(ops.store, domain)
    return {
        "crawl_state": record.state if record else None,
        "crawl_started": record.started.isoformat() if record else None,
        "pages": record.counts.get("indexed") if record else None,
        "dead": record.counts.get("dead") if record else None,
    }
