"""One operator at work: the services of the settings, and the audit of each act."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from redis import Redis

from app.broker.connection import connected
from app.broker.dead_letters import DeadSets
from app.broker.errors import error_text
from app.broker.outgoing import Outgoing
from app.broker.publishing import Publisher, get_publisher
from app.crawl.frontier.frontier import Frontier
from app.messages.dead_sets import dead_sets
from app.messages.envelopes import site_message
from app.operations.audit import AuditLog
from app.operations.operators import Operator, Origin
from app.redis_state.client import get_quick_redis, get_redis
from app.storage.open import store_of
from app.storage.store import ObjectStore
from app.topology.declare import prepare_client
from app.topology.retry_policies import budgets
from config.settings import Settings

#: Seconds that a page waits for the broker's answer, twice.
_BROKER_PATIENCE = 1.5


class Act:
    """An act under way. What is set as `result` and added to `details` is kept in the audit."""

    def __init__(self, **details: Any) -> None:
        self.result = "done"
        self.details = details


class OperatorContext:
    """What the functions of this package work with, for one operator. Making one contacts no service.

    They raise RoleRequired for an operator that may read only, BrokerUnreachable, StoreError and redis's errors.
    """

    def __init__(self, settings: Settings, operator: Operator) -> None:
        self.settings = settings
        self.operator = operator

    @cached_property
    def store(self) -> ObjectStore:
        """The object store."""
        return store_of(self.settings)

    @property
    def redis(self) -> Redis:
        """The client of Redis. That of pages and the API fails soon: requests that wait would hold up all others."""
        return (get_quick_redis if self._is_awaited else get_redis)(self.settings.redis)

    @property
    def frontier(self) -> Frontier:
        """What all workers share of the crawls."""
        return Frontier(self.redis)

    @cached_property
    def dead_sets(self) -> DeadSets:
        """The dead sets. What is done with each letter is also in their own audit file.

        Pages and the API first try a broker, as Redis, with little patience; raises BrokerUnreachable.
        """
        if self._is_awaited:
            with connected(self.settings.broker, timeout=_BROKER_PATIENCE):
                pass
        return dead_sets(self.settings)

    @property
    def audit(self) -> AuditLog:
        """The audit of the store."""
        return AuditLog(self.store)

    @property
    def _is_awaited(self) -> bool:
        return self.operator.origin in (Origin.PAGE, Origin.API)

    def client_publisher(self) -> Publisher:
        """Return a publisher after declaring what a client needs; raises BrokerUnreachable."""
        prepare_client(self.settings)
        return get_publisher(self.settings.broker)

    def post(self, kind: str, **payload: Any) -> None:
        """Publish a message of the exchange `site`; raises BrokerUnreachable and PublishFailed."""
        self.publish([site_message(kind, budgets(self.settings), **payload)])

    def publish(self, messages: list[Outgoing]) -> None:
        """Publish messages, confirmed; raises BrokerUnreachable and PublishFailed."""
        self.client_publisher().publish(messages)

    @contextmanager
    def act(self, name: str, subject: str, *, why: str = "", **details: Any) -> Iterator[Act]:
        """Yield an act on a subject, which the audit keeps when it has ended or was interrupted; raises RoleRequired.

        A failed command is not kept while the store is away, too: its user reads the error.
        """
        try:
            self.operator.require_act(name)
        except Exception as refusal:
            self.audit.write(self.operator, name, subject, why=why, result=f"refused: {refusal}", **details)
            raise
        act = Act(**details)
        try:
            yield act
        except (Exception, KeyboardInterrupt) as error:
            quiet = self.operator.origin is Origin.COMMAND
            result = f"failed: {error_text(error)}"
            self.audit.write(self.operator, name, subject, why=why, result=result, quiet=quiet, **act.details)
            raise
        self.audit.write(self.operator, name, subject, why=why, result=act.result, **act.details)
