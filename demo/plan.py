"""What the demo is going to do: which site, with which settings, and what to say of them beforehand."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from app.crawl.fetch import Fetcher
from app.crawl.robots import RobotsRules, fetch_robots
from app.crawl.urls import Target, parse_target, resolve
from app.errors import DemoFailed, FetchError
from app.http.addresses import is_public
from app.services import ports
from config.settings import Settings

#: Seconds of quiet before the pack, for the demo's own site and for a site of the user's.
OWN_TIMER, SITE_TIMER = 3.0, 5.0
#: Retries of the demo's own site: the first delay in ms, chosen off the ladder of postponements; and how many.
RETRY_TIMEOUT_MS, RETRY_MAX = 600, 2

_MAX_HOPS = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """`environment` makes processes run with `settings`; `query` is empty where the pack is to suggest one."""

    start: Target
    settings: Settings
    environment: dict[str, str]
    remarks: tuple[str, ...]
    query: str = ""


def own_site(given: Settings, home: Path, url: str) -> Plan:
    """Plan for the demo's own site, which is in no hurry to be spared."""
    start = parse_target({"url": url}, scope="exact", max_length=given.max_url_length)
    changes = {
        "host_delay": 0.0,
        "allow_private_hosts": (start.domain,),
        "timer_timeout": OWN_TIMER,
        "retry_timeout_ms": RETRY_TIMEOUT_MS,
        "retry_max": RETRY_MAX,
    }
    remarks = (
        f"For this site of its own the demo allows {start.domain} and sets no delay between requests, a timer of "
        f"{OWN_TIMER:g} s, and {RETRY_MAX} retries, the first after {RETRY_TIMEOUT_MS} ms. "
        "The defaults are slower and stricter.",
    )
    return _plan(start, given, home, changes, remarks, query="temporary file")


def users_site(given: Settings, home: Path, url: str) -> Plan:
    """Plan for a site of the user's: politely, as always, unless it is on this machine.

    Raises:
        InvalidUrl: the URL cannot be crawled.
        DemoFailed: the site cannot be reached, or does not let itself be crawled.
    """
    start = parse_target({"url": url}, scope=given.scope, max_length=given.max_url_length)
    changes, remarks = _address(start.url, given)
    if "timer_timeout" not in given.model_fields_set:
        changes["timer_timeout"] = SITE_TIMER
    plan = _plan(start, given, home, changes, (), query="")
    reached = _reached(start.url, plan.settings)
    start = parse_target({"url": reached}, scope=given.scope, max_length=given.max_url_length)
    delay = plan.settings.host_delay
    pace = f"one request every {delay:g} s" if delay else "no delay between requests"
    remarks += (
        f"The site is packed after {plan.settings.timer_timeout:g} s of quiet; {pace}, unless robots.txt asks more.",
    )
    return _plan(start, given, home, changes, remarks, query="")


def _plan(
    start: Target, given: Settings, home: Path, changes: dict[str, Any], remarks: tuple[str, ...], *, query: str
) -> Plan:
    wanted = {"web_port": given.web_port, "flower_port": given.flower_port}
    free = {name: port for name, port in wanted.items() if port and ports.is_free(port)}
    changes = changes | ports.choose([name for name in wanted if name not in free]) | free
    settings = Settings(data_dir=home, **changes)
    environment = {"PERENNIAL_DATA_DIR": str(home)} | {name.upper(): _text(value) for name, value in changes.items()}
    return Plan(start, settings, environment, remarks + _given(given), query)


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _given(given: Settings) -> tuple[str, ...]:
    names = [name for name in ("broker_url", "redis_url", "store_url") if name in given.model_fields_set]
    return (f"{', '.join(names).upper()} given: used as given.",) if names else ()


def _address(url: str, given: Settings) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the settings that a host which is not public needs: who names it to the demo allows it."""
    parts = urlsplit(url)
    host, port = str(parts.hostname), parts.port or {"http": 80, "https": 443}[parts.scheme]
    try:
        found = {ipaddress.ip_address(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise DemoFailed(f"{url} cannot be reached: {host} has no address ({error})") from error
    if all(map(is_public, found)):
        return {}, ()
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    changes: dict[str, Any] = {"allow_private_hosts": (*given.allow_private_hosts, name)}
    if all(address.is_loopback for address in found):
        changes["host_delay"] = 0.0
    return changes, (f"{name} is not public; you named it, so it is allowed.",)


def _reached(url: str, settings: Settings) -> str:
    """Return where a start URL leads to, once it was seen to answer; raises DemoFailed saying why it does not."""
    fetcher = Fetcher.of(settings)
    try:
        for _ in range(_MAX_HOPS):
            _check_robots(url, fetcher, settings)
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


def _check_robots(url: str, fetcher: Fetcher, settings: Settings) -> None:
    text = fetch_robots(url, fetcher)
    rules = RobotsRules.parse(text, user_agent=settings.user_agent, crawl_delay_max=settings.crawl_delay_max)
    if not rules.allows(url):
        raise DemoFailed(f"robots.txt disallows {url}: there is nothing to crawl")
