"""Declare queues one by one: a queue that the broker refuses, or whose node is down, concerns only itself."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from amqp import spec
from amqp.exceptions import AccessRefused, ChannelError, NotFound, PreconditionFailed
from kombu import Exchange, Queue

from .errors import QueueUnavailable, TopologyDiffers

logger = logging.getLogger(__name__)

#: RabbitMQ's text for a classic queue whose node is down. The queue and its messages return with the node.
_NODE_DOWN = re.compile(r"home node '?([^' ]+)'? of durable queue .* is down or inaccessible")

#: How RabbitMQ's text for a declaration with other arguments begins.
_PRECONDITION = "PRECONDITION_FAILED - "


@dataclass(frozen=True, slots=True)
class RefusedDeclaration:
    """A queue that could not be declared or consumed from, and the broker's error."""

    queue: Queue
    error: ChannelError

    @property
    def differs(self) -> bool:
        """Whether the queue, or an exchange that it is bound to, exists with other arguments.

        RabbitMQ has the same code for a vhost whose limit of queues is reached.
        """
        return isinstance(self.error, PreconditionFailed) and "inequivalent arg" in str(self.error)

    def __str__(self) -> str:
        if node := node_down(self.error):
            return f"its node {node} is down; it returns with that node"
        return str(self.error.reply_text).removeprefix(_PRECONDITION)


def declare_exchanges(connection: Any, exchanges: Iterable[Exchange]) -> None:
    """Declare exchanges; raises TopologyDiffers for one that has another type or other arguments.

    One that the account may not declare is left to another account: the broker refuses the queues that lack it.
    """
    with connection.channel() as channel:
        for exchange in exchanges:
            try:
                exchange(channel).declare()
            except AccessRefused as error:
                logger.warning("Exchange %s not declared: %s", exchange.name, error.reply_text)
            except PreconditionFailed as error:
                raise TopologyDiffers(str(error.reply_text).removeprefix(_PRECONDITION)) from None


def declare_queues(
    connection: Any, queues: Iterable[Queue], *, disposable: Collection[str] = ()
) -> list[RefusedDeclaration]:
    """Declare queues with their exchanges and bindings; return those that the broker refuses.

    A queue in `disposable` that has other arguments is deleted and declared again: its messages are worthless when
    they are late. Raises what breaks the connection.
    """
    refusals = []
    # The broker closes the channel with each refusal, and py-amqp opens it again.
    channel = connection.channel()
    for queue in queues:
        try:
            try:
                queue(channel).declare()
            except PreconditionFailed as error:
                # The refusal may be of its exchange, which a new queue would not change.
                if queue.name not in disposable or error.method_sig != spec.Queue.Declare:
                    raise
                channel.queue_delete(queue.name)
                queue(channel).declare()
        except ChannelError as error:
            refusals.append(RefusedDeclaration(queue, error))
    channel.close()
    return refusals


def message_count(channel: Any, queue: str) -> int | None:
    """Return the number of ready messages of a queue, None where it does not exist; raises QueueUnavailable."""
    found = existing_queue(channel, queue)
    return None if found is None else int(found.message_count)


def existing_queue(channel: Any, queue: str) -> Any:
    """Return what the broker counts of a queue, None where it does not exist.

    Raises QueueUnavailable for a queue whose node is down: it is not empty.
    """
    try:
        return channel.queue_declare(queue, passive=True)
    except NotFound as error:
        require_missing(queue, error)
        return None


def require_missing(queue: str, error: NotFound) -> None:
    """Raise QueueUnavailable if an error is about a queue that exists, on a node that is down."""
    if node := node_down(error):
        raise QueueUnavailable(f"queue {queue}: its node {node} is down; its messages return with it") from error


def node_down(error: BaseException) -> str:
    """Return the name of the node that is down and has the queue that an error is about; empty for other errors."""
    match = _NODE_DOWN.search(str(error.reply_text)) if isinstance(error, NotFound) else None
    return match[1] if match else ""
