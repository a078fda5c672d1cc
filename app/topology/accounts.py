"""Accounts of the broker: one for each kind of process, with the permissions that it needs and no others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.broker.outcomes import outcomes_exchange
from app.topology.queues import events_exchange, queries_exchange, requests_exchange, site_exchange
from config.routes import (
    ART_JOBS,
    COVER_ART_EXCHANGE,
    CRAWL,
    HEARTBEAT,
    INDEX,
    MAIL,
    ORCHESTRATOR,
    PACK,
    PAGE,
    REGISTER_AGAIN,
    REQUESTS,
    SEARCHER,
    TICK,
    TIMER,
    WEBHOOK,
)
from config.settings import Settings

#: RabbitMQ's name for the default exchange, which reaches every queue by its name.
_DEFAULT_EXCHANGE = r"amq\.default"
#: Queues that the broker named: those of replies.
_OWN_QUEUES = r"amq\.gen-.*"
#: Celery's exchanges for remote control, its replies and events.
_CONTROL, _REPLIES, _EVENTS = r"celery\.pidbox", r"reply\.celery\.pidbox", "celeryev"

Patterns = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account by the name of its kind of process; all patterns match whole names of queues and exchanges.

    `configure` is for declaring and deleting, `write` for publishing to an exchange and binding a queue. `read` is for
    consuming, purging and binding to an exchange. Source: RabbitMQ, "Access Control". `events_written` and
    `events_read` are routing keys of the exchange of events. `tags` are for the management API.
    """

    name: str
    configure: Patterns = ()
    write: Patterns = ()
    read: Patterns = ()
    events_written: Patterns = ()
    events_read: Patterns = ()
    tags: str = ""


def _art_worker(name: str, exchange: str) -> Account:
    """Return the account of the worker of an art archive; of one that is not served, it may use no art queue."""
    prefix = re.escape(exchange)
    return _worker(
        name,
        queues=[f"{exchange}.{job}" for job in ART_JOBS] if exchange else (),
        delays=(rf"{prefix}\.delay\..*",) if exchange else (),
        write=(prefix, rf"{prefix}\.(retry|failed)") if exchange else (),
    )


def _worker(
    name: str,
    *,
    queues: Sequence[str],
    delays: Patterns,
    write: Patterns,
    own: Patterns = (),
    events_written: Patterns = (),
) -> Account:
    """Return the account of a Celery worker, whose mailbox begins with its kind: `worker@host.celery.pidbox`.

    A delay queue of an unusual duration is declared when a message needs it; binding it needs all three permissions.
    """
    mailbox = rf"{name}@.*\.{_CONTROL}"
    return Account(
        name=name,
        configure=(*own, *delays, mailbox, _CONTROL, _REPLIES, _EVENTS),
        write=(*write, *delays, re.escape(outcomes_exchange.name), mailbox, _REPLIES, _EVENTS),
        read=(*(re.escape(queue) for queue in queues), *own, *delays, mailbox, _CONTROL),
        events_written=events_written,
    )


_SITE, _EVENTS_EXCHANGE = re.escape(site_exchange.name), re.escape(events_exchange.name)
_REQUESTS_EXCHANGE, _QUERIES_EXCHANGE = re.escape(requests_exchange.name), re.escape(queries_exchange.name)
_DEAD_SET, _SITE_DELAYS = rf"{_SITE}\.dead", rf"{_SITE}\.delay\..*"
_SEARCHERS = rf"{re.escape(SEARCHER)}\..*"

