"""The sending side: a new message carries its retry budget, and is confirmed where call or setting asks for it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from amqp.exceptions import AMQPError, MessageNacked
from celery.app import amqp as celery_amqp
from kombu import Exchange, Producer, pools
from kombu.connection import is_connection
from kombu.exceptions import OperationalError
from kombu.messaging import ChannelPromise

from ..errors import InvalidMessage, PublishFailed
from ..policies.delay_queues import budget_of

#: What is raised where a message may not have arrived.
_NOT_SENT = (AMQPError, MessageNacked, OSError, OperationalError)

#: Settings that Celery reads at each send, through as many maps and spellings as there may be: up to 20 us each.
_READ_EACH_TIME = (
    "broker_pool_acquire_timeout",
    "task_always_eager",
    "task_inherit_parent_priority",
    "task_protocol",
    "task_repr_maxlevels",
    "task_send_sent_event",
)

Send = Callable[..., Any]


class NotConfirmed(PublishFailed, OperationalError):  # type: ignore[misc]
    """Raised when a confirmed send failed. An OperationalError, too: that is what callers of Celery's own catch."""


class AMQP(celery_amqp.AMQP):  # type: ignore[misc]
    """Celery's way to the broker, with three more options for everything that sends a task's message.

    `apply_async`, `send_task`, signatures and beat all come through here:

    - `confirm`: wait until the broker has the message in a queue. Raises NotConfirmed where the broker refuses it, can
      route it to no queue, or does not answer within the time-out of `install`. Without it a call is faster by the
      round trip, and nobody learns of any of this. The default is that of `install`; what a task sends from within a
      worker is always confirmed.
    - `retry_timeout_ms`, `retry_max`: this message's own budget, where its queue's policy is `delay_queues`; raises
      InvalidMessage elsewhere, and for a last delay of more than 2^31 - 1 ms.

    A countdown or an eta, for which a worker would hold the message in its memory, is an InvalidMessage, too.
    """

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self._budgets: dict[tuple[str, str], Mapping[str, Any]] = {}
        # In the topmost map they are found at once, and a later change still counts.
        app.conf.update({name: app.conf[name] for name in _READ_EACH_TIME})
        forget = weakref.WeakMethod(self._forget_connections)
        os.register_at_fork(after_in_child=lambda: (call := forget()) and call())

    def _create_task_sender(self) -> Send:
        send: Send = super()._create_task_sender()

        def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
            _refuse_eta(name, message.headers)
            _add_missing(message.headers, self._budget(name, options))
            timeout = self.app.retries.publish_timeout
            # Of a write, which a broker that reads nothing would otherwise hold up for ever.
            options.setdefault("timeout", timeout)
            if self._is_confirmed(options.pop("confirm", None)):
                return _confirmed(send, producer, name, message, timeout=timeout, options=options)
            return _declared_once(send, producer, name, message, options)

        return send_task_message

    def _is_confirmed(self, asked: bool | None) -> bool:
        if self.app.current_worker_task:
            return True
        wanted: bool = self.app.retries.confirm if asked is None else asked
        return wanted

    def _budget(self, name: str, options: dict[str, Any]) -> Mapping[str, Any]:
        """Return the budget headers of a task's new message, and take what asks for others out of the options."""
        timeout_ms, retry_max = options.pop("retry_timeout_ms", None), options.pop("retry_max", None)
        queue = _name_of(options.get("queue"))
        if timeout_ms is None and retry_max is None and (queue, name) in self._budgets:
            return self._budgets[queue, name]
        policy = self.app.retries.policies.policy_for(queue, name)
        headers = budget_of(policy, timeout_ms=timeout_ms, retry_max=retry_max)
        if timeout_ms is None and retry_max is None:
            self._budgets[queue, name] = headers
        return headers

    def _forget_connections(self) -> None:
        """Leave the parent's sockets alone in a forked child: kombu notices only forks of multiprocessing.

        There it shuts the sockets down, which the parent then finds dead; a pool marked as closed is passed over.
        """
        for group in (pools.producers, pools.connections):
            for pool in group.values():
                pool._closed = True
            group.clear()
        self._producer_pool = self.app._pool = None


