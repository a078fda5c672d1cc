"""Messages of pages and crawls: what they name, and the messages of admitted pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.broker.errors import InvalidMessage
from app.broker.outgoing import Outgoing
from app.crawl.frontier.values import Admitted, FrontierUrl
from app.crawl.urls import SITEMAP, SOFT_404_CHECK, CrawlUrl, parse_crawl_url, robots_url
from app.messages.envelopes import delayed_message
from app.topology.retry_policies import Budgets


def role_of(message: Mapping[str, Any]) -> str:
    """Return the role of a message's URL: `sitemap`, `soft-404-check`, or an empty text for a page."""
    role = str(message.get("role") or "")
    return role if role in (SITEMAP, SOFT_404_CHECK) else ""


def parsed_crawl_url(message: Mapping[str, Any]) -> CrawlUrl:
    """Return the page that a message names; raises InvalidMessage or InvalidUrl, and OutOfScope for another host.

    Hosts below the domain pass: whether its site has them is decided in a worker.
    """
    return parse_crawl_url(message, any_host=role_of(message) == SITEMAP)


def pages_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of single pages that a message stands for: of its own one and of those in `more`."""
    first, more = dict(message), message.get("more") or []
    first.pop("more", None)
    if not isinstance(more, list) or not all(isinstance(each, dict) for each in more):
        raise InvalidMessage(f"more {str(more)[:100]!r}: expected a list of objects")
    common = {name: first[name] for name in ("domain", "crawl_id") if name in first}
    return [first, *({**each, **common} for each in more)]


def as_found(target: CrawlUrl, message: Mapping[str, Any]) -> CrawlUrl:
    """Return the page of a message with what the message says of how its crawl found it."""
    return replace(
        target,
        referrer=str(message.get("referrer") or ""),
        redirects=message["redirects"] if isinstance(message.get("redirects"), int) else 0,
        role=role_of(message),
    )


def crawl_id_of(message: Mapping[str, Any]) -> str:
    """Return the crawl that a message names; raises InvalidMessage."""
    found = message.get("crawl_id")
    if not found or not isinstance(found, str):
        raise InvalidMessage(f"crawl_id {found!r}: expected the id of a crawl")
    return found


def page_messages(domain: str, crawl_id: str, admitted: Admitted, budgets: Budgets) -> list[Outgoing]:
    """Return the messages of admitted pages, for a delay queue if their host needs a rest.

    Pages under one robots.txt share messages, each `page` with `more`.
    """
    alone, shared = [], dict[str, list[FrontierUrl]]()
    for each in admitted.urls:
        if each.kind == "page":
            shared.setdefault(robots_url(each.url), []).append(each)
        else:
            alone.append([each])
    parts = [
        pages[at : at + admitted.batch] for pages in shared.values() for at in range(0, len(pages), admitted.batch)
    ]
    return [
        delayed_message(
            first.kind,
            budgets,
            admitted.wait,
            **_fields_of(first),
            domain=domain,
            crawl_id=crawl_id,
            **({"more": [_fields_of(each) for each in more]} if more else {}),
        )
        for first, *more in alone + parts
    ]


def _fields_of(page: FrontierUrl) -> dict[str, Any]:
    """Return the fields of a message that name a page."""
    fields = {"url": page.url, "depth": page.depth}
    others = {"referrer": page.referrer, "redirects": page.redirects, "role": page.role}
    return fields | {name: value for name, value in others.items() if value}
