"""The contract in one table: message type -> task -> queue -> retry policy."""

from __future__ import annotations

from dataclasses import dataclass

#: The namespace of the site group: its exchange, the prefix of its queues.
SITE = "site"

#: The queues of the `site` group, in the order of a page's life.
INDEX, CRAWL, TIMER, TICK, PACK = "site.index", "site.crawl", "site.timer", "site.tick", "site.pack"


@dataclass(frozen=True, slots=True)
class Route:
    """Where one message type goes and what answers its failures.

    `type` is the plain message's `type` and its routing key on its exchange; `task` is the Celery name.
    `time_limit` and `soft_time_limit` are seconds of one run. `retry_timeout_ms` and `retry_max` override the settings
    RETRY_TIMEOUT_MS and RETRY_MAX where a route needs other defaults.
    """

    type: str
    task: str
    queue: str
    policy: str = "delay_queues"
    time_limit: int = 120
    retry_timeout_ms: int | None = None
    retry_max: int | None = None

    @property
    def soft_time_limit(self) -> int:
        """Seconds after which the task is asked to end, before it is killed."""
        return self.time_limit - 10


ROUTES: tuple[Route, ...] = (
    Route("index+crawl", "site.index_and_crawl", INDEX),
    Route("index", "site.index", INDEX),
    Route("crawl", "site.crawl", CRAWL),
    Route("start_timer", "site.start_timer", TIMER),
    Route("reset_timer", "site.reset_timer", TIMER),
    # A tick comes again in a second: it is never retried, never buried, and dies in its queue when nobody listens.
    Route("tick", "site.tick", TICK, policy="drop", time_limit=30),
    Route("pack_full", "site.pack_full", PACK, time_limit=1_500),
    Route("pack_incremental", "site.pack_incremental", PACK, time_limit=1_500),
)

#: The client queue of the orchestrator. It holds what must not be missed.
ORCHESTRATOR = "orchestrator"

#: Events that client queues are subscribed to: of `perennial.events`, bound by their type.
SUBSCRIPTIONS: tuple[Route, ...] = (
    Route("update", "orchestrator.update", ORCHESTRATOR, policy="x_death", time_limit=20),
    Route("register", "orchestrator.register", ORCHESTRATOR, policy="x_death", time_limit=20),
    Route("loaded", "orchestrator.loaded", ORCHESTRATOR, policy="x_death", time_limit=20),
    Route("unloaded", "orchestrator.unloaded", ORCHESTRATOR, policy="x_death", time_limit=20),
    Route("failed", "orchestrator.failed", ORCHESTRATOR, policy="x_death", time_limit=20),
)

#: The queue of what is worth nothing when it is late, and the types in it, of `perennial.requests`: answered beside the
#: tasks, by a responder. `search` and `suggest` are passed on to a searcher that has the domain.
REQUESTS = "orchestrator.requests"
REQUEST_TYPES = ("search", "suggest", "get_routes", "heartbeat")

#: What a searcher answers in its own queue, `site.searcher.<id>`, and the event that every searcher listens to.
SEARCHER = "site.searcher"
SEARCHER_TYPES = ("search", "suggest", "load", "unload")
REGISTER_AGAIN = "register_again"

#: Jobs of an art archive: routing keys of its exchange, and the last parts of its queues' names and its tasks'.
ART_JOBS = ("index", "move", "delete")


def art_routes(exchange: str) -> tuple[Route, ...]:
    """Return the routes of an art archive. Its messages are lines of text, and their queue says what they are."""
    return tuple(
        Route(job, f"coverart.{job}", f"{exchange}.{job}", policy="fixed_ttl", time_limit=300) for job in ART_JOBS
    )


#: The vocabulary of the exchange `site`.
ROUTE_BY_TYPE = {route.type: route for route in ROUTES}
ROUTE_BY_TASK = {route.task: route for route in (*ROUTES, *SUBSCRIPTIONS)}

#: The retry policy of each queue of the site group: what answers a message that names no task at all.
POLICY_OF_QUEUE = {route.queue: route.policy for route in ROUTES}

#: Names of queues in the reference document that are aliases of ours. `HEAD` was its front door.
ALIASES = {"HEAD": INDEX, "INDEX": INDEX, "CRAWL": CRAWL, "TIMER": TIMER, "PACK": PACK}


def routes_by_type(queue: str) -> dict[str, Route]:
    """Return type -> route of what a queue may hold: the events of a client queue, or any message of `site`."""
    return {route.type: route for route in SUBSCRIPTIONS if route.queue == queue} or ROUTE_BY_TYPE


def searcher_queue_name(searcher_id: str) -> str:
    """Return the name of a searcher's own queue."""
    return f"{SEARCHER}.{searcher_id}"


def searcher_of(queue: str) -> str | None:
    """Return the id of the searcher whose own queue has this name, or None for any other queue."""
    prefix = f"{SEARCHER}."
    return queue.removeprefix(prefix) if queue.startswith(prefix) else None


def callback_queue(name: str) -> str | None:
    """Return our queue for a name as it may stand in a `callback_queue`, or None where there is no such queue."""
    if name in POLICY_OF_QUEUE:
        return name
    return ALIASES.get(name.upper())
