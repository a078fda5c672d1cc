"""Tasks of the `site` vocabulary, whose messages are checked on publishing and on running; the process's context."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery import current_task
from celery.utils.log import get_task_logger
from redis import Redis, RedisError

from app.broker.errors import ApplicationError, InvalidMessage, Postpone
from app.broker.publishing import Publisher, get_publisher
from app.broker.worker.task import Task
from app.celery import app
from app.crawl.frontier.frontier import Frontier
from app.crawl.page import PageWork
from app.crawl.policy import PolicyOfDomain
from app.crawl.record.removed_sites import is_removed
from app.crawl.recorder import CrawlRecorder
from app.crawl.url_runs import UrlRuns
from app.crawl.urls import CRAWL_URL_FIELDS, SITEMAP, CrawlUrl, parse_message_domain
from app.errors import ObjectDamaged, OutOfScope, StoreError, lacks_descriptors, lacks_space
from app.messages.crawl_messages import as_found, pages_of, parsed_crawl_url, role_of
from app.messages.dead_messages import complete_dead_message
from app.redis_state.circuit_breaker import CircuitBreaker
from app.redis_state.client import PREFIX, get_quick_redis, get_redis
from app.redis_state.outage import WITHOUT_REDIS, without_redis
from app.redis_state.outage import is_outage as is_redis_outage
from app.redis_state.run_id import RedisRunId
from app.sites.crawl_policies import SitePolicies
from app.sites.scheduler import CrawlScheduler
from app.storage.damage import DamageNotes, note_damaged
from app.storage.folder import CHECK_INTERVAL, FolderStore, watch_disk
from app.storage.open import store_of
from app.storage.outage import is_outage, store_breaker
from app.storage.store import ObjectStore
from app.timers.timers import TickWatch, Timers
from app.topology.retry_policies import Budgets, budgets
from config.routes import ROUTE_BY_TYPE
from config.settings import Settings, get_settings

#: Characters of a message that Flower and logs show; the number is Celery's default.
_SHOWN = 1024

#: Seconds between two log lines of one process about an outage of Redis.
_REDIS_LINES_EVERY = 60.0

logger = get_task_logger(__name__)

#: Seconds that a message waits when its process has no file descriptors left; another process may take it.
_WITHOUT_DESCRIPTORS = 5.0

#: Seconds that a message waits when the disk of its process is full; a process on another machine may take it.
_WITHOUT_SPACE = 60.0

#: Message types that are dropped if they are older than the removal of their site. The frontier refuses those of pages.
_DROPPED = frozenset(
    {"index+crawl", "index", "crawl", "end_crawl", "start_timer", "reset_timer", "pack_full", "pack_incremental"}
)


@dataclass(frozen=True, slots=True)
class Context:
    """The settings, connections and stores of one process; a forked child makes its own."""

    settings: Settings
    redis: Redis
    store: ObjectStore
    policies: PolicyOfDomain
    scheduler: CrawlScheduler
    publisher: Publisher
    budgets: Budgets
    frontier: Frontier
    recorder: CrawlRecorder
    url_runs: UrlRuns
    pages: PageWork
    timers: Timers
    ticks: TickWatch
    run_id: RedisRunId
    store_breaker: CircuitBreaker


_contexts: dict[int, Context] = {}

#: The processes whose disk is watched.
_watched: set[int] = set()


def context() -> Context:
    """Return this process's context, made on the first call."""
    pid = os.getpid()
    if pid not in _contexts:
        settings = get_settings()
        redis = get_redis(settings.redis)
        store = store_of(settings)
        store.on_damage = DamageNotes(redis).add
        frontier = Frontier(redis)
        policies = SitePolicies(store, settings)
        recorder = CrawlRecorder(frontier, store, policies)
        url_runs = UrlRuns(store, settings=settings, redis=redis, policies=policies)
        made = Context(
            settings=settings,
            redis=redis,
            store=store,
            policies=policies,
            scheduler=CrawlScheduler(store),
            publisher=get_publisher(settings.broker),
            budgets=budgets(settings),
            frontier=frontier,
            recorder=recorder,
            url_runs=url_runs,
            pages=PageWork(frontier, recorder, url_runs, settings),
            timers=Timers(redis),
            ticks=TickWatch(redis),
            run_id=RedisRunId(redis),
            store_breaker=store_breaker(redis),
        )
        return _contexts.setdefault(pid, made)
    return _contexts[pid]


