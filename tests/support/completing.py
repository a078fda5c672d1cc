"""Enter and complete the message of a page as a worker does, without a request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import Completed, Completion, Entered, FrontierUrl, Host, MessageKind
from app.crawl.parse.classify import FetchResult
from app.crawl.policy import CrawlPolicy
from app.crawl.robots import RobotsRules
from app.crawl.url_runs import SiteClients, UrlRun
from app.crawl.urls import CrawlUrl
from tasks.base import Context


def run_of(process: Context, target: CrawlUrl, result: FetchResult, *, policy: CrawlPolicy | None = None) -> UrlRun:
    """Return the run of a page that has this result."""
    policy = policy or process.policies(target.domain)
    client = SiteClients(process.settings).of(policy.request)
    rules = RobotsRules.parse("", user_agent=policy.request.user_agent)
    run = UrlRun(target=target, policy=policy, client=client, rules=rules, host=Host(target.domain, 0, 2))
    return replace(run, result=result)


def complete_page(
    process: Context, target: CrawlUrl, result: FetchResult, *, policy: CrawlPolicy | None = None
) -> Completed:
    """Complete a page that has this result; return what its crawl admits."""
    run = run_of(process, target, result, policy=policy)
    return process.pages._complete([process.pages._with_links(run)])


def enter_one(frontier: Frontier, crawl_id: str, domain: str, link: FrontierUrl, host: Host, **options: Any) -> Entered:
    """Begin the run of a message of one page."""
    [entered] = frontier.enter(crawl_id, domain, [link], host, **options)
    return entered


def complete_one(
    frontier: Frontier,
    crawl_id: str,
    kind: MessageKind,
    key: str,
    *,
    host: Host,
    dead: bool = False,
    max_pages: int = 0,
    **fields: Any,
) -> Completed:
    """Complete a message of one page."""
    completion = Completion(kind=kind, key=key, state="x" if dead else "d", **fields)
    return frontier.complete(crawl_id, [completion], host=host, max_pages=max_pages)