class _ConfirmingProducer(Producer):  # type: ignore[misc]
    """A producer on a second channel of a connection, which is in confirm mode; after a reconnection on a new one."""

    def __init__(self, connection: Any, *, timeout: float) -> None:
        self._timeout = timeout
        super().__init__(connection)

    def revive(self, channel: Any) -> None:
        connection = channel if is_connection(channel) else channel.connection.client
        self.__connection__ = connection
        self._channel = ChannelPromise(lambda: _confirm_channel(connection, self._timeout))
        self.exchange = Exchange("")(self._channel)

    @property
    def is_usable(self) -> bool:
        return isinstance(self._channel, ChannelPromise) or bool(self._channel.is_open)


def _confirming(connection: Any, timeout: float) -> _ConfirmingProducer:
    """Return the confirming producer of a connection, which remembers it."""
    known: _ConfirmingProducer | None = vars(connection).get("confirming")
    if known is None or not known.is_usable:
        known = connection.confirming = _ConfirmingProducer(connection, timeout=timeout)
    return known


def _confirm_channel(connection: Any, timeout: float) -> Any:
    # The default channel comes first: it is what opens the connection as the retry policy of the call says.
    channel = connection.default_channel.connection.channel()
    channel.basic_publish = _publish_on(channel, timeout)
    return channel


def _publish_on(channel: Any, timeout: float) -> Send:
    """Return a `basic_publish` that waits for the broker's answer, and says of what went wrong with which message."""
    returned: list[str] = []
    channel.events["basic_return"].add(lambda error, *_: returned.append(str(error)))

    def basic_publish(message: Any, exchange: str = "", routing_key: str = "", **options: Any) -> None:
        place = f"exchange {exchange!r} with key {routing_key!r}"
        options["confirm_timeout"] = options.get("confirm_timeout") or timeout
        try:
            channel.basic_publish_confirm(message, exchange=exchange, routing_key=routing_key, **options)
        except MessageNacked as error:
            # A class that kombu tries again after, on a new connection, as often as task_publish_retry_policy says.
            raise MessageNacked(f"the broker refused it: {place}") from error
        except TimeoutError as error:
            raise NotConfirmed(f"no answer in {options['confirm_timeout']:g} s: {place}") from error
        if returned:
            raise NotConfirmed(f"no queue is bound: {place}: {returned.pop()}")

    return basic_publish


def _confirmed(send: Send, producer: Any, name: str, message: Any, *, timeout: float, options: dict[str, Any]) -> Any:
    """Send and wait for the confirm. A connection on which that failed is dropped: it may owe an answer."""
    connection = producer.connection
    try:
        sure = _confirming(connection, timeout)
        return _declared_once(send, sure, name, message, {**options, "mandatory": True})
    except BaseException as error:
        connection.collect(socket_timeout=1)
        if isinstance(error, _NOT_SENT):
            raise NotConfirmed(f"{name}[{message.headers['id']}] is not confirmed: {error}") from error
        raise


def _declared_once(send: Send, producer: Any, name: str, message: Any, options: dict[str, Any]) -> Any:
    """Send, without asking kombu about a queue that was declared on this connection before: 30 us each time."""
    queue, declared = _name_of(options.get("queue")), producer.connection.declared_entities
    known = queue in declared
    if known:
        options.setdefault("declare", ())
    sent = send(producer, name, message, **options)
    if queue and not known and options.get("declare") is None:
        declared.add(queue)
    return sent


def _name_of(queue: Any) -> str:
    return queue if isinstance(queue, str) else getattr(queue, "name", "")


def _refuse_eta(name: str, headers: Mapping[str, Any]) -> None:
    if headers.get("eta"):
        raise InvalidMessage(f"{name}: neither countdown nor eta; every delay lives in the broker")


def _add_missing(headers: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        headers.setdefault(name, value)
