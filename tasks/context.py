"""What a process of ours works with, put together once: settings, connections, stores."""

from __future__ import annotations

import os
from dataclasses import dataclass

from redis import Redis

from app.broker.publishing import Publisher, get_publisher
from app.crawl.crawler import Crawler
from app.crawl.frontier import Frontier
from app.state.client import get_raw_redis, get_redis
from app.storage.open import open_store
from app.storage.store import ObjectStore
from app.timers.timers import Timers
from app.topology.policies import Budgets, budgets
from config.settings import Settings, get_settings


@dataclass(frozen=True, slots=True)
class Context:
    """The process's connections. Nothing here is shared over a fork."""

    settings: Settings
    redis: Redis
    store: ObjectStore
    publisher: Publisher
    budgets: Budgets
    frontier: Frontier
    timers: Timers
    crawler: Crawler


_contexts: dict[int, Context] = {}


def context() -> Context:
    """Return this process's context; a forked child makes its own."""
    return _contexts.get(os.getpid()) or _contexts.setdefault(os.getpid(), _build(get_settings()))


def _build(settings: Settings) -> Context:
    redis = get_redis(settings.redis)
    store = open_store(settings.store, endpoint_url=settings.s3_endpoint_url)
    return Context(
        settings=settings,
        redis=redis,
        store=store,
        publisher=get_publisher(settings.broker, timeout=settings.publish_timeout),
        budgets=budgets(settings),
        frontier=Frontier(redis, ttl=settings.crawl_ttl),
        timers=Timers(redis),
        crawler=Crawler(settings=settings, redis=redis, raw_redis=get_raw_redis(settings.redis), store=store),
    )
