"""Acts on sites: add, change, pause and resume one, and make sites as a file declares them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from app.crawl.urls import parse_domain
from app.errors import InvalidSite, PreconditionFailed
from app.operations.context import OperatorContext
from app.operations.crawls import set_states
from app.sites.declared import Difference, changed_fields, declared_site
from app.sites.site import Site
from app.sites.stored import add_site, list_sites, read_site, read_start, update_site


def required_site(ops: OperatorContext, domain: str) -> Site:
    """Return a site; raises InvalidSite for a domain that is no site."""
    name = parse_domain(domain)
    site = read_site(ops.store, name)
    if site is None:
        raise InvalidSite(f"{name} is no site: add it with `perennial site add`")
    return site


def site_rows(ops: OperatorContext) -> Iterator[dict[str, Any]]:
    """Yield what a list shows of each site."""
    return (site_row(ops, site) for site in list_sites(ops.store))


def site_row(ops: OperatorContext, site: Site) -> dict[str, Any]:
    """Return the domain, display name, state, schedule, last and next start of a site; times are ISO 8601."""
    start = read_start(ops.store, site.domain)
    following = site.next_start(start.at if start else None)
    return {
        "domain": site.domain,
        "name": site.name or site.domain,
        "state": site.state,
        "schedule": site.schedule,
        "last_start": start.at.isoformat() if start else None,
        "next_start": following.replace(microsecond=0).isoformat() if following else None,
    }


def add(ops: OperatorContext, domain: str, fields: Mapping[str, Any], *, why: str = "") -> Site:
    """Add a site. If it has a schedule, its first crawl starts. Raises InvalidSite, also for a site that exists."""
    site = Site.of(domain, fields)
    with ops.act("site add", site.domain, why=why, fields=sorted(fields)):
        try:
            add_site(ops.store, site)
        except PreconditionFailed:
            raise InvalidSite(f"{site.domain} is a site already: change its settings") from None
    return site


def change(
    ops: OperatorContext, domain: str, fields_of: Callable[[Site], Mapping[str, Any]], *, why: str = ""
) -> tuple[Site, dict[str, tuple[Any, Any]]]:
    """Change the fields that `fields_of` returns for the present site; return the site, and old and new values.

    Workers follow within ten seconds. Raises InvalidSite.
    """
    former = required_site(ops, domain)

    def changed(present: Site) -> Site:
        # Another operator may have changed it since it was read.
        nonlocal former
        former = present
        return present.changed(fields_of(present))

    with ops.act("site set", former.domain, why=why) as act:
        site = _update(ops, former.domain, changed)
        differing = changed_fields(former, site)
        act.details["fields"] = sorted(differing)
    return site, dict(differing)


def pause(ops: OperatorContext, domain: str, *, why: str = "") -> tuple[Site, list[str]]:
    """Pause a site: its crawls and its schedule; return it and the ids of the crawls."""
    return _set_active(ops, domain, active=False, why=why)


def resume(ops: OperatorContext, domain: str, *, why: str = "") -> tuple[Site, list[str]]:
    """Resume a paused site and its crawls; return it and the ids of the crawls.

    A crawl that was due meanwhile starts once.
    """
    return _set_active(ops, domain, active=True, why=why)


def apply(
    ops: OperatorContext, differences: Sequence[Difference], declared: Mapping[str, Any], *, why: str = ""
) -> None:
    """Add and change sites as declared; those that are to be removed are left."""
    for each in differences:
        if each.act != "remove":
            with ops.act(f"site {each.act}", each.domain, why=why, fields=sorted(dict(each.fields))):
                update_site(ops.store, each.domain, partial(declared_site, each.domain, declared[each.domain]))


def _set_active(ops: OperatorContext, domain: str, *, active: bool, why: str) -> tuple[Site, list[str]]:
    name = required_site(ops, domain).domain
    with ops.act("site resume" if active else "site pause", name, why=why) as act:
        site = _update(ops, name, lambda former: former.changed({"state": "active" if active else "paused"}))
        crawls = set_states(ops, name, "running" if active else "paused")
        act.details["crawls"] = crawls
    return site, crawls


def _update(ops: OperatorContext, domain: str, changed: Callable[[Site], Site]) -> Site:
    def update(former: Site | None) -> Site:
        if former is None:
            raise InvalidSite(f"{domain} is no site: add it with `perennial site add`")
        return changed(former)

    return update_site(ops.store, domain, update)
