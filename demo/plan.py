"""Plan a demo: which site, with which settings, and what to print about both beforehand."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from app.crawl.robots import RobotsRules, fetch_robots
from app.crawl.urls import CrawlUrl, parse_crawl_url, resolve
from app.errors import DemoFailed, FetchError
from app.http.addresses import is_public
from app.http.fetcher import Fetcher
from app.private_services import ports
from config.checks import host_and_port
from config.settings import Settings

#: Seconds without a new page before the pack, for the demo's own site and for the user's site.
OWN_TIMER, SITE_TIMER = 3.0, 5.0
#: First retry delay in ms, one that no postponement uses, and number of retries on the demo's own site.
RETRY_TIMEOUT_MS, RETRY_MAX = 600, 2

_MAX_REDIRECTS = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """The start page and settings of a run. `environment` gives processes the same settings.

    An empty `query` stands for a word of the start page's title.
    """

    start: CrawlUrl
    settings: Settings
    environment: dict[str, str]
    remarks: tuple[str, ...]
    query: str = ""


def plan_own_site(given: Settings, folder: Path, url: str) -> Plan:
    """Plan for the demo's own site, with short delays."""
    start = parse_crawl_url({"url": url})
    changes = {
        "host_delay": 0.0,
        "allow_private_hosts": (start.domain,),
        "timer_timeout": OWN_TIMER,
        "retry_timeout_ms": RETRY_TIMEOUT_MS,
        "retry_max": RETRY_MAX,
    }
    remarks = (
        f"Settings for this site: no delay between requests, a pack after {OWN_TIMER:g} s without a new page, and "
        f"{RETRY_MAX} retries, the first after {RETRY_TIMEOUT_MS} ms. The defaults are slower and stricter.",
    )
    return _plan(start, given, folder, changes, remarks, query="temporary file")


def plan_user_site(given: Settings, folder: Path, url: str) -> Plan:
    """Plan for the user's site, with the usual politeness unless the site is on this machine.

    Raises InvalidUrl for a URL that cannot be crawled, DemoFailed for a site that is unreachable or disallows it.
    """
    start = parse_crawl_url({"url": url})
    changes, remarks = _address_settings(start.url, given)
    if "timer_timeout" not in given.model_fields_set:
        changes["timer_timeout"] = SITE_TIMER
    settings = _plan(start, given, folder, changes, (), query="").settings
    final_url = _follow_redirects(start.url, settings)
    start = parse_crawl_url({"url": final_url})
    delay = settings.host_delay
    pace = f"one request every {delay:g} s" if delay else "no delay between requests"
    remarks += (
        f"Settings for this site: {pace}, unless robots.txt asks for more, and a pack after "
        f"{settings.timer_timeout:g} s without a new page.",
    )
    return _plan(start, given, folder, changes, remarks, query="")


def _plan(
    start: CrawlUrl, given: Settings, folder: Path, changes: dict[str, Any], remarks: tuple[str, ...], *, query: str
) -> Plan:
    """Return the plan, with free ports and the data folder added to the changed settings."""
    wanted = {name: host_and_port(getattr(given, name)) for name in ("web_address", "flower_address")}
    free = {name: port for name, (_, port) in wanted.items() if port and ports.is_free(port)}
    chosen = ports.choose([name for name in wanted if name not in free]) | free
    changes = changes | {name: f"{getattr(given, name).rpartition(':')[0]}:{port}" for name, port in chosen.items()}
    settings = Settings(data_dir=folder, **changes)
    environment = {"PERENNIAL_DATA_DIR": str(folder)}
    for name, value in changes.items():
        environment[name.upper()] = ",".join(value) if isinstance(value, tuple) else str(value)
    urls = [name.upper() for name in ("broker_url", "redis_url", "store_url") if name in given.model_fields_set]
    if urls:
        remarks += (f"Using the given {', '.join(urls)}.",)
    return Plan(start, settings, environment, remarks, query)


def _address_settings(url: str, given: Settings) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the settings that allow a host without public address, because the user named it, and a remark."""
    parts = urlsplit(url)
    host, port = str(parts.hostname), parts.port or {"http": 80, "https": 443}[parts.scheme]
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DemoFailed(f"{url} cannot be reached: {host} has no address ({error})") from error
    addresses = {ipaddress.ip_address(entry[4][0]) for entry in entries}
    if all(map(is_public, addresses)):
        return {}, ()
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    changes: dict[str, Any] = {"allow_private_hosts": (*given.allow_private_hosts, name)}
    if all(address.is_loopback for address in addresses):
        changes["host_delay"] = 0.0
    return changes, (f"{name} has no public address; it is allowed because you named it.",)


def _follow_redirects(url: str, settings: Settings) -> str:
    """Return the URL that finally answers 200; raises DemoFailed with the reason otherwise."""
    fetcher = Fetcher.of(settings)
    try:
        for _ in range(_MAX_REDIRECTS):
            text = fetch_robots(url, fetcher)
            rules = RobotsRules.parse(text, user_agent=settings.user_agent)
            if not rules.allows(url):
                raise DemoFailed(f"robots.txt disallows {url}: there is nothing to crawl")
            response = fetcher.get(url)
            target = resolve(url, response.headers.get("location", ""))
            if not 300 <= response.status < 400 or target is None:
                break
            url = target
    except FetchError as error:
        raise DemoFailed(f"{url} cannot be reached: {error}") from error
    finally:
        fetcher.close()
    if response.status != 200:
        raise DemoFailed(f"{url} answers {response.status}: there is nothing to crawl")
    return url
