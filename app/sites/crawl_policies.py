"""From sites to crawl policies: each process reads a site's object again after a few seconds."""

from __future__ import annotations

import base64
import time
from collections.abc import Collection, Mapping

import ada_url

from app.crawl.path_rules import ALL_PATHS, PathRules
from app.crawl.policy import CrawlPolicy, RequestOptions
from app.crawl.record.crawls import CrawlSettings
from app.crawl.record.reasons import Reason
from app.crawl.traps import MAX_DEPTH, TrapLimits
from app.crawl.urls import MAX_REPEATED_SEGMENTS, Scope
from app.errors import SecretMissing
from app.sites.site import Site
from app.sites.stored import read_site
from app.storage.store import ObjectStore
from config.settings import Settings

#: Seconds after which a changed site holds in all processes.
MAX_AGE = 10.0
#: Domains whose policies a process keeps.
_KEPT = 1_000


class SitePolicies:
    """The policies of domains, with and without a site."""

    def __init__(self, store: ObjectStore, settings: Settings, *, max_age: float = MAX_AGE) -> None:
        self._store = store
        self._settings = settings
        self._max_age = max_age
        self._kept: dict[str, tuple[float, CrawlPolicy]] = {}

    def __call__(self, domain: str) -> CrawlPolicy:
        """Return the policy of a domain, at most `max_age` seconds old; raises StoreError and SecretMissing."""
        expires, policy = self._kept.get(domain, (0.0, None))
        now = time.monotonic()
        if policy is not None and now < expires:
            return policy
        # A crawl of http://site.example:443/ has a domain that no site can have: it is not checked here.
        policy = policy_of(read_site(self._store, domain) or Site.model_construct(domain=domain), self._settings)
        if len(self._kept) >= _KEPT:
            self._kept.clear()
        self._kept[domain] = (now + self._max_age, policy)
        return policy


def policy_of(site: Site, settings: Settings) -> CrawlPolicy:
    """Return the policy of a site. Raises SecretMissing for a secret that SITE_SECRETS does not have."""
    return CrawlPolicy(
        scope=Scope(
            site.domain,
            mode=site.scope,
            rules=PathRules(site.include, site.exclude) if site.include or site.exclude else ALL_PATHS,
            max_repeated_segments=site.max_repeated_segments or MAX_REPEATED_SEGMENTS,
        ),
        settings=CrawlSettings(
            scope=site.scope,
            max_pages=site.max_pages or settings.max_pages,
            max_depth=site.max_depth or MAX_DEPTH,
            host_delay=host_delay_of(site, settings),
            host_concurrency=site.concurrency or settings.host_concurrency,
        ),
        request=_request_of(site, settings),
        traps=trap_limits_of(site),
        seeds=site.start_urls,
        blocked=frozenset(site.blocked),
        max_page_interval=site.max_page_interval,
    )


def host_delay_of(site: Site, settings: Settings) -> float:
    """Return the seconds between two requests to a site, whatever its robots.txt demands."""
    return settings.host_delay if site.delay is None else site.delay


def trap_limits_of(site: Site) -> TrapLimits:
    """Return the budgets against traps of a site."""
    shared = TrapLimits()
    return TrapLimits(
        query_variants=site.max_query_variants or shared.query_variants,
        pattern_pages=site.max_pattern_pages or shared.pattern_pages,
        identical_texts=site.max_identical_texts or shared.identical_texts,
        redirects=site.max_redirects or shared.redirects,
    )


def spent_budgets(site: Site, settings: Settings, reasons: Collection[str]) -> dict[str, int]:
    """Return the budgets of a site that stopped URLs, by these reason codes: the value of each of its fields."""
    traps = trap_limits_of(site)
    budgets = {
        Reason.MAX_PAGES: ("max_pages", site.max_pages or settings.max_pages),
        Reason.MAX_DEPTH: ("max_depth", site.max_depth or MAX_DEPTH),
        Reason.QUERY_VARIANTS: ("max_query_variants", traps.query_variants),
        Reason.PATTERN_PAGES: ("max_pattern_pages", traps.pattern_pages),
        Reason.IDENTICAL_TEXTS: ("max_identical_texts", traps.identical_texts),
        Reason.TOO_MANY_REDIRECTS: ("max_redirects", traps.redirects),
        Reason.REPEATED_SEGMENTS: ("max_repeated_segments", site.max_repeated_segments or MAX_REPEATED_SEGMENTS),
    }
    return {field: value for reason, (field, value) in budgets.items() if reason in reasons}


def _request_of(site: Site, settings: Settings) -> RequestOptions:
    named = [*site.headers.values(), *site.cookies.values(), *filter(None, [site.proxy_login])]
    secrets = settings.secrets_of_sites() if named else {}
    headers = {name: _secret(secrets, secret, site) for name, secret in site.headers.items()}
    if site.cookies:
        pairs = (f"{name}={_secret(secrets, secret, site)}" for name, secret in site.cookies.items())
        headers["Cookie"] = "; ".join(pairs)
    login = _secret(secrets, site.proxy_login, site) if site.proxy_login else ""
    return RequestOptions(
        user_agent=f"{settings.user_agent} {site.user_agent_suffix}".rstrip(),
        headers=tuple(headers.items()),
        # Without secrets, sites with the same options share connections.
        origins=frozenset(ada_url.URL(url).origin for url in site.seeds) if headers else frozenset(),
        proxy=site.proxy,
        proxy_login=f"Basic {base64.b64encode(login.encode()).decode()}" if login else "",
        ca_file=site.ca_file,
    )


def _secret(secrets: Mapping[str, str], name: str, site: Site) -> str:
    if name not in secrets:
        raise SecretMissing(f"site {site.domain}: SITE_SECRETS has no secret {name!r}")
    return secrets[name]
