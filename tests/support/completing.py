"""Complete the message of a page as a worker does, without a request."""

from __future__ import annotations

from dataclasses import replace

from app.crawl.fetch.clients import SiteClients
from app.crawl.fetch.robots import RobotsRules
from app.crawl.frontier.values import Completed, Host, frontier_key
from app.crawl.policy import CrawlPolicy
from app.crawl.read.classify import FetchResult
from app.crawl.steps import UrlRun
from app.crawl.urls import Target
from tasks.base import Context


def run_of(
    process: Context, target: Target, result: FetchResult, *, member: bool = False, policy: CrawlPolicy | None = None
) -> UrlRun:
    """Return the run of a page that has this result."""
    policy = policy or process.policies(target.domain)
    client = SiteClients(process.settings).of(policy.request)
    rules = RobotsRules.parse("", user_agent=policy.request.user_agent)
    host, key = Host(target.domain, 0, 2), frontier_key(target.canonical_key, target.role)
    run = UrlRun(target=target, key=key, policy=policy, client=client, rules=rules, host=host)
    return replace(run, result=result, member=member)


def complete_page(
    process: Context, target: Target, result: FetchResult, *, member: bool = False, policy: CrawlPolicy | None = None
) -> Completed:
    """Complete a page that has this result; return what its crawl admits."""
    return process.pages.complete(run_of(process, target, result, member=member, policy=policy))