#: The accounts that do not depend on the settings.
_FIXED = (
    _worker(
        "worker",
        queues=(INDEX, CRAWL, PAGE, TIMER, TICK, WEBHOOK, MAIL),
        delays=(_SITE_DELAYS,),
        own=tuple(rf"{re.escape(receiver)}\.lease" for receiver in (WEBHOOK, MAIL)),
        write=(_SITE, _DEAD_SET, _EVENTS_EXCHANGE),
        events_written=(r"crawl\..*", r"site\..*", r"dead_set\..*", r"doctor\..*"),
    ),
    _worker(
        "orchestrator",
        queues=(ORCHESTRATOR, REQUESTS),
        delays=(rf"{ORCHESTRATOR}\.delay\..*",),
        own=(rf"{ORCHESTRATOR}\.lease",),
        write=(rf"{ORCHESTRATOR}\.(error|retry|retry-requeue)", _EVENTS_EXCHANGE, _DEFAULT_EXCHANGE),
        events_written=(REGISTER_AGAIN,),
    ),
    Account(
        name="searcher",
        configure=(_SEARCHERS,),
        write=(_SEARCHERS, _EVENTS_EXCHANGE, _DEFAULT_EXCHANGE),
        read=(_SEARCHERS, _EVENTS_EXCHANGE, _QUERIES_EXCHANGE),
        events_written=("register", HEARTBEAT, "loaded", "unloaded", "failed"),
        events_read=(REGISTER_AGAIN,),
    ),
    Account(name="beat", write=(_SITE,)),
    Account(
        name="flower",
        configure=(_CONTROL, _REPLIES, _EVENTS, rf"{_EVENTS}\..*", rf".*\.{_REPLIES}"),
        write=(_CONTROL, rf"{_EVENTS}\..*", rf".*\.{_REPLIES}"),
        read=(_REPLIES, _EVENTS, rf"{_EVENTS}\..*", rf".*\.{_REPLIES}"),
        tags="monitoring",
    ),
)


def _dead_sets(art: Patterns) -> Patterns:
    """Return the dead sets of all retry policies."""
    return (_DEAD_SET, rf"{ORCHESTRATOR}\.error", *(rf"{exchange}\.failed" for exchange in art))


def _parts_of(dead: Patterns) -> Patterns:
    """Return what else dead sets have: a lease is an exclusive queue; a long set has shards, an index, an exchange."""
    return tuple(rf"{name}\.(lease|index|shards|shard\..*)" for name in dead)


def _packer(settings: Settings, art: Patterns) -> Account:
    """Return the account of the packer. If the settings limit dead letters, it drops the others."""
    packer = _worker(
        "packer",
        queues=(PACK,),
        delays=(_SITE_DELAYS,),
        write=(_SITE, _DEAD_SET, _EVENTS_EXCHANGE),
        events_written=("update", r"pack\..*"),
    )
    if not settings.dead_max_letters:
        return packer
    dead = _dead_sets(art)
    parts = _parts_of(dead)
    return replace(
        packer,
        configure=(*packer.configure, *parts),
        write=(*packer.write, *parts),
        read=(*packer.read, *dead, *parts),
    )


def _web(settings: Settings, art: Patterns) -> Account:
    """Return the account of the web process. For operators it reads and empties dead sets and delay queues, too.

    It has no right to the default exchange, so it reaches neither remote control nor the queues of searchers.
    """
    searches = Account(
        name="web", configure=(_OWN_QUEUES,), write=(_REQUESTS_EXCHANGE, _QUERIES_EXCHANGE), read=(_OWN_QUEUES,)
    )
    if not settings.has_operators:
        return searches
    outcomes = re.escape(outcomes_exchange.name)
    dead = _dead_sets(art)
    parts = _parts_of(dead)
    retries = (rf"{ORCHESTRATOR}\.retry", *(rf"{exchange}\.retry" for exchange in art))
    delays = (_SITE_DELAYS, *(rf"{prefix}\.delay\..*" for prefix in (ORCHESTRATOR, *art)))
    returns = (_SITE, rf"{ORCHESTRATOR}\.retry-requeue", *art)
    return replace(
        searches,
        # A canary's outcomes come to a queue of its own.
        configure=(*searches.configure, *parts, outcomes),
        write=(*searches.write, *returns, *dead, *parts, *delays, _OWN_QUEUES, _EVENTS_EXCHANGE),
        read=(*searches.read, *dead, *parts, *delays, *retries, outcomes),
        events_written=("update",),
        tags="monitoring",
    )


def accounts(settings: Settings) -> Sequence[Account]:
    """Return the accounts of all processes and of clients that publish work; an operator keeps the administrator's."""
    art = [exchange for exchange in (COVER_ART_EXCHANGE, settings.event_art_exchange) if exchange]
    art_exchanges = tuple(re.escape(exchange) for exchange in art)
    return (
        *_FIXED,
        _packer(settings, art_exchanges),
        _web(settings, art_exchanges),
        _art_worker("coverart", COVER_ART_EXCHANGE),
        _art_worker("eventart", settings.event_art_exchange),
        Account(name="eventreader", write=art_exchanges),
        Account(name="client", write=(_SITE, *art_exchanges)),
    )


def pattern(names: Patterns) -> str:
    """Return the regular expression of a permission, which matches nothing without names."""
    return f"^({'|'.join(names)})$" if names else "^$"
