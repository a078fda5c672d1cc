"""A corner of the running services for a test of its own: a vhost, settings, the environment of a process."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import requests
from redis import Redis

from app.errors import ServicesError
from app.private_services import Urls
from app.storage.open import create_store
from config.settings import Settings


@contextmanager
def own_vhost(services: Urls) -> Iterator[str]:
    """Make a vhost for the block and yield its AMQP URL."""
    vhost = f"perennial-test-{secrets.token_hex(6)}"
    user = urlsplit(services.broker_url).username or "guest"
    with _api() as api:
        _must(api.put(_address(services, "vhosts", vhost), timeout=30))
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        _must(api.put(_address(services, "permissions", vhost, user), json=everything, timeout=30))
        try:
            yield urlsplit(services.broker_url)._replace(path=f"/{vhost}").geturl()
        finally:
            _must(api.delete(_address(services, "vhosts", vhost), timeout=30))


@contextmanager
def own_settings(services: Urls, folder: Path) -> Iterator[Settings]:
    """Yield settings with a folder, a vhost and an empty Redis for the block, as a test that shares none has them."""
    with own_vhost(services) as broker_url, Redis.from_url(services.redis_url) as database:
        database.flushdb()
        yield settings_for(folder, broker_url, services.redis_url, services.broker_api_url)
        database.flushdb()


def settings_for(data_dir: Path, broker_url: str, redis_url: str, broker_api_url: str) -> Settings:
    """Return settings in which nothing waits for long and no crawl makes a soft-404 check, with a new store."""
    settings = Settings(
        data_dir=data_dir,
        broker_url=broker_url,
        redis_url=redis_url,
        broker_api_url=broker_api_url,
        timer_timeout=0.5,
        host_delay=0,
        soft_404_check=False,
        allow_private_hosts=("127.0.0.0/8",),
    )
    create_store(settings.store)
    return settings


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the environment of a process that is to run with `settings`."""
    ours = {
        "PERENNIAL_DATA_DIR": str(settings.data_dir),
        "BROKER_URL": settings.broker,
        "REDIS_URL": settings.redis,
        "BROKER_API_URL": settings.broker_api,
        "TIMER_TIMEOUT": str(settings.timer_timeout),
        "HOST_DELAY": str(settings.host_delay),
        "SOFT_404_CHECK": str(settings.soft_404_check),
        "ALLOW_PRIVATE_HOSTS": ",".join(settings.allow_private_hosts),
    }
    return {**os.environ, **ours}


@contextmanager
def _api() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        # The API closes a connection after 5 s without a request, which may be the moment of the next one.
        session.headers["Connection"] = "close"
        yield session


def _address(services: Urls, *parts: str) -> str:
    return f"{services.broker_api_url.rstrip('/')}/" + "/".join(quote(part, safe="") for part in parts)


def _must(answer: requests.Response) -> None:
    if not answer.ok:
        raise ServicesError(
            f"the management API answered {answer.status_code} to {answer.request.method}: {answer.text[:200]}"
        )
