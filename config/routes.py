"""The routes of all messages: message type -> task -> queue -> retry policy."""

from __future__ import annotations

from dataclasses import dataclass

#: The namespace of the site group: its exchange, the prefix of its queues.
SITE = "site"

#: The queues of the `site` group, in the order of a page's life.
INDEX, CRAWL, PAGE = "site.index", "site.crawl", "site.page"
TIMER, TICK, PACK = "site.timer", "site.tick", "site.pack"

#: Queues whose messages wait while the store is unavailable. A crawl waits, too, to keep unindexed pages few.
STORE_QUEUES = (INDEX, CRAWL, PAGE, PACK)

#: Messages that a worker prefetches for each pool process and queue: enough to hide a round trip, no more.
PREFETCH_MULTIPLIER = 3


@dataclass(frozen=True, slots=True)
class Route:
    """The queue, the task and the retry policy of one message type.

    `type` is the `type` of the envelope and its routing key on its exchange; `task` is the name of the Celery task.
    `time_limit` and `soft_time_limit` are seconds of one run. With `shares_process`, a pool process runs several
    messages at the same time.
    """

    type: str
    task: str
    queue: str
    policy: str = "delay_queues"
    time_limit: int = 120
    shares_process: bool = False

    @property
    def soft_time_limit(self) -> int:
        """Seconds after which an exception is raised in the task; at `time_limit` its process is killed."""
        return self.time_limit - 10


ROUTES: tuple[Route, ...] = (
    # While the store hangs, a page's task waits for one request, and for another one that tries the store.
    Route("index+crawl", "site.index_and_crawl", INDEX),
    Route("index", "site.index", INDEX, time_limit=145),
    Route("crawl", "site.crawl", CRAWL, time_limit=145),
    Route("page", "site.page", PAGE, time_limit=145, shares_process=True),
    # Not in the packer's queue: until it has run, the crawl counts among those that share the admission. A record of
    # 20,000 URLs takes a second.
    Route("end_crawl", "site.end_crawl", INDEX, time_limit=145),
    Route("start_timer", "site.start_timer", TIMER),
    Route("reset_timer", "site.reset_timer", TIMER),
    # The next tick comes in a second: a tick is neither retried nor dead-lettered, and expires in its queue.
    Route("tick", "site.tick", TICK, policy="drop", time_limit=30),
    Route("notify", "site.notify", TIMER),
    Route("watch", "site.watch", TIMER),
    Route("pack_full", "site.pack_full", PACK, time_limit=1_500),
    Route("pack_incremental", "site.pack_incremental", PACK, time_limit=1_500),
    Route("sweep", "site.sweep", PACK, time_limit=1_500),
    Route("tidy", "site.tidy", PACK, time_limit=1_500),
)

#: The orchestrator's queue of events, none of which may be lost.
ORCHESTRATOR = "orchestrator"

#: Events of the exchange `perennial.events`, and the queues that are bound to it by their types.
SUBSCRIPTIONS: tuple[Route, ...] = (
    Route("update", "orchestrator.update", ORCHESTRATOR, policy="x_death", time_limit=20),
    Route("register", "orchestrator.register", ORCHESTRATOR, policy="x_death", time_limit=20),
    Route("loaded", "orchestrator.loaded", ORCHESTRATOR, policy="x_death", time_limit=20),
    Route("unloaded", "orchestrator.unloaded", ORCHESTRATOR, policy="x_death", time_limit=20),
    Route("failed", "orchestrator.failed", ORCHESTRATOR, policy="x_death", time_limit=20),
)

#: The queues of events for receivers that the operator names. No consumer takes from them: the task `site.notify` gets
#: one event after the other, so that those behind one that fails wait for it.
WEBHOOK, MAIL = "notify.webhook", "notify.mail"

#: The orchestrator's queue of requests, and their types on the exchange `perennial.requests`. It answers them
#: beside its tasks, and forwards `search` and `suggest` to a searcher that has the domain. A late request is worthless.
REQUESTS = "orchestrator.requests"
REQUEST_TYPES = ("search", "suggest", "get_routes")

#: The event that the orchestrator receives by its queue of requests, because a late one is worthless, too.
HEARTBEAT = "heartbeat"

#: Request types of a searcher's own queue, `site.searcher.<id>`, and the event that every searcher subscribes to.
SEARCHER = "site.searcher"
SEARCHER_QUEUE = f"{SEARCHER}.{{}}"
SEARCHER_TYPES = ("search", "suggest", "load", "unload")
REGISTER_AGAIN = "register_again"

#: The exchange of cover art messages, and what its queues' names begin with.
COVER_ART_EXCHANGE = "cover-art-archive"
#: Jobs of an art archive: routing keys of its exchange, and the last parts of the names of its queues and tasks.
ART_JOBS = ("index", "move", "delete")


def art_routes(exchange: str) -> tuple[Route, ...]:
    """Return the routes of an art archive. Its messages are lines of text without a type: their queue is their type."""
    return tuple(
        Route(job, f"coverart.{job}", f"{exchange}.{job}", policy="fixed_ttl", time_limit=300) for job in ART_JOBS
    )


#: The message types of the exchange `site`.
ROUTE_BY_TYPE = {route.type: route for route in ROUTES}
ROUTE_BY_TASK = {route.task: route for route in (*ROUTES, *SUBSCRIPTIONS)}

#: The name of the retry policy of each queue of the site group, also for messages without a known task.
POLICY_OF_QUEUE = {route.queue: route.policy for route in ROUTES}

#: Names of queues in the reference document -> our queues. `HEAD` is its entry queue.
ALIASES = {"HEAD": INDEX, "INDEX": INDEX, "CRAWL": CRAWL, "TIMER": TIMER, "PACK": PACK}


def routes_by_type(queue: str) -> dict[str, Route]:
    """Return type -> route of the messages that a queue may hold: events of a subscriber, or any message of `site`."""
    return {route.type: route for route in SUBSCRIPTIONS if route.queue == queue} or ROUTE_BY_TYPE


def searcher_of(queue: str) -> str | None:
    """Return the id of the searcher whose own queue has this name, or None for any other queue."""
    prefix = f"{SEARCHER}."
    return queue.removeprefix(prefix) if queue.startswith(prefix) else None


def callback_queue(name: str) -> str | None:
    """Return the queue that a `callback_queue` names, by its name or its alias, or None if it is unknown."""
    if name in POLICY_OF_QUEUE:
        return name
    return ALIASES.get(name.upper())