def is_due(mark: str, every: float) -> bool:
    """Return whether no process called this with the mark within `every` seconds, and note this call."""
    return bool(context().redis.set(f"{PREFIX}{mark}", 1, nx=True, px=round(every * 1_000)))


def crawl_url_of(message: Mapping[str, Any]) -> CrawlUrl:
    """Return the page that a message names, in a worker; raises as `parsed_crawl_url`, OutOfScope by its site."""
    page = parsed_crawl_url(message)
    is_sitemap = role_of(message) == SITEMAP
    if not is_sitemap and not context().policies(page.domain).scope.contains(page.url, any_path=True):
        raise OutOfScope(f"{page.url} is not in the domain {page.domain}")
    return page


def crawl_urls_of(message: Mapping[str, Any]) -> list[CrawlUrl]:
    """Return the pages that a `page` message stands for, in a worker; raises as `crawl_url_of` and `pages_of`."""
    return [as_found(crawl_url_of(each), each) for each in pages_of(message)]


def as_message(args: Any, kwargs: Any, positional: str) -> dict[str, Any]:
    """Return a call's arguments as a message; at most one may be positional."""
    args = tuple(args or ())
    if len(args) > 1:
        raise InvalidMessage(f"expected one positional argument ({positional}), got {len(args)}")
    return {**dict(kwargs or {}), **({positional: args[0]} if args else {})}


class StoreTask(Task):
    """A task that may use the store."""

    abstract = True

    def on_time_limit(self) -> Postpone | None:
        """Postpone a run that met its time limit while the store is away: the disk of a folder store may hang."""
        settings = get_settings()
        breaker = store_breaker(get_quick_redis(settings.redis))
        try:
            pause = breaker.seconds_open()
        except RedisError:
            return None
        return Postpone(pause, "the time limit is over, and the store is unavailable", code="store") if pause else None


class PageTask(StoreTask):
    """A task about one page: `delay("https://Site.GOV/")`, or `domain`, `path` and `scheme` by name."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Check and normalise the page, then publish; raises InvalidUrl before anything is sent."""
        message = as_message(args, kwargs, "url")
        page = parsed_crawl_url(message)
        rest = {name: value for name, value in message.items() if name not in CRAWL_URL_FIELDS}
        fields = {"url": page.url, "domain": page.domain, "crawl_id": page.crawl_id, "depth": page.depth}
        message = {**rest, **{name: value for name, value in fields.items() if value}}
        if not rest:  # As Flower shows it. Celery's own conversion takes 100 us, since it is for objects of any kind.
            options = {"argsrepr": "()", "kwargsrepr": repr(message)[:_SHOWN], **options}
        return super().apply_async((), message, **options)

    def on_dead_letter(self, args: Any, kwargs: Any) -> None:
        """Complete a dead page's message in the frontier: see `complete_dead_message`."""
        complete_dead_message(self.name, as_message(args, kwargs, "url"), get_settings())


class DomainTask(StoreTask):
    """A task about a whole domain: `delay("site.gov")`, or by name."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Check and normalise the domain, then publish; raises InvalidUrl before anything is sent."""
        message = as_message(args, kwargs, "domain")
        return super().apply_async((), {**message, "domain": parse_message_domain(message)}, **options)


class EndCrawlTask(DomainTask):
    """A task about a whole crawl: `domain` and `crawl_id`."""

    abstract = True

    def on_dead_letter(self, args: Any, kwargs: Any) -> None:
        """Abandon a crawl whose end cannot be recorded: see `complete_dead_message`."""
        complete_dead_message(self.name, as_message(args, kwargs, "domain"), get_settings())


