"""What must not wait any longer for a message in a dead set: a page, the end of a crawl, a cover art event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from redis import RedisError

from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import MessageKind
from app.crawl.page import complete_dead
from app.messages.crawl_messages import as_found, crawl_id_of, pages_of, parsed_crawl_url
from app.redis_state.client import get_quick_redis
from app.redis_state.outage import is_outage, without_redis
from config.routes import ROUTE_BY_TYPE
from config.settings import Settings

#: The tasks whose messages the frontier counts.
_KINDS: Final[dict[str, MessageKind]] = {"site.page": "page", "site.index": "index", "site.crawl": "crawl"}


def complete_dead_message(
    task: str, message: Mapping[str, Any], settings: Settings, *, event: int | None = None
) -> None:
    """Let nothing wait for a message of a task that went to a dead set; `event` is that of its cover art job.

    A dead page's message is completed in the frontier, so that it does not hold back its domain's pack forever. The
    page stays in its crawl's pack with what was stored of it before. So do the pages that only its links lead to: they
    are unknown now, not gone. A crawl whose end cannot be recorded is abandoned. An event fails with those that depend
    on it. A repeated call changes nothing.

    Raises InvalidMessage and InvalidUrl, Postpone while Redis does not answer, and the errors of the event's database.
    """
    if kind := _KINDS.get(task):
        with _quick_frontier(settings) as frontier:
            for each in pages_of(message):
                page = as_found(parsed_crawl_url(each), each)
                if page.crawl_id:
                    complete_dead(frontier, page, kind)
    elif task == ROUTE_BY_TYPE["end_crawl"].task:
        with _quick_frontier(settings) as frontier:
            frontier.abandon(crawl_id_of(message))
    elif event:
        # Imported here because every worker imports this module, and few need psycopg: 0.15 s of CPU.
        from app.coverart.event_run import ArtEventRun

        ArtEventRun.of(event, settings).fail("Its message was dead-lettered: see perennial dead list")


@contextmanager
def _quick_frontier(settings: Settings) -> Iterator[Frontier]:
    """Give a frontier to a worker's event loop, which waits for Redis here: it gives up soon, and raises Postpone."""
    try:
        yield Frontier(get_quick_redis(settings.redis))
    except RedisError as error:
        if not is_outage(error):
            raise
        raise without_redis(error) from error
