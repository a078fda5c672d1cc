"""Comparison without the management API: by declaring what is there already, which creates nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from amqp.exceptions import ChannelError, NotFound, PreconditionFailed
from kombu import Exchange, Queue

from app.topology.compare import missing, other_arguments, other_exchange
from app.topology.findings import Finding
from app.topology.model import exchanges_of


def compare_by_amqp(connection: Any, queues: Iterable[Queue], exchanges: Iterable[Exchange]) -> Iterator[Finding]:
    """Yield what is missing or was declared otherwise.

    Bindings, and what others have in the vhost, AMQP does not tell.
    """
    queues = list(queues)
    every = {each.name: each for each in (*exchanges, *(each for queue in queues for each in exchanges_of(queue)))}
    for exchange in every.values():
        refusal = _refusal(connection, exchange, "declare")
        if isinstance(refusal, NotFound):
            yield missing(f"exchange {exchange.name}")
        elif refusal is not None:
            yield other_exchange(exchange.name, "as the code says", _reason(refusal))
    for queue in queues:
        refusal = _refusal(connection, queue, "queue_declare")
        if isinstance(refusal, NotFound):
            yield missing(f"queue {queue.name}")
        elif refusal is not None:
            yield other_arguments(queue.name, "as the code says", _reason(refusal))


def declared(connection: Any, queue: Queue) -> bool | None:
    """Return whether a queue stands as the code says; None where there is none."""
    refusal = _refusal(connection, queue, "queue_declare")
    if isinstance(refusal, NotFound):
        return None
    if refusal is not None and not isinstance(refusal, PreconditionFailed):
        raise refusal
    return refusal is None


def _refusal(connection: Any, thing: Exchange | Queue, declare: str) -> ChannelError | None:
    """Return why the broker refuses a declaration: first a passive one, so that nothing is ever made."""
    for passive in (True, False):
        try:
            with connection.channel() as channel:
                getattr(thing(channel), declare)(passive=passive)
        except ChannelError as error:
            return error
    return None


def _reason(refusal: ChannelError) -> str:
    """Return the broker's words, without its code."""
    return str(refusal.reply_text).removeprefix("PRECONDITION_FAILED - ")