def task(kind: str, base: type[Task], *, bind: bool = False) -> Callable[[Callable[..., None]], Any]:
    """Return the decorator that registers the task of a message type under the name and limits of its route."""
    route = ROUTE_BY_TYPE[kind]
    limits = {"time_limit": route.time_limit, "soft_time_limit": route.soft_time_limit}
    options = {**limits, "shares_process": route.shares_process}

    def decorate(run: Callable[..., None]) -> Any:
        @functools.wraps(run)
        def run_or_postpone(*args: Any, **kwargs: Any) -> None:
            try:
                try:
                    _watch_store()
                    if kind not in _DROPPED or not _is_of_removed_site(kind, kwargs):
                        run(*args, **kwargs)
                except (ApplicationError, OSError) as error:
                    if lacks_descriptors(error):
                        raise Postpone(
                            _WITHOUT_DESCRIPTORS, f"no file descriptors are left here: {error}", code="descriptors"
                        ) from error
                    if isinstance(error, StoreError):
                        _raise_postpone_in_outage(error)
                    elif lacks_space(error):
                        logger.warning("The disk is full here, %s again in %g s: %s", kind, _WITHOUT_SPACE, error)
                        raise Postpone(_WITHOUT_SPACE, f"the disk is full here: {error}", code="disk-full") from error
                    raise
            except RedisError as error:
                if not is_redis_outage(error):
                    raise
                _log_redis_outage(error)
                raise without_redis(error) from error

        return app.task(run_or_postpone, name=route.task, base=base, bind=bind, **options)

    return decorate


def _is_of_removed_site(kind: str, message: Mapping[str, Any]) -> bool:
    """Return whether a message was published before its site was removed; the task refuses an invalid one."""
    try:
        domain = parse_message_domain(message)
    except InvalidMessage:
        return False
    properties = current_task.request.properties if current_task else None
    removed = is_removed(context().store, domain, (properties or {}).get("timestamp"), now=time.time())
    if removed:
        logger.info("%s of %s dropped: the site was removed after the message was published", kind, domain)
    return removed


def _watch_store() -> None:
    """Begin to watch the disk of a folder store, once in each process that runs tasks."""
    if os.getpid() in _watched:
        return
    process = context()
    _watched.add(os.getpid())
    if isinstance(process.store, FolderStore):
        watch_disk(process.store, partial(_note_hang, process.store_breaker))


def _note_hang(breaker: CircuitBreaker, seconds: float) -> None:
    """Open the store's circuit breaker, and keep it open until after the next check."""
    reason = f"the disk of the store has not answered for {seconds:.0f} s"
    try:
        _count_store_failure(breaker, reason, retry_after=3 * CHECK_INTERVAL)
    except RedisError as error:
        logger.warning("Circuit breaker of the store not opened, %s: %s", reason, error)


def _count_store_failure(breaker: CircuitBreaker, reason: str, *, retry_after: float | None = None) -> float:
    """Count a failure of the store; log it if it opened the circuit breaker. Return the seconds that this is open."""
    seconds, opened = breaker.fail(reason=reason, retry_after=retry_after)
    if opened:
        logger.warning("Circuit breaker of the store opened: %s", reason)
    return seconds


def _raise_postpone_in_outage(error: StoreError) -> None:
    """Raise Postpone, and open the store's circuit breaker, if the store is away: it is no fault of the message."""
    process = context()
    if isinstance(error, ObjectDamaged):
        note_damaged(process.store, error)
        return
    pause = process.store_breaker.seconds_open()
    if not pause and is_outage(process.store, error):
        pause = _count_store_failure(process.store_breaker, str(error))
    if pause:
        raise Postpone(pause, f"the store is unavailable: {error}", code="store") from error


#: Monotonic seconds before which this process logs no further line about an outage of Redis.
_next_redis_line = 0.0


def _log_redis_outage(error: RedisError) -> None:
    """Log why messages are postponed, once a minute: each of them meets the same error."""
    global _next_redis_line
    if time.monotonic() >= _next_redis_line:
        _next_redis_line = time.monotonic() + _REDIS_LINES_EVERY
        logger.warning("Redis is unavailable, messages are postponed for %g s: %s", WITHOUT_REDIS, error)
